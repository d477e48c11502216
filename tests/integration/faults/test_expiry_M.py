"""Fault case M08 and the rest of expiry, end to end: hidden at the deadline, removed by stamps, the same on every replica."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import paramstream as ps
from reference.waiting import eventually

TTL_S = 0.4


@pytest.fixture
def publisher(client: ps.Client) -> ps.Publisher:
    client.create_topic("model")
    return client.publisher("model", producer="trainer")


def test_an_entry_is_hidden_at_its_deadline_and_removed_by_the_next_stamp_on_every_replica_M08(
    client: ps.Client, publisher: ps.Publisher
) -> None:
    with client.replica("model") as one, client.replica("model", ordering="pram") as two:
        replicas = (one, two)
        before = time.monotonic()
        receipt = publisher.put("k", b"short", ttl=TTL_S)
        publisher.put_many({"a": b"1", "b": b"2"}, ttl=60.0)
        last = publisher.put("stays", b"value")
        for replica in replicas:
            replica.wait(receipt)
            replica.wait(last)
        values = [replica.get("k") for replica in replicas]
        assert values == [b"short"] * 2 or time.monotonic() - before > TTL_S
        with_k = one.digest()
        assert two.digest() == with_k
        for replica in replicas:
            eventually(lambda replica=replica: replica.get("k") is None)  # type: ignore[misc]
        assert time.monotonic() - before >= TTL_S, "not before its time"
        # Hidden is not removed: nothing local decides state.
        assert [replica.digest() for replica in replicas] == [with_k] * 2
        stamp = publisher.put("next", b"value")
        for replica in replicas:
            replica.wait(stamp)
            assert replica.get_many(["k", "a", "b", "stays"]) == [None, b"1", b"2", b"value"]
        assert one.digest() == two.digest() != with_k
        # One that replays the log comes to the same.
        with client.replica("model", start="earliest") as late:
            assert late.digest() == one.digest()
    with client.replica("model") as reference, client.subscribe("model") as events:
        publisher.put("end", b"").accepted.result()
        assert events.next(timeout=5.0).items == ((b"end", b"", None),)
        assert reference.get("k") is None


def test_a_rewrite_of_an_expired_entry_is_not_removed_by_a_late_sweep_M08(
    client: ps.Client, publisher: ps.Publisher
) -> None:
    with client.replica("model") as replica:
        replica.wait(publisher.put("k", b"old", ttl=TTL_S))
        replica.wait(publisher.put("j", b"old", ttl=TTL_S))
        eventually(lambda: replica.get("k") is None and replica.get("j") is None)
        # Nothing has been stamped since: both are there still, and hidden. The rewrite comes first, the sweep after.
        replica.wait(publisher.put("k", b"new", ttl=30.0))
        replica.wait(publisher.put("j", b"for ever"))
        replica.wait(publisher.put("sweep", b""))
        assert replica.get_many(["k", "j"]) == [b"new", b"for ever"]
        with client.replica("model", start="earliest") as late:
            assert late.get_many(["k", "j"]) == [b"new", b"for ever"]
            assert late.digest() == replica.digest()


def test_a_replica_that_is_cut_off_hides_what_has_expired_and_says_that_it_is_stale_M08(tmp_path: Path) -> None:
    broker = ps.Broker(log=f"file:{tmp_path}")
    try:
        with ps.connect(broker.endpoint) as client:
            client.create_topic("model")
            publisher = client.publisher("model", producer="trainer")
            with client.replica("model") as replica:
                replica.wait(publisher.put("stays", b"value"))
                replica.wait(publisher.put("k", b"short", ttl=TTL_S))
                broker.close()
                eventually(lambda: replica.get("k") is None)
                assert replica.get("stays") == b"value"
                assert eventually(lambda: replica.status().stale)
    finally:
        broker.close()


def test_a_time_that_passes_while_the_broker_is_down_counts(tmp_path: Path) -> None:
    log = f"file:{tmp_path}"
    with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        publisher = client.publisher("model", producer="trainer")
        publisher.put("k", b"short", ttl=TTL_S)
        publisher.put("stays", b"value", ttl=60.0).durable.result()
        over = time.monotonic() + TTL_S
    eventually(lambda: time.monotonic() > over)
    with (
        ps.Broker(log=log) as broker,
        ps.connect(broker.endpoint) as client,
        client.replica("model", start="earliest") as late,
    ):
        assert late.get_many(["k", "stays"]) == [None, b"value"]


@pytest.mark.parametrize("ttl", [0, -1.0, 1e-10, float("nan"), float("inf"), 1e10, True, "1", b"1"])
def test_an_impossible_ttl_is_refused_at_publish(client: ps.Client, publisher: ps.Publisher, ttl: float) -> None:
    with pytest.raises(ps.InvalidEvent, match="TTL"):
        publisher.put("k", b"value", ttl=ttl)
    with pytest.raises(ps.InvalidEvent, match="TTL"):
        publisher.put_many({"k": b"value"}, ttl=ttl)
