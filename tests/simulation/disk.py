"""A machine's disk with the real local log on it, watched."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from paramstream.consistency.vector import PartitionId
from paramstream.errors import CorruptLog
from paramstream.eventlog.local import LocalLog, partition_folder
from paramstream.eventlog.log import Batch, Recovered
from paramstream.eventlog.memory import MemoryPartition
from paramstream.eventlog.partition import LocalPartition
from paramstream.eventlog.tally import SEGMENTS_IN_LIMIT
from paramstream.events.codec import Buffer, EventFrame, decode_event

from .files import SimFiles
from .memory import StandsForAnEpoch, WatchedMemory
from .standing import SimLog

FOLDER = Path("/log")

SEGMENT_NBYTES = 4096
"""Small, so that a few events fill one."""

ALL_BYTES = 1 << 30


class Disk:
    """The files of a machine, its boot, and what stands in the logs of all partitions."""

    def __init__(self, limit: int = ALL_BYTES) -> None:
        self.files = SimFiles()
        self.logs: dict[PartitionId, SimLog] = {}
        self._lasting: dict[PartitionId, SimLog] = {}
        """Of partitions whose events are in memory only."""
        self.limit = limit
        """`log_limit`, in bytes. The size of segments does not follow from it here."""
        self.boots = 1
        self.starts = 0
        """Of brokers."""
        self._may_lose: set[PartitionId] = set()
        """Of which the next recovery may find less than was written: power or the disk has failed since the last one."""

    @property
    def boot(self) -> str:
        return f"boot-{self.boots}"

    def log(self, partition: PartitionId) -> SimLog:
        return self.logs.setdefault(partition, SimLog(partition))

    def lasting(self, partition: PartitionId) -> SimLog:
        """What its files hold: under persistence "none" claims and epoch records only."""
        return self._lasting.get(partition) or self.log(partition)

    def memory(self, memory: MemoryPartition) -> WatchedMemory:
        """A partition of a process that has started; what stood of it before is gone."""
        partition = memory.partition
        stands = self.logs.get(partition)
        if not isinstance(stands, StandsForAnEpoch):
            self._lasting[partition] = self.log(partition)
            stands = self.logs[partition] = StandsForAnEpoch(partition)
        stands.forget(self.starts)
        return WatchedMemory(memory, stands)

    def open(self) -> WatchedLog:
        """The log, for a process that has started. Raises what the log raises."""
        self.starts += 1
        return WatchedLog(self, LocalLog(FOLDER, SEGMENTS_IN_LIMIT * SEGMENT_NBYTES, boot=self.boot, disk=self.files))

    def kill(self, chance: random.Random) -> None:
        """Of whoever had the log open nothing goes on; what it wrote is there."""
        self._may_lose |= {partition for partition in self.logs if folder_of(partition).name in self.files.failed}
        self.files.kill()
        if chance.random() < 0.3:
            self.files.forget_pages()

    def fail_power(self, chance: random.Random) -> None:
        self.kill(chance)
        self._may_lose |= self.logs.keys()
        self.boots += 1
        self.files.fail_power(chance)

    def mend(self) -> None:
        """Nothing fails any more that has not failed yet."""
        self.files.mend()

    def recovered(self, found: Recovered, records: list[EventFrame], partition: PartitionId) -> None:
        self.lasting(partition).recovered(found, records, may_lose=partition in self._may_lose)
        self._may_lose.discard(partition)


class WatchedPartition:
    """A partition of a `LocalLog`; see `eventlog.log.PartitionLog`. What it says is held against what it was given."""

    def __init__(self, disk: Disk, log: LocalPartition) -> None:
        self._disk = disk
        self._log = log
        self._holds = disk.lasting(log.partition)

    @property
    def partition(self) -> PartitionId:
        return self._log.partition

    @property
    def start(self) -> int:
        return self._log.start

    @property
    def nbytes(self) -> int:
        return self._log.nbytes

    @property
    def trouble(self) -> str:
        return self._log.trouble

    @property
    def wants_base(self) -> bool:
        return self._log.wants_base

    def recover(self) -> Recovered:
        found = self._log.recover()
        records = list(found.records)
        self._disk.recovered(found, records, self.partition)
        return replace(found, records=iter(records))

    def claim(self, frame: Buffer) -> Iterator[EventFrame]:
        self.append(frame)
        return iter(())

    def append(self, frame: Buffer) -> None:
        self._holds.appending(frame, self._disk.starts)
        self._log.append(frame)
        self._holds.appended()

    def sync(self) -> int:
        position = self._log.sync()
        self._holds.synced(position)
        return position

    def read(self, after: int, max_bytes: int) -> Batch:
        return self._log.read(after, max_bytes)

    def cut(self, before: int) -> int:
        return self._log.cut(before)

    def check(self) -> None:
        """Readers are given what stands."""
        frames, after = list[EventFrame](), self.start
        try:
            while batch := self._log.read(after, ALL_BYTES).frames:
                frames += map(decode_event, batch)
                after = frames[-1].position
        except CorruptLog as error:
            self._holds.problems.append(f"the log of {self.partition} cannot be read: {error}")
        else:
            self._holds.check(frames, self.start)


class WatchedLog:
    """All partitions of one process; see `eventlog.log.EventLog`."""

    def __init__(self, disk: Disk, log: LocalLog) -> None:
        self._disk = disk
        self._log = log
        self._partitions: dict[PartitionId, WatchedPartition] = {}

    shared = False
    durable_on_append = False

    @property
    def boot(self) -> str:
        return self._log.boot

    @property
    def failed_writes(self) -> int:
        return self._log.failed_writes

    @property
    def segment_nbytes(self) -> int:
        return self._log.segment_nbytes

    @property
    def nbytes(self) -> int:
        return self._log.nbytes

    @property
    def limit(self) -> int:
        return self._disk.limit

    def partitions(self) -> list[PartitionId]:
        return self._log.partitions()

    def create_topic(self, topic: int, name: str, partitions: int) -> None:
        self._log.create_topic(topic, name, partitions)

    def describe_topic(self, topic: int) -> Mapping[str, str]:
        return self._log.describe_topic(topic)

    def open(self, partition: PartitionId) -> WatchedPartition:
        found = self._partitions.get(partition)
        if found is None:
            found = self._partitions[partition] = WatchedPartition(self._disk, self._log.open(partition))
        return found

    def drop_topic(self, topic: int) -> None:
        self._log.drop_topic(topic)

    def close(self) -> None:
        self._log.close()


def folder_of(partition: PartitionId) -> Path:
    return partition_folder(FOLDER, partition)
