"""The keeper's work: a replica of every topic, and a snapshot of each by what was appended and by time.

It deletes rows that were not written for the time that their table says (`expiring.py`). Where the log has changelogs, the replica's state goes there too, of the partitions that the keeper's broker owns; a snapshot is
announced, and lets the log be trimmed, only once they have come as far.

with Keeping("tcp://127.0.0.1:7777", Path(DIR), identity) as keeping:
    while ...:
        keeping.step(time.monotonic())
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from ..consistency.position import START
from ..consistency.vector import PartitionId
from ..errors import CorruptLog, EventLost, Fenced, LogTruncated, ParamstreamError
from ..eventlog.changelog import Changelogs
from ..tiers.store import TieredStore
from ..transport.calls import (
    BrokerRecord,
    DescribeBroker,
    DescribePartitions,
    PartitionLoad,
    PartitionRecord,
    TopicRecord,
)
from ..transport.directory import Directory
from ..transport.link import Handler, Link
from ..transport.messages import FORMAT, AnyMessage, Fetched, Heartbeat, Hello, Welcome
from ..transport.slots import slot_of
from .changelog.seeding import seed_of
from .changelog.writing import WriteBack
from .due import INTERVAL_S, Kept, LogLoad, Reached
from .expiring import Delete, Expiring
from .replica import Replica
from .snapshots.announcing import announce
from .snapshots.folder import topic_folder
from .snapshots.seeding import Seed
from .status import KEEPER_PREFIX

_log = logging.getLogger(__name__)

MOST_BYTES = 64 * 1024 * 1024
"""So much appended to a topic's state is worth a snapshot, ..."""

LOG_SHARE = 16
"""... and this part of the broker's log, divided among its topics, where that is less."""

RETRY_S = (1.0, 60.0)
"""First and longest pause after a failure; it doubles with each one, so that a full disk costs little."""

MEMORY_SHARE = 0.75
"""A topic's state takes at most this part of the machine's memory, and then goes to disk."""

TIERS = "tiers"
"""Under the keeper's folder: what of its replicas' state lies on disk. It is of no use to anybody else, or to the next process."""

SSD = "1TiB"
"""The disk itself is the limit."""

ANSWER_S = 10.0
SNAPSHOT_S = 3600.0
"""How long a snapshot may take: a table of hundreds of gigabytes, or large weights on a slow disk."""

START_S = 120.0


class _Topic:
    """What the keeper does for one topic."""

    def __init__(self, record: TopicRecord, kept: Kept) -> None:
        self.record = record
        self.kept = kept
        self.replica: Replica | None = None
        self.store: TieredStore | None = None
        self.writing: WriteBack | None = None
        self.expiring: Expiring | None = None
        self.error = ""
        self.expiry_error = ""
        self.retry_at = 0.0
        self._pause_s = RETRY_S[0]

    def failed(self, error: Exception, now: float) -> None:
        self.error = f"{self.record.name}: {type(error).__name__}: {error}"
        self.retry_at, self._pause_s = now + self._pause_s, min(2 * self._pause_s, RETRY_S[1])

    def succeeded(self) -> None:
        self.error, self.retry_at, self._pause_s = "", 0.0, RETRY_S[0]

    def close(self) -> None:
        self.end_writing()
        expiring, self.expiring = self.expiring, None
        if expiring is not None:
            expiring.close()
        replica, self.replica = self.replica, None
        store, self.store = self.store, None
        if replica is not None:
            replica.close()
        if store is not None:
            store.close()

    def end_writing(self) -> None:
        writing, self.writing = self.writing, None
        if writing is not None:
            writing.close(ANSWER_S)


class Keeping:
    """One keeper. Everything in one thread; a context manager."""

    def __init__(
        self,
        endpoint: str,
        folder: Path,
        identity: str,
        *,
        interval_s: float = INTERVAL_S,
        most_bytes: int = MOST_BYTES,
        changelogs: Changelogs | None = None,
        broker: str = "",
        delete: Delete | None = None,
        timeout: float = ANSWER_S,
    ) -> None:
        """`changelogs`: where the state goes of the partitions that `broker` (as in its `Welcome`) owns. `delete` publishes that rows
        of those have expired; without it none do. Raises `ConnectFailed`.
        """
        self._endpoint = endpoint
        self._folder = folder
        self._identity = identity
        self._interval_s = interval_s
        self._most_bytes = most_bytes
        self._changelogs = changelogs
        self._delete = delete
        self._topics: dict[int, _Topic] = {}
        self._owner = _Owner(broker)
        self._link = Link([endpoint], self._owner, lambda: Hello(FORMAT), "keeper")
        self._directory = Directory(self._link.request)
        self._error = ""
        # What a process that was killed has left is of no use, and its topics may be gone.
        shutil.rmtree(folder / TIERS, ignore_errors=True)
        self._link.start(timeout)

    @property
    def error(self) -> str:
        """What keeps it from its work now; empty where nothing does."""
        writing = (topic.writing for topic in self._topics.values())
        failed = (
            f"{error.code}: {error}" for each in writing if each is not None and (error := each.error) is not None
        )
        errors = (said for topic in self._topics.values() if (said := topic.error or topic.expiry_error))
        return self._error or next(errors, "") or next(failed, "")

    def step(self, now: float) -> None:
        """Do what is due. Raises nothing that may pass: that shows in `error`, and is tried again later."""
        try:
            self._look(now)
            broker: BrokerRecord = self._directory.request(DescribeBroker(), BrokerRecord, ANSWER_S)
        except ParamstreamError as error:
            self._error = f"{type(error).__name__}: {error}"
            return
        self._error = ""
        loads = {(load.topic, load.partition): load for load in broker.partitions}
        share = min(self._most_bytes, broker.log_limit // (LOG_SHARE * max(1, len(self._topics))))
        is_pressed = broker.log_bytes > broker.log_limit // 2
        for topic in self._topics.values():
            if now >= topic.retry_at:
                self._keep(topic, loads, share, is_pressed, now)

    def close(self) -> None:
        for topic in self._topics.values():
            topic.close()
        self._link.close(ANSWER_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _look(self, now: float) -> None:
        """Take up new topics, and leave those that were deleted."""
        records = {record.id: record for record in self._directory.refresh(ANSWER_S)}
        for topic_id in self._topics.keys() - records.keys():
            topic = self._topics.pop(topic_id)
            topic.close()
            # Deleted while we looked on: nobody will ask for its state.
            with suppress(OSError):
                shutil.rmtree(topic_folder(self._folder, topic.record.name, topic_id))
            shutil.rmtree(self._tier(topic.record), ignore_errors=True)
        for topic_id in records.keys() - self._topics.keys():
            self._topics[topic_id] = _Topic(records[topic_id], Kept(now, self._interval_s))

    def _keep(
        self, topic: _Topic, loads: Mapping[PartitionId, PartitionLoad], share: int, is_pressed: bool, now: float
    ) -> None:
        began = time.monotonic()
        try:
            replica = self._replica(topic)
            self._expire(topic, replica)
            self._write_back(topic, replica)
            reached = _reached(topic, replica, loads)
            held = sum(loads[p].log_bytes for p in _state(topic.record) if p in loads)
            if not topic.kept.is_due(reached, LogLoad(held, share, is_pressed), now):
                return
            floors = self._snapshot(topic, replica)
        except (ParamstreamError, OSError) as error:
            topic.failed(error, now)
            if isinstance(error, Fenced):
                # Its partitions went to another broker, whose keeper writes them now; or come back, and are taken up again.
                topic.end_writing()
            if topic.replica is not None and topic.replica.status().stopped:
                topic.close()
        else:
            topic.kept.made(reached._replace(applied=floors), now, time.monotonic() - began)
            topic.succeeded()

    def _snapshot(self, topic: _Topic, replica: Replica) -> tuple[int, ...]:
        """Make one and announce it, once the changelogs have come as far; returns its floors."""
        record = topic.record
        (made,) = replica.snapshot(self._folder, SNAPSHOT_S)
        floors = tuple(made.floor.get((record.name, number), START) for number in range(record.partitions))
        if topic.writing is not None:
            topic.writing.wait(dict(zip(_state(record), floors, strict=True)), SNAPSHOT_S)
        announce(self._directory, self._identity, self._folder, record, ANSWER_S)
        return floors

    def _expire(self, topic: _Topic, replica: Replica) -> None:
        """Delete rows whose time is over. What keeps it from that keeps it from nothing else."""
        if self._delete is None:
            return
        if topic.expiring is None:
            topic.expiring = replica.expiring(self._folder, self._delete)
        try:
            topic.expiring.step([each for each in _state(topic.record) if self._owner.owns(each)], time.monotonic)
            topic.expiry_error = ""
        except ParamstreamError as error:
            topic.expiry_error = f"{topic.record.name}: rows do not expire: {error.code}: {error}"

    def _write_back(self, topic: _Topic, replica: Replica) -> None:
        """Write back what the keeper's broker owns by now. Raises `Fenced` where somebody else writes it."""
        if self._changelogs is None or topic.record.persistence == "none":
            return
        owned = [partition for partition in _state(topic.record) if self._owner.owns(partition)]
        if topic.writing is not None and topic.writing.partitions != owned:
            topic.end_writing()
        if topic.writing is None and owned:
            topic.writing = replica.write_back(self._changelogs, partitions=[number for _, number in owned])
        if topic.writing is not None and isinstance(topic.writing.error, Fenced):
            raise topic.writing.error

    def _replica(self, topic: _Topic) -> Replica:
        if topic.replica is not None:
            if topic.replica.status().stopped:
                topic.close()
            else:
                return topic.replica
        numbers = range(topic.record.partitions)
        described = self._directory.request(
            DescribePartitions(topic.record.id, tuple(numbers)), list[PartitionRecord], ANSWER_S
        )
        topic.kept.is_trimmed = any(at.is_trimmed for at in described)
        failed: ParamstreamError | None = None
        for start, seeds in self._ways(topic.record, described):
            try:
                topic.store = self._store(topic.record)
                topic.replica = self._make(topic.record, start, seeds, topic.store)
            except (LogTruncated, CorruptLog, EventLost) as error:
                topic.close()
                failed = error
            else:
                return topic.replica
        assert failed is not None
        raise failed

    def _store(self, record: TopicRecord) -> TieredStore:
        """Memory as far as the machine has it to spare, then the disk on which the snapshots are: a table may be larger than memory."""
        return TieredStore(int(_memory_bytes() * MEMORY_SHARE), ssd=f"{self._tier(record)}:{SSD}")

    def _tier(self, record: TopicRecord) -> Path:
        return self._folder / TIERS / f"{record.id:016x}"

    def _ways(self, record: TopicRecord, described: Sequence[PartitionRecord]) -> Iterator[tuple[str, list[Seed]]]:
        """How its replica may begin: with its own last state; with what the log and the announced snapshots have; with what
        another broker's keeper, which may be gone with all that it had, has written to the changelogs.
        """
        if record.persistence == "none":
            yield "latest", []
            return
        yield "resume", []
        yield "latest", []
        if self._changelogs is not None:
            seed = seed_of(self._changelogs, record, [at.partition for at in described if at.is_trimmed])
            # Where a broker that was taken over has told where it stands, this may fail: the keeper tries again.
            for at in described:
                seed.check(at, record.name, record.persistence)
            yield "latest", [seed]

    def _make(self, record: TopicRecord, start: str, seeds: Sequence[Seed], store: TieredStore) -> Replica:
        return Replica(
            [record.name],
            directory=self._directory,
            make_link=self._make_link,
            name=f"{KEEPER_PREFIX}{self._identity[:12]}-{record.id:016x}",
            store=store,
            start=start,
            visibility="accepted" if self._changelogs is None or record.persistence == "none" else "durable",
            keep_versions=1,
            arrays="numpy",
            snapshot_dir=self._folder,
            seeds=seeds,
            timeout=START_S,
        )

    def _make_link(self, handler: Handler, hello: Callable[[], Hello], name: str) -> Link:
        return Link([self._endpoint], handler, hello, name)


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _state(record: TopicRecord) -> list[PartitionId]:
    return [(record.id, number) for number in range(record.partitions)]


def _reached(topic: _Topic, replica: Replica, loads: Mapping[PartitionId, PartitionLoad]) -> Reached:
    status, name = replica.status(), topic.record.name
    served = status.served.get(name)
    return Reached(
        appended=sum(loads[p].nbytes for p in _state(topic.record) if p in loads),
        version=0 if served is None else served.position,
        applied=tuple(status.applied.get((name, number), START) for number in range(topic.record.partitions)),
    )


class _Owner:
    """The handler of a link that only asks, and learns what the keeper's own broker owns."""

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._slots: frozenset[int] | None = None
        """None: all of them."""

    def owns(self, partition: PartitionId) -> bool:
        return self._slots is None or slot_of(partition) in self._slots

    def connected(self, welcome: Welcome) -> None:
        own = (owner.slots for owner in welcome.owners if owner.broker == self._broker)
        self._slots = frozenset(itertools.chain.from_iterable(own)) if welcome.owners else None

    def lost(self, error: ParamstreamError) -> None:
        """The next call says so."""

    def message(self, message: AnyMessage | Heartbeat) -> None:
        """Nothing is followed."""

    def event(self, frame: memoryview) -> None:
        """Nothing is followed."""

    def fetched(self, answer: Fetched, frames: list[memoryview]) -> None:
        """Nothing is fetched."""

    def drained(self) -> None:
        """Nothing is kept."""

    def tick(self, now: float) -> None:
        """Whoever asks has a deadline."""
