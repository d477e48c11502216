"""Fault case D08: reads before, in and after the pause of an update are all answered, each session with one version."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

import paramstream as ps

READS = 100
SESSIONS = 20
NAMES = [f"layer.{number}" for number in range(6)]


def part(version: int, names: list[str]) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float32]]]:
    return {name: np.full(5_000, version, np.float32) for name in names}


class Reads:
    """Reads of two replicas, some of them sessions that look again once the update is over; all in threads of their own."""

    def __init__(self, replicas: list[ps.Replica]) -> None:
        self._replicas = replicas
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self.seen: list[set[float]] = []
        """The distinct elements and the version of each read that was answered."""

    def start(self, count: int, sessions: int, version: int) -> None:
        for number in range(count):
            replica = self._replicas[number % 2]
            target: Callable[[ps.Replica, int], None] = self._session if number < sessions else self._read
            thread = threading.Thread(target=target, args=(replica, version))
            self._threads.append(thread)
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), "a read is stranded"

    def _read(self, replica: ps.Replica, _: int) -> None:
        self._answered(replica.weights())

    def _session(self, replica: ps.Replica, version: int) -> None:
        weights = replica.weights(version)
        assert weights.version == version
        self._over.wait(10)
        self._answered(weights, replica.weights(version))

    def _answered(self, *views: ps.Weights) -> None:
        found = {float(element) for view in views for values in view.values() for element in np.unique(values)}
        with self._lock:
            self.seen.append(found | {float(view.version) for view in views})


def test_reads_around_a_paused_update_are_all_answered_and_each_session_sees_one_version_D08(
    client: ps.Client,
) -> None:
    client.create_topic("model")
    trainer = client.publisher("model", producer="trainer")
    trainer.publish_weights(part(4, NAMES), version=4).durable.result(10)
    with (
        client.replica("model", name="a", arrays="numpy") as one,
        client.replica("model", name="b", arrays="numpy") as two,
    ):
        reads = Reads([one, two])
        try:
            reads.start(30, SESSIONS // 2, 4)
            parts = [trainer.publish_weights(part(5, names), 5, seal=False) for names in (NAMES[:4], NAMES[4:])]
            for replica in (one, two):
                replica.wait(parts[-1], 10)
            reads.start(30, 0, 4)  # in the pause: all is there, and nothing is sealed
            sealed = trainer.commit(5, parts, timeout=10)
            reads.start(10, 0, 5)
            for replica in (one, two):
                replica.wait(sealed, 10)
            reads.start(READS - 70, SESSIONS // 2, 5)
        finally:
            reads.end()
    assert len(reads.seen) == READS
    assert {frozenset(found) for found in reads.seen} == {frozenset({4.0}), frozenset({5.0})}
