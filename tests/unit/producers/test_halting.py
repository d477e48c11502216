"""A session that halts at its first loss: what stands of it in a partition never has a hole that a later event hides."""

from __future__ import annotations

import pytest

from fakes.session_world import World, put_draft, put_values
from paramstream.consistency.vector import PartitionId
from paramstream.errors import EventLost, StorageFull

P, Q = (7, 0), (7, 1)


@pytest.fixture
def world() -> World:
    return World([P, Q], halts=True)


def standing(world: World, partition: PartitionId) -> list[bytes]:
    return [value for _, event in world.owner.partitions[partition].events for value in put_values(event)]


def test_behind_an_event_that_was_seen_and_lost_nothing_is_sent(world: World) -> None:
    seen = world.put(P, b"seen")
    world.disconnect(arrived=0)
    world.put(P, b"unsent")
    world.owner.takeover(P)
    world.connect()
    world.put(P, b"later")
    world.settle()
    assert isinstance(seen.error, EventLost)
    assert standing(world, P) == []


def test_behind_an_accepted_event_that_was_lost_nothing_is_sent_in_any_partition(world: World) -> None:
    lost = world.put(P, b"lost")
    world.settle()
    world.disconnect()
    world.put(Q, b"waits")
    world.owner.takeover(P, lose=1)
    world.connect()
    world.settle()
    assert lost.outcome() == "lost"
    assert standing(world, P) == standing(world, Q) == []


def test_behind_a_refused_event_nothing_goes_again(world: World) -> None:
    world.owner.refuse_next = StorageFull("full")
    first = world.put(P, b"1")
    for value in (b"2", b"3"):
        world.put(P, value)
    world.settle()
    assert isinstance(first.error, StorageFull)
    assert standing(world, P) == []


def test_what_nobody_can_have_seen_goes_again_as_in_any_session(world: World) -> None:
    world.call([put_draft(P, b"1")], whole=True)
    world.disconnect(arrived=0)
    world.call([put_draft(P, b"2")], whole=True)
    world.owner.takeover(P, resend=True)
    world.connect()
    world.settle()
    assert standing(world, P) == [b"1", b"2"]
