"""`visibility="durable"`: a reader that shows nothing that could still be lost, while others see it."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from paramstream.eventlog.partition import LocalPartition
from reference.weights import check_weights

W1, W2 = {"w": np.array([1.0])}, {"w": np.array([2.0])}


@contextmanager
def no_syncs() -> Generator[None]:
    """Nothing becomes durable within the block."""
    goes_on, sync = threading.Event(), LocalPartition.sync

    def held_up(partition: LocalPartition) -> int:
        assert goes_on.wait(30.0), "nobody let the sync through"
        return sync(partition)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalPartition, "sync", held_up)
        try:
            yield
        finally:
            goes_on.set()


def test_a_replica_shows_versions_and_entries_once_they_are_durable_and_in_order(tmp_path: Path) -> None:
    with ps.Broker(log=f"file:{tmp_path}") as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model", partitions=2)
        publisher = client.publisher("model", producer="trainer")
        publisher.publish_weights(W1, version=1)
        publisher.put("k", b"old")
        publisher.flush()
        with (
            client.replica("model", arrays="numpy") as early,
            client.replica("model", arrays="numpy", visibility="durable") as replica,
        ):
            check_weights(replica.weights(), W1, 1)
            with no_syncs():
                weights, put = publisher.publish_weights(W2, version=2), publisher.put("k", b"new")
                early.wait(put)
                assert early.weights().version == 2
                before = replica.vector
                with pytest.raises(ps.ParamstreamTimeout):
                    replica.wait(weights, timeout=0.2)
                with pytest.raises(ps.ParamstreamTimeout):
                    replica.wait_version(2, timeout=0.1)
                assert (replica.weights().version, replica.get("k")) == (1, b"old")
                assert replica.vector == before, "who observes it depends on nothing that could be lost"
                # One that comes now begins with what is durable, and does not wait for more.
                with client.replica("model", arrays="numpy", visibility="durable", timeout=5.0) as late:
                    assert (late.weights().version, late.get("k")) == (1, b"old")
            replica.wait(put)
            check_weights(replica.weights(), W2, 2)
            assert replica.get("k") == b"new"
            assert put.positions <= replica.vector
            assert replica.digest() == early.digest()


def test_a_subscription_yields_an_event_once_it_is_durable_and_begins_at_the_durable_head(tmp_path: Path) -> None:
    with ps.Broker(log=f"file:{tmp_path}") as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        publisher = client.publisher("model", producer="trainer")
        publisher.put("before", b"")
        publisher.flush()
        with ExitStack() as handles:
            with no_syncs():
                publisher.put("one", b"").accepted.result()
                durable = handles.enter_context(client.subscribe("model", visibility="durable"))
                accepted = handles.enter_context(client.subscribe("model"))
                publisher.put("two", b"").accepted.result()
                assert keys_of(accepted.next(5.0)) == [b"two"], "it began at the accepted head"
                with pytest.raises(ps.ParamstreamTimeout):
                    durable.next(timeout=0.2)
            publisher.put("three", b"")
            assert [keys_of(durable.next(5.0)) for _ in range(3)] == [[b"one"], [b"two"], [b"three"]]


def keys_of(event: ps.Event) -> list[bytes]:
    return [key for key, _, _ in event.items]


def test_nothing_of_a_topic_without_persistence_is_ever_durable_and_who_asks_is_told_at_once(client: ps.Client) -> None:
    client.create_topic("cache", persistence="none")
    with pytest.raises(ps.NotDurable):
        client.replica("cache", visibility="durable")
    with pytest.raises(ps.NotDurable):
        client.subscribe("cache", visibility="durable")
    with pytest.raises(ps.InvalidEvent, match="visibility"):
        client.replica("cache", visibility="all")
