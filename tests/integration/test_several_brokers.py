"""Brokers that share one log share its partitions: one comes, goes or lies dead, and what was accepted is not lost silently."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import pytest

import paramstream as ps
from fakes.shared_log import SharedStore

WAIT_S = 15.0
Found = TypeVar("Found")


class Brokers:
    """Brokers over one store, by name; closed whatever the test does."""

    def __init__(self) -> None:
        self.store = SharedStore()
        self.open: dict[str, ps.Broker] = {}
        self.clients: list[ps.Client] = []

    def start(self, name: str) -> ps.Broker:
        self.open[name] = ps.Broker(log=self.store.open(name))
        return self.open[name]

    def stop(self, name: str) -> None:
        self.open.pop(name).close()

    def client(self, *names: str) -> ps.Client:
        client = ps.connect([self.open[name].endpoint for name in names or self.open], timeout=WAIT_S)
        self.clients.append(client)
        return client

    def owner_of(self, partition: tuple[int, int]) -> str:
        """The one that has it open, once there is just one."""
        return until(lambda: self._owners(partition) if len(self._owners(partition)) == 1 else [])[0]

    def _owners(self, partition: tuple[int, int]) -> list[str]:
        return [name for name, broker in self.open.items() if partition in vars(broker)["_partitions"].owned]

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for name in list(self.open):
            self.store.thaw(name)
        for name in list(self.open):
            self.stop(name)


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    brokers = Brokers()
    try:
        yield brokers
    finally:
        brokers.close()


def test_two_brokers_share_one_log_and_a_client_uses_both(brokers: Brokers) -> None:
    brokers.start("one")
    brokers.start("two")
    client = brokers.client()
    topic = client.create_topic("model", partitions=8)
    owners = {brokers.owner_of((topic.id, number)) for number in range(9)}
    assert owners == {"one", "two"}, "the partitions are shared"
    pub = client.publisher("model", "trainer")
    with client.replica("model", arrays="numpy") as rep:
        receipts = [pub.put(f"key-{n}", str(n).encode()) for n in range(64)]
        pub.publish_weights({"step": np.array([1])}, version=1)
        pub.flush(WAIT_S)
        assert {receipt.outcome for receipt in receipts} == {"durable"}
        rep.wait_version(1, WAIT_S)
        rep.wait(receipts[-1], WAIT_S)
        assert [rep.get(f"key-{n}") for n in range(64)] == [str(n).encode() for n in range(64)]
    assert [each.name for each in client.topics()] == ["model"]


def test_a_broker_that_stops_cleanly_loses_nothing_and_nobody_notices_but_by_a_pause(brokers: Brokers) -> None:
    brokers.start("one")
    brokers.start("two")
    client = brokers.client()
    client.create_topic("model", partitions=8)
    pub = client.publisher("model", "trainer")
    with client.replica("model", arrays="numpy", start="earliest") as rep:
        done, receipts = threading.Event(), list[ps.Receipt]()

        def publish() -> None:
            for n in range(100_000):
                receipts.append(pub.put(f"key-{n % 97}", str(n).encode(), timeout=WAIT_S))
                if done.is_set():
                    return

        publishing = threading.Thread(target=publish, name="paramstream-test-publishing")
        publishing.start()
        try:
            until(lambda: len(receipts) > 200)
            brokers.stop("one")
            stood = len(receipts)
            until(lambda: len(receipts) > stood + 200)
            brokers.start("one")
            stood = len(receipts)
            until(lambda: len(receipts) > stood + 200)
        finally:
            done.set()
            publishing.join(WAIT_S)
        pub.flush(WAIT_S)
        assert {receipt.outcome for receipt in receipts} == {"durable"}
        rep.wait(receipts[-1], WAIT_S)
        last = {n % 97: n for n in range(len(receipts))}
        assert [rep.get(f"key-{key}") for key in last] == [str(n).encode() for n in last.values()]


def until(look: Callable[[], Found]) -> Found:
    deadline = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.005)
    return found
