"""Raw subscriptions: what is yielded, what is said to be lost, and that memory stays bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from feeding.fakes import FakeBroker
from paramstream.consistency.vector import VersionVector
from paramstream.consumers import subscriber
from paramstream.consumers.subscriber import Subscription
from paramstream.errors import OutcomeUnknown, ParamstreamTimeout
from paramstream.events.kinds import DeleteRows, Rows


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


def subscribe(broker: FakeBroker, start: str | VersionVector[str] = "head") -> Subscription:
    return Subscription("model", directory=broker.directory, make_link=broker.make_link, start=start, timeout=2.0)


@pytest.fixture
def subscription(broker: FakeBroker) -> Iterator[Subscription]:
    with subscribe(broker) as subscription:
        yield subscription


def kinds(subscription: Subscription) -> list[str]:
    found: list[str] = []
    while True:
        try:
            found.append(subscription.next(0.01).kind)
        except ParamstreamTimeout:
            return found


def test_the_head_as_of_the_call_is_where_it_starts(broker: FakeBroker) -> None:
    broker.state.put(b"before", b"")
    with subscribe(broker) as subscription:
        broker.state.put(b"after", b"v", ttl_ns=2_000_000_000)
        broker.settle()
        event = subscription.next(1.0)
        assert (event.kind, event.items) == ("put", ((b"after", b"v", 2.0),))
        assert event.vector == VersionVector({("model", 0): event.position})
        with pytest.raises(ParamstreamTimeout):
            subscription.next(0.01)


def test_earliest_and_a_vector_start_where_they_say(broker: FakeBroker) -> None:
    broker.state.put(b"a", b"")
    at = broker.state.position
    broker.state.delete(b"a")
    with subscribe(broker, "earliest") as subscription:
        assert kinds(subscription) == ["put", "delete"]
    with subscribe(broker, VersionVector({("model", 0): at, ("model", 1): broker.weights.position})) as subscription:
        assert kinds(subscription) == ["delete"]


def test_rows_and_their_keys_are_arrays(broker: FakeBroker, subscription: Subscription) -> None:
    keys, rows = np.array([5, 9], np.int64), np.arange(6, dtype=np.float32).reshape(2, 3)
    broker.state.write(Rows("t", 2, 3, "float32"), [keys.tobytes(), rows.tobytes()])
    broker.state.write(DeleteRows("t", 2), [keys.tobytes()])
    broker.settle()
    event = subscription.next(1.0)
    assert event.table == "t" and event.keys is not None and event.rows is not None
    assert (event.keys == keys).all() and (event.rows == rows).all() and not event.rows.flags.writeable
    gone = subscription.next(1.0)
    assert gone.kind == "delete_rows" and gone.keys is not None and (gone.keys == keys).all()


def test_a_version_shows_as_chunks_a_part_and_a_commit(broker: FakeBroker, subscription: Subscription) -> None:
    broker.weights.version(3, {"w": np.ones(4, np.float32)})
    broker.settle()
    events = [subscription.next(1.0) for _ in range(3)]
    assert [(e.kind, e.version) for e in events] == [("chunk", 3), ("part", 3), ("commit", 3)]
    assert events[0].name == events[1].name == "w" and events[2].digest is not None


def test_what_is_lost_is_said_with_the_end(broker: FakeBroker, subscription: Subscription) -> None:
    broker.state.put(b"kept", b"")
    end = broker.state.position
    broker.state.put(b"lost", b"")
    broker.settle()
    broker.state.open_epoch(end=end)
    broker.state.put(b"next", b"")
    broker.settle()
    events = [subscription.next(1.0) for _ in range(4)]
    assert [event.kind for event in events] == ["put", "put", "lost", "put"]
    assert events[2].position == end


def test_a_user_who_takes_nothing_costs_bounded_memory(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriber, "BUFFER_BYTES", 100_000)
    with subscribe(broker) as subscription:
        for _ in range(400):
            broker.state.put(b"k", bytes(100_000))
        broker.settle()
        assert subscription.buffered_bytes < 20 * 1024 * 1024
        taken = 0
        for beat in range(1000):
            taken += len(kinds(subscription))
            if taken == 400:
                break
            broker.beat(float(beat))
        assert taken == 400


def test_a_partition_that_nobody_serves_at_the_moment_is_not_passed_over(broker: FakeBroker) -> None:
    del broker.writers[broker.topic.id, 0]
    with pytest.raises(OutcomeUnknown) as refused:
        subscribe(broker)
    assert refused.value.partition == 0 and refused.value.retriable


def test_close_ends_the_iteration(broker: FakeBroker) -> None:
    subscription = subscribe(broker)
    broker.state.put(b"a", b"")
    broker.settle()
    found: list[str] = []
    for event in subscription:
        found.append(event.kind)
        subscription.close()
    assert found == ["put"]


@pytest.mark.asyncio
async def test_events_are_awaited(broker: FakeBroker) -> None:
    subscription = subscribe(broker)
    try:
        waiting = asyncio.ensure_future(anext(subscription))
        await asyncio.sleep(0)
        broker.state.put(b"a", b"")
        await asyncio.to_thread(broker.settle)
        assert (await asyncio.wait_for(waiting, 5.0)).kind == "put"
        subscription.close()
        assert [event async for event in subscription] == []
    finally:
        subscription.close()
