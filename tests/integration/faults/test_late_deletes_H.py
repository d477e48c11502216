"""Fault case H12: a delete that comes late is older than the put behind it, on the wire and in the log, and removes nothing."""

from __future__ import annotations

import paramstream as ps
from fakes.shared_log import SharedStore
from feeding.fakes import FakeBroker
from paramstream.consumers.replica import Replica
from paramstream.events.kinds import Delete

WAIT_S = 10.0


def test_a_delete_held_back_on_its_way_is_fetched_in_its_place_and_is_late_when_it_comes_H12() -> None:
    broker = FakeBroker()
    with Replica(["model"], directory=broker.directory, make_link=broker.make_link, timeout=2.0) as replica:
        broker.state.put(b"k", b"1")
        broker.settle()
        held_back = memoryview(broker.state.delete(b"k"))
        ahead = memoryview(broker.state.put(b"k", b"2"))
        broker.handler.event(ahead)
        broker.handler.drained()
        assert replica.get("k") == b"1", "nothing is applied ahead of what it follows"
        broker.settle()
        assert replica.get("k") == b"2"
        applied, repeated = replica.vector, replica.status().repeated_events
        broker.handler.event(held_back)
        broker.settle()
        assert replica.get("k") == b"2" and replica.vector == applied
        assert replica.status().repeated_events == repeated + 1
        replica.wait(ps.VersionVector({("model", 0): broker.state.position}), timeout=1.0)


def test_a_delete_that_stands_in_the_log_once_more_behind_the_put_is_void_for_every_reader_H12() -> None:
    store = SharedStore()
    with ps.Broker(log=store.open("one")) as broker, ps.connect(broker.endpoint, timeout=WAIT_S) as client:
        partition = client.create_topic("model").id, 0
        pub = client.publisher("model", producer="trainer")
        pub.put("k", b"1")
        pub.delete("k")
        pub.put("k", b"2").durable.result(WAIT_S)
        with client.replica("model") as replica:
            digest = replica.digest()
    # A write of unknown fate that stands after all, when its repeat and what followed stand too.
    (late,) = [frame for frame in store.counting(partition) if isinstance(frame.payload, Delete)]
    before = store.void(partition)
    store.records[partition].frames.append(bytes(late.buffer))
    assert store.void(partition) == before + 1
    with (
        ps.Broker(log=store.open("two")) as broker,
        ps.connect(broker.endpoint, timeout=WAIT_S) as client,
        client.replica("model", start="earliest") as replica,
        client.subscribe("model", start="earliest") as events,
    ):
        assert replica.get("k") == b"2" and replica.digest() == digest
        assert [events.next(WAIT_S).kind for _ in range(3)] == ["put", "delete", "put"]
        pub = client.publisher("model", producer="other")
        replica.wait(pub.put("k", b"3"), WAIT_S)
        assert replica.get("k") == b"3" and events.next(WAIT_S).kind == "put"
