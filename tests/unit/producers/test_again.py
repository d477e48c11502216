"""`lost="again"`: lost events go again as new ones, whatever they name goes with them, and memory stays bounded."""

from __future__ import annotations

import numpy as np
import pytest

from fakes.session_world import World, put_draft, put_values
from paramstream.consistency.vector import PartitionId
from paramstream.errors import EventLost, Fenced, StorageFull, UnknownTopic
from paramstream.events.kinds import Chunk, Commit, Part, PartRef
from paramstream.events.limits import MAX_CHUNK_BYTES
from paramstream.events.tensors import describe_tensors
from paramstream.producers.calls import Call, Draft
from paramstream.producers.staging import commit_draft, stage
from paramstream.producers.weights import Group, group_tensors

P: PartitionId = (7, 0)
Q: PartitionId = (7, 1)
WINDOW_BYTES = 64 << 20


@pytest.fixture
def world() -> World:
    return World([P, Q], WINDOW_BYTES, again=True)


def lose(world: World, count: int, partition: PartitionId = P) -> None:
    """The partition's owner dies with its last events, and another takes over."""
    world.disconnect()
    world.owner.takeover(partition, lose=count)
    world.connect()


class Publish:
    """A publish of weights whose events go one by one."""

    def __init__(self, world: World, arrays: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]) -> None:
        self.world = world
        self.groups: list[Group] = group_tensors(describe_tensors(arrays), None)
        self.call = Call((P,), "write_back", whole=True, version=1)
        world.do(world.core.begin(self.call))

    def send(self, draft: Draft) -> int:
        assert self.world.core.its_turn(self.call, draft.nbytes)
        sequence, effects = self.world.core.add(self.call, draft)
        self.world.do(effects)
        return sequence

    def stage(self) -> None:
        sequences, specs = stage(P, 1, self.groups, self.send, lambda _: None)
        self.call.parts = tuple(PartRef("p", self.world.core.incarnation, sequence) for sequence in sequences)
        self.specs = specs

    def seal(self) -> None:
        self.send(commit_draft(P, 1, self.call.parts, self.specs, "same", False))
        self.finish()

    def finish(self) -> None:
        self.world.do(self.world.core.finish(self.call))


def check_whole(world: World) -> None:
    """The last commit names parts that stand before it, those chunks that stand before them, and these hold every byte."""
    events = [event for _, event in world.owner.partitions[P].events]
    at = {event.head.sequence: index for index, event in enumerate(events)}
    [commit] = [event for event in events if isinstance(event.payload, Commit)]
    assert isinstance(commit.payload, Commit)
    for ref in commit.payload.parts:
        part = events[at[ref.sequence]]
        assert isinstance(part.payload, Part) and at[ref.sequence] < at[commit.head.sequence]
        for spec in part.payload.tensors:
            nbytes = 0
            for sequence in range(spec.first_chunk, spec.last_chunk + 1):
                chunk = events[at[sequence]]
                assert isinstance(chunk.payload, Chunk) and at[sequence] < at[ref.sequence]
                nbytes += sum(segment.nbytes for segment in chunk.payload.segments if segment.name == spec.name)
            assert nbytes == spec.nbytes


def arrays(chunks: int) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    """A small tensor, one that takes so many chunks more, and another small one."""
    return {
        "a": np.ones(100, np.float32),
        "big": np.arange(chunks * MAX_CHUNK_BYTES // 4, dtype=np.float32),
        "z": np.ones(100, np.float32),
    }


def kinds(world: World) -> list[str]:
    return [event.kind.label for _, event in world.owner.partitions[P].events]


def test_a_lost_put_goes_again_under_a_new_sequence_and_its_receipt_names_the_new_event(world: World) -> None:
    first, second = world.put(P, b"1"), world.put(P, b"2")
    world.settle()
    old = dict(second.positions)
    lose(world, 1)
    assert (first.outcome(), second.outcome(), second.accepted) == ("durable", "pending", False)
    world.settle()
    assert second.outcome() == "accepted" and second.positions[P] > old[P]
    world.sync()
    assert second.outcome() == "durable"
    assert [event.head.sequence for _, event in world.owner.partitions[P].events] == [1, 3]
    assert world.core.outcomes.failed is None


def test_what_goes_again_goes_before_what_still_waits_for_its_turn(world: World) -> None:
    world.put(P, b"1")
    world.settle()
    world.disconnect()
    world.put(Q, b"2")
    world.put(P, b"3")
    world.owner.takeover(P, lose=1)
    sent = len(world.sent)
    world.connect()
    world.settle()
    assert [put_values(event) for event in world.sent[sent:]] == [[b"2"], [b"1"], [b"3"]], "2 had its sequence already"


@pytest.mark.parametrize("lost", range(1, 7))
def test_of_a_lost_publish_chunks_parts_and_commit_are_made_anew_and_hang_together(world: World, lost: int) -> None:
    publish = Publish(world, arrays(3))
    publish.stage()
    publish.seal()
    world.settle()
    assert kinds(world) == ["chunk"] * 4 + ["part", "commit"]
    lose(world, lost)
    world.settle()
    world.sync()
    assert publish.call.outcome() == "durable"
    check_whole(world)


def test_where_only_the_end_of_a_publish_is_lost_its_chunks_do_not_go_again(world: World) -> None:
    publish = Publish(world, arrays(2))
    publish.stage()
    publish.seal()
    world.settle()
    lose(world, 2)
    world.settle()
    assert kinds(world).count("chunk") == 3
    check_whole(world)


def test_a_publish_that_loses_events_in_its_midst_goes_on(world: World) -> None:
    publish = Publish(world, arrays(3))
    send, count = publish.send, 0

    def sometimes_lost(draft: Draft) -> int:
        nonlocal count
        sequence = send(draft)
        count += 1
        world.settle()
        if count == 2:
            world.sync()  # The first chunks of the big tensor are durable, and are needed once more.
        if count == 3:
            lose(world, 1)
            world.settle()
        return sequence

    publish.send = sometimes_lost  # type: ignore[method-assign]
    publish.stage()
    publish.seal()
    world.settle()
    world.sync()
    assert publish.call.outcome() == "durable"
    check_whole(world)


def test_parts_that_go_again_are_named_anew_by_their_receipt_and_by_commits(world: World) -> None:
    publish = Publish(world, arrays(1))
    publish.stage()
    publish.finish()
    world.settle()
    [before] = publish.call.parts
    lose(world, 1)
    world.settle()
    [after] = publish.call.parts
    assert after.sequence > before.sequence
    commit = Call((P,), "write_back", whole=True, version=1)
    draft = commit_draft(P, 1, (before,), publish.specs, "same", False)
    world.do(world.core.submit(commit, [draft]))
    world.settle()
    check_whole(world)


def test_what_was_written_as_text_stays_lost(world: World) -> None:
    call = world.put(P, b"1")
    world.settle()
    call.written = True
    lose(world, 1)
    world.settle()
    assert isinstance(call.error, EventLost) and call.outcome() == "lost"
    assert world.owner.partitions[P].events == []
    assert world.core.has_room(WINDOW_BYTES)


def test_what_is_not_durable_takes_of_the_window(world: World) -> None:
    half = bytes(WINDOW_BYTES // 2)
    for _ in range(2):
        world.call([put_draft(P, half[: 512 * 1024]) for _ in range(63)])
    world.settle()
    assert not world.core.has_room(512 * 1024 * 4), "accepted, and not durable"
    world.sync()
    assert world.core.has_room(WINDOW_BYTES)


def test_a_tensor_larger_than_the_window_goes_through_it() -> None:
    world = World([P], 3 * MAX_CHUNK_BYTES, again=True)
    publish = Publish(world, arrays(8))
    send = publish.send

    def with_room(draft: Draft) -> int:
        if not world.core.its_turn(publish.call, draft.nbytes):
            world.settle()
            world.sync()
        return send(draft)

    publish.send = with_room  # type: ignore[method-assign]
    publish.stage()
    publish.seal()
    world.settle()
    lose(world, 3)
    for _ in range(10):
        world.settle()
        world.sync()
    assert publish.call.outcome() == "durable"
    check_whole(world)


def test_what_waits_to_go_again_ends_with_its_session(world: World) -> None:
    call = world.put(P, b"1")
    world.settle()
    world.put(Q, b"2")
    world.disconnect()
    world.owner.takeover(P, lose=1)
    world.connect()
    assert not world.core.answered
    world.do(world.core.fence(Fenced("newer")))
    assert isinstance(call.error, Fenced)


def test_what_waits_to_go_again_ends_with_its_topic(world: World) -> None:
    call = world.put(P, b"1")
    world.settle()
    lose(world, 1)
    world.do(world.core.forget_topic(P[0]))
    assert isinstance(call.error, UnknownTopic)
    assert world.core.has_room(WINDOW_BYTES)


def test_a_renewed_event_may_be_refused_and_says_so(world: World) -> None:
    call = world.put(P, b"1")
    world.settle()
    world.owner.refuse_next = StorageFull("full")
    lose(world, 1)
    world.settle()
    assert isinstance(call.error, StorageFull)
    assert world.core.has_room(WINDOW_BYTES)
