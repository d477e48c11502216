"""The three levels of persistence, each end to end: when an event is seen, when it is accepted, and what a receipt says of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from paramstream.eventlog.partition import LocalPartition
from reference.waiting import eventually
from reference.weights import check_weights

W1, W2 = {"w": np.array([1.0])}, {"w": np.array([2.0])}


class Disk:
    """Lets syncs through, or holds them up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._lets_through = threading.Event()
        self._lets_through.set()
        sync = LocalPartition.sync

        def held_up(partition: LocalPartition) -> int:
            assert self._lets_through.wait(30.0), "nobody let the sync through"
            return sync(partition)

        monkeypatch.setattr(LocalPartition, "sync", held_up)

    def stop(self) -> None:
        self._lets_through.clear()

    def go_on(self) -> None:
        self._lets_through.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(monkeypatch)
    yield disk
    disk.go_on()


@pytest.fixture
def local(disk: Disk, tmp_path: Path) -> Iterator[ps.Client]:
    with ps.Broker(log=f"file:{tmp_path}") as broker, ps.connect(broker.endpoint) as client:
        yield client
        disk.go_on()


def test_under_write_back_an_event_is_accepted_and_seen_before_it_is_durable(local: ps.Client, disk: Disk) -> None:
    local.create_topic("model", persistence="write_back")
    publisher = local.publisher("model", producer="trainer")
    with local.replica("model", arrays="numpy") as replica:
        disk.stop()
        put, weights = publisher.put("k", b"v"), publisher.publish_weights(W1, version=1)
        replica.wait(put)
        replica.wait_version(1)
        assert replica.get("k") == b"v" and replica.weights().version == 1
        weights.accepted.result()
        assert (put.outcome, weights.outcome) == ("accepted", "accepted")
        assert not put.durable.done() and not weights.durable.done()
        with pytest.raises(ps.ParamstreamTimeout):
            publisher.flush(timeout=0.1)
        disk.go_on()
        assert put.durable.result() == put.accepted.result()
        publisher.flush()  # of what was published since the one that gave up
        assert weights.outcome == "durable"


def test_under_write_through_an_event_is_accepted_and_seen_only_when_it_is_durable(
    local: ps.Client, disk: Disk
) -> None:
    local.create_topic("model", persistence="write_through")
    publisher, other = (local.publisher("model", producer=name) for name in ("trainer", "other"))
    with local.replica("model", arrays="numpy") as replica, local.subscribe("model", start="earliest") as events:
        disk.stop()
        put, weights = publisher.put("k", b"v"), other.publish_weights(W1, version=1)
        # A call may only depend on what is accepted: to another partition it waits, and says what for.
        with pytest.raises(ps.BackpressureTimeout, match="'trainer' in other partitions were not accepted"):
            publisher.publish_weights(W2, version=2, timeout=0.1)
        with pytest.raises(ps.ParamstreamTimeout):
            put.accepted.result(timeout=0.3)
        # Neither who follows, nor who fetches, nor who comes now sees anything.
        assert replica.get("k") is None
        with pytest.raises(ps.ParamstreamTimeout):
            events.next(timeout=0.1)
        with local.subscribe("model", start="earliest") as late, pytest.raises(ps.ParamstreamTimeout):
            late.next(timeout=0.1)
        with pytest.raises(ps.VersionNotHeld):
            replica.weights()
        assert (put.outcome, weights.outcome) == ("pending", "pending")
        disk.go_on()
        assert put.accepted.result() == put.durable.result()
        weights.accepted.result()
        assert (put.outcome, weights.outcome) == ("durable", "durable")
        replica.wait(put)
        replica.wait_version(1)
        assert replica.get("k") == b"v"
        check_weights(replica.weights(), W1, 1)
        assert sorted(events.next(timeout=5.0).kind for _ in range(4)) == ["chunk", "commit", "part", "put"]


@pytest.mark.parametrize("persistence", ["write_back", "write_through"])
def test_what_is_durable_is_there_after_a_restart(persistence: str, tmp_path: Path) -> None:
    log = f"file:{tmp_path}"
    with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model", partitions=3, persistence=persistence, retain_versions=5)
        publisher = client.publisher("model", producer="trainer")
        publisher.put_many({f"key-{n}": b"%d" % n for n in range(30)})
        publisher.delete("key-3")
        publisher.publish_weights(W1, version=1)
        publisher.flush()
        with client.replica("model", arrays="numpy") as replica:
            digest = replica.digest()
    with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
        (topic,) = client.topics()
        assert (topic.partitions, topic.persistence, topic.retain_versions) == (3, persistence, 5)
        with client.replica("model", arrays="numpy") as replica:
            assert replica.digest() == digest
            check_weights(replica.weights(), W1, 1)
            expected = [None if n == 3 else b"%d" % n for n in range(30)]
            assert replica.get_many(f"key-{n}" for n in range(30)) == expected


def test_under_none_a_receipt_says_at_once_that_nothing_becomes_durable(client: ps.Client) -> None:
    client.create_topic("model", persistence="none")
    publisher = client.publisher("model", producer="trainer")
    for receipt in (publisher.put("k", b"v"), publisher.publish_weights(W1, version=1)):
        with pytest.raises(ps.NotDurable):
            _ = receipt.durable
        receipt.accepted.result()
        assert receipt.outcome == "accepted"
    publisher.flush()
    # The broker's memory serves who comes late.
    with client.replica("model", start="earliest", arrays="numpy") as late:
        assert late.get("k") == b"v"
        check_weights(late.weights(), W1, 1)


def test_under_none_a_restart_clears_entries_and_keeps_the_version_until_the_next_commit(tmp_path: Path) -> None:
    log = f"file:{tmp_path}"
    broker = ps.Broker(log=log)
    try:
        with ps.connect(broker.endpoint) as client:
            client.create_topic("model", persistence="none")
            client.create_table("model", "t", dim=2)
            publisher = client.publisher("model", producer="trainer")
            publisher.publish_weights(W1, version=1)
            publisher.put("k", b"v").accepted.result()
            with client.replica("model", arrays="numpy") as replica:
                replica.wait_version(1)
                assert replica.get("k") == b"v" and not replica.status().stale
                broker.close()
                broker = ps.Broker(bind=broker.endpoint, log=log)
                eventually(lambda: replica.status().connected and replica.get("k") is None)
                check_weights(replica.weights(), W1, 1)
                assert eventually(lambda: replica.status().stale), "an old version is not said to be new"
                with pytest.raises(ps.NotDurable):
                    ps.restore(broker.endpoint, "model")
                # The session goes on, and so do its tables.
                publisher.publish_rows("t", [1], np.ones((1, 2), np.float32)).accepted.result()
                publisher.publish_weights(W2, version=2).accepted.result()
                replica.wait_version(2)
                check_weights(replica.weights(), W2, 2)
                eventually(lambda: not replica.status().stale)
    finally:
        broker.close()


def test_two_replicas_of_each_level_are_equal_bit_for_bit(client: ps.Client) -> None:
    for persistence in ("none", "write_back", "write_through"):
        client.create_topic(persistence, partitions=2, persistence=persistence)
        one, two = (client.publisher(persistence, producer=name) for name in ("one", "two"))
        model: dict[str, bytes] = {}
        with client.replica(persistence, arrays="numpy") as a, client.replica(persistence, ordering="pram") as b:
            for n in range(40):
                model[f"key-{n % 7}"] = b"%d" % n
                (one, two)[n % 2].put(f"key-{n % 7}", b"%d" % n).accepted.result()
            last = two.publish_weights(W2, version=1)
            for replica in (a, b):
                replica.wait(last)
                replica.wait_version(1)
                assert replica.get_many(model) == list(model.values())
            assert a.digest() == b.digest()
