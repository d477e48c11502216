"""Clients over several brokers record what they write and read; a checker that knows nothing of stamps and gates judges it."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import paramstream as ps
from fakes.shared_log import SharedStore
from ordering.delays import delaying_links
from paramstream.consistency.checking import Model, check_history
from paramstream.consistency.gate import Gate
from paramstream.consistency.stamp import Stamp
from paramstream.consistency.vector import PartitionId
from paramstream.consumers.links import ConsumerLink
from paramstream.transport.link import Handler
from paramstream.transport.messages import Hello

CLIENTS, GROUPS, OPERATIONS = 6, 20, 20
CAUGHT_UP_EVERY = 10
"""After so many groups a client waits until its replica has what it wrote: else they would all be done before the delays are."""
KEYS = [f"k{number}" for number in range(5)]
TOPIC = "registers"
PARTITIONS = 3
WITHIN_S = 60.0


@pytest.fixture
def endpoints(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Two brokers that share a log; what they send to a client's replica is delayed at random, each partition by itself."""
    store, seeds = SharedStore(), itertools.count()
    with ps.Broker(log=store.open("one")) as one, ps.Broker(log=store.open("two")) as two:
        found = [one.endpoint, two.endpoint]

        def delayed(client: ps.Client, handler: Handler, hello: Callable[[], Hello], name: str) -> ConsumerLink:
            return delaying_links(found, next(seeds))(handler, hello, name)

        monkeypatch.setattr(ps.Client, "_make_link", delayed)
        yield found


class Working(threading.Thread):
    """One client with a replica and a producer that observes it: reads and writes any of the keys, group after group."""

    def __init__(self, name: str, endpoints: list[str], ordering: str, history: Path, start: threading.Barrier) -> None:
        super().__init__(name=f"client-{name}")
        self._endpoints, self._ordering, self._history, self._barrier = endpoints, ordering, history, start
        self._chance = random.Random(name)
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error
            self._barrier.abort()
            raise

    def _work(self) -> None:
        with ps.connect(self._endpoints, history=self._history, timeout=WITHIN_S) as client:
            replica = client.replica(TOPIC, name=f"replica-of-{self.name}", ordering=self._ordering)
            publisher = client.publisher(TOPIC, producer=self.name, observes=replica)
            self._barrier.wait(WITHIN_S)
            for group in range(GROUPS):
                for _ in range(OPERATIONS):
                    self._operate(replica, publisher)
                if group % CAUGHT_UP_EVERY == 0:
                    replica.wait(publisher.put(self._chance.choice(KEYS), b""), WITHIN_S)
            publisher.flush(WITHIN_S)
            self._barrier.wait(WITHIN_S)

    def _operate(self, replica: ps.Replica, publisher: ps.Publisher) -> None:
        chance = self._chance.random()
        if chance < 0.7:
            replica.get(self._chance.choice(KEYS))
        elif chance < 0.95:
            publisher.put(self._chance.choice(KEYS), b"")
        else:
            publisher.put_many(dict.fromkeys(self._chance.sample(KEYS, 3), b""))


def histories(endpoints: list[str], ordering: str, folder: Path) -> list[Path]:
    """What all clients have recorded."""
    with ps.connect(endpoints, timeout=WITHIN_S) as client:
        client.create_topic(TOPIC, partitions=PARTITIONS)
    files = [folder / f"client-{number}.jsonl" for number in range(CLIENTS)]
    barrier = threading.Barrier(CLIENTS)
    threads = [Working(file.stem, endpoints, ordering, file, barrier) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
        assert not thread.is_alive() and thread.error is None, (thread.name, thread.error)
    return files


def test_what_causal_clients_record_has_no_cycle_and_no_read_goes_back_H03(
    endpoints: list[str], tmp_path: Path
) -> None:
    files = histories(endpoints, "causal", tmp_path)
    for model in Model:
        verdict = check_history(files, model)
        assert verdict.ok, (verdict.faults, verdict.witness)
        assert verdict.operations > CLIENTS * GROUPS * OPERATIONS and verdict.deliveries


def test_what_pram_clients_record_has_the_order_of_each_writer_H03(endpoints: list[str], tmp_path: Path) -> None:
    verdict = check_history(histories(endpoints, "pram", tmp_path), Model.PRAM)
    assert verdict.ok, (verdict.faults, verdict.witness)


@pytest.mark.parametrize("ordering", ["causal", "pram"])
def test_without_the_gate_the_checker_finds_the_orders_that_are_broken_H03(
    endpoints: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordering: str
) -> None:
    def open_gate(gate: Gate, partition: PartitionId, stamp: Stamp) -> None:
        """Everything may be applied."""

    monkeypatch.setattr(Gate, "blocked_by", open_gate)
    verdict = check_history(histories(endpoints, ordering, tmp_path), Model(ordering))
    assert verdict.witness is not None and verdict.fault_count
