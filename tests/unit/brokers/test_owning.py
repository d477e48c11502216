"""What a broker opens and gives up as its slots come and go, with the worker's jobs done when the test says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fakes.shared_log import FakeSharedLog, SharedStore
from paramstream.brokers.following import MetaReader
from paramstream.brokers.holding import Holding
from paramstream.brokers.owned import META
from paramstream.brokers.ownership import Ownership
from paramstream.brokers.owning import Owning
from paramstream.brokers.partitions import Partitions
from paramstream.brokers.pending import Pending
from paramstream.brokers.worker import Worker
from paramstream.consistency.vector import PartitionId
from paramstream.errors import ConnectFailed, Fenced, ParamstreamError
from paramstream.events.codec import Buffer
from paramstream.events.kinds import Kind, Note, Payload
from paramstream.transport.calls import CreateTopic
from paramstream.transport.messages import Owner
from paramstream.transport.slots import SLOTS

ALL = tuple(range(SLOTS))


class Bench:
    """An `Owning` with the loop around it played by the test."""

    def __init__(self, log: FakeSharedLog) -> None:
        self.partitions = Partitions(log, "bench", time.time, time.monotonic_ns)
        self.holding = Holding(lambda partition: False)
        self.pending = Pending(self.partitions.owned, lambda owned, since: True)
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.sent_away = 0
        self.deleted: list[PartitionId] = []
        reader = MetaReader(log, lambda job: job())
        self.owning = Owning(self.partitions, cast(Worker, self), reader, self.holding, self)

    def do(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self.jobs.append((job, then))

    def work(self) -> None:
        """Do all that is in the worker, and what comes of it."""
        while self.jobs:
            job, then = self.jobs.pop(0)
            try:
                result = job()
            except ParamstreamError as error:
                result = error
            then(result)

    def assign(self, slots: Sequence[int], generation: int = 1) -> None:
        self.owning.assign(Ownership(generation, frozenset(slots), (Owner("bench", "tcp://bench", tuple(slots)),)))

    def write(self, partition: PartitionId, payload: Payload, bulk: Sequence[Buffer]) -> int:
        owned = self.partitions.owned[partition]
        for effect in owned.core.write(payload, bulk, time.monotonic_ns()):
            if hasattr(effect, "lasting"):
                owned.append(cast(Any, effect))
        return owned.core.sequenced

    def when_durable(self, needs: dict[PartitionId, int], then: Callable[[], None]) -> None:
        self.pending.when(needs, then)

    def look_again(self) -> None:
        self.pending.durable_moved()

    def drop_followers(self, partition: PartitionId) -> None:
        self.deleted.append(partition)

    def send_away(self) -> None:
        self.sent_away += 1


class Clock:
    """What `Owning` takes for the time; and its random waits are half a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("paramstream.brokers.owning.time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr("paramstream.brokers.owning.random", SimpleNamespace(uniform=self._uniform))

    def _uniform(self, low: float, high: float) -> float:
        assert low <= 0.5 <= high
        return 0.5


@pytest.fixture
def store() -> SharedStore:
    return SharedStore()


def make_topic(bench: Bench) -> None:
    """A topic of one state partition, with 7 for its id."""
    entry, _ = bench.partitions.meta.create_topic(CreateTopic("model", 1, "write_back", 8, False), 7)
    assert entry is not None
    bench.write(META, entry.payload, entry.bulk)
    bench.partitions.log.create_topic(7, "model", 2)
    bench.owning.reconcile()
    bench.work()


def test_a_broker_without_slots_is_not_settled(store: SharedStore) -> None:
    bench, settled = Bench(store.open("one")), list[str]()
    bench.owning.when_settled(lambda: settled.append("now"))
    bench.owning.reconcile()
    assert not bench.owning.is_settled and not bench.jobs
    bench.assign(ALL)
    assert not settled
    bench.work()
    assert bench.owning.is_settled and settled == ["now"] and META in bench.partitions.owned


def test_what_another_broker_claimed_is_claimed_again_after_waits_that_double(
    store: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    bench = Bench(store.open("one"))
    bench.assign(ALL)
    bench.work()
    waits: list[float] = []
    for _ in range(9):
        bench.owning.stopped(bench.partitions.owned[META], Fenced("another one"))
        assert META not in bench.partitions.owned and not bench.owning.is_settled and not bench.jobs
        waited = 0.0
        while not bench.jobs:
            clock.now += 0.25
            waited += 0.25
            bench.owning.tick(clock.now)
        waits.append(waited)
        bench.work()
        assert bench.owning.is_settled
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    clock.now += 100
    bench.owning.stopped(bench.partitions.owned[META], Fenced("another one, much later"))
    clock.now += 0.5
    bench.owning.tick(clock.now)
    assert bench.jobs, "the first wait is short again"


def test_what_is_no_longer_assigned_is_not_claimed_again(store: SharedStore) -> None:
    bench = Bench(store.open("one"))
    bench.assign(ALL)
    bench.work()
    bench.owning.stopped(bench.partitions.owned[META], Fenced("another one"))
    bench.assign((), generation=2)
    bench.owning.tick(time.monotonic() + 100)
    assert not bench.jobs and not bench.partitions.owned


def test_an_opening_that_fails_is_tried_again_and_one_that_comes_too_late_is_given_back(
    store: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, bench = Clock(monkeypatch), Bench(store.open("one"))
    bench.assign(ALL)
    _, then = bench.jobs.pop()
    then(ConnectFailed("the log does not answer"))
    assert not bench.owning.is_settled and not bench.jobs
    clock.now += 1
    bench.owning.tick(clock.now)
    job, then = bench.jobs.pop()
    opened = job()
    bench.assign((), generation=2)
    then(opened)
    assert not bench.partitions.owned
    with pytest.raises(Fenced):
        opened.log.append(bytearray(opened.core.base()))


def test_revoking_leaves_every_partition_by_one_note_and_what_stays_is_gone_on_with(store: SharedStore) -> None:
    bench = Bench(store.open("one"))
    bench.assign(ALL)
    bench.work()
    make_topic(bench)
    topic = (7, 0)
    core, done = bench.partitions.owned[topic].core, list[str]()
    bench.owning.revoke(lambda: done.append("once"))
    assert not done and bench.holding.must_wait(topic), "the note is not durable"
    bench.owning.revoke(lambda: done.append("twice"))
    for owned in bench.partitions.owned.values():
        owned.core.synced(owned.log.sync())
    bench.look_again()
    assert done == ["once", "twice"]
    kinds = [frame for frame in store.counting(topic) if frame.kind is Kind.NOTE]
    assert [frame.payload for frame in kinds] == [Note(leaves=True)]
    epoch = core.epoch
    bench.assign(ALL, generation=2)
    assert bench.sent_away == 2 and not bench.holding.must_wait(topic)
    assert bench.owning.is_settled and bench.partitions.owned[topic].core is core and core.epoch == epoch


def test_a_partition_that_stops_while_slots_go_is_not_waited_for(store: SharedStore) -> None:
    bench = Bench(store.open("one"))
    bench.assign(ALL)
    bench.work()
    owned, done = bench.partitions.owned[META], list[str]()
    bench.write(META, Note(), ())
    bench.owning.revoke(lambda: done.append("done"))
    assert not done
    owned.error = ConnectFailed("nothing more")
    bench.owning.stopped(owned, owned.error)
    assert done == ["done"]


def test_a_topic_that_is_deleted_while_slots_go_is_not_waited_for(store: SharedStore) -> None:
    bench = Bench(store.open("one"))
    bench.assign(ALL)
    bench.work()
    make_topic(bench)
    topic, done = (7, 0), list[str]()
    bench.owning.revoke(lambda: done.append("done"))
    entry, _ = bench.partitions.meta.delete_topic("model")
    bench.write(META, entry.payload, entry.bulk)
    store.open("another").drop_topic(7)
    meta = bench.partitions.owned[META]
    meta.core.synced(meta.log.sync())
    bench.look_again()
    assert not done and bench.holding.must_wait(topic)
    bench.owning.reconcile()
    assert done == ["done"] and sorted(bench.deleted) == [(7, 0), (7, 1)] and not bench.holding.must_wait(topic)
    bench.assign(ALL, generation=2)
    assert bench.owning.is_settled and list(bench.partitions.owned) == [META]
