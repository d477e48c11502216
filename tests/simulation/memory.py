"""What a broker's memory holds of a topic with persistence "none", watched: it ends with each epoch."""

from __future__ import annotations

from collections.abc import Iterable

from paramstream.brokers.takeover import claim_record
from paramstream.consistency.position import epoch_of
from paramstream.consistency.vector import PartitionId
from paramstream.eventlog.log import Batch
from paramstream.eventlog.memory import MemoryPartition
from paramstream.events.codec import Buffer, EventFrame, decode_event
from paramstream.events.kinds import Claim

from .standing import SimLog, is_record

ALL_BYTES = 1 << 30


class StandsForAnEpoch(SimLog):
    """What stands until the next epoch begins."""

    def __init__(self, partition: PartitionId) -> None:
        super().__init__(partition)
        self.start = 0

    def forget(self, start: int) -> None:
        """At this start of a broker a new epoch begins, and every session is told."""
        self.lost.update((frame.position, start) for frame in self.events())
        self.frames.clear()
        self.start = start


class WatchedMemory:
    """A partition of a `MemoryLog`; see `eventlog.log.PartitionLog`."""

    def __init__(self, memory: MemoryPartition, stands: StandsForAnEpoch) -> None:
        self._memory = memory
        self._stands = stands

    @property
    def start(self) -> int:
        return self._memory.start

    @property
    def wants_base(self) -> bool:
        return self._memory.wants_base

    def replay(self, records: Iterable[EventFrame], owner: str) -> None:
        """What stands in the log that lasts, as `brokers.opening` has it: readers that were away find every epoch record."""
        for record in records:
            self.append(claim_record(self._memory.partition, epoch_of(record.position), record.nonce, owner))
            self.append(record.buffer)

    def append(self, frame: Buffer) -> None:
        self._memory.append(frame)
        decoded = decode_event(bytes(frame))
        if isinstance(decoded.payload, Claim):
            self._stands.starts[decoded.payload.epoch] = self._stands.start
        if is_record(decoded):
            self._stands.frames.append(decoded)

    def sync(self) -> int:
        return self._memory.sync()

    def read(self, after: int, max_bytes: int) -> Batch:
        return self._memory.read(after, max_bytes)

    def cut(self, before: int) -> int:
        return self._memory.cut(before)

    def check(self) -> None:
        """Readers are given what stands."""
        batch = self._memory.read(self.start, ALL_BYTES)
        self._stands.check([decode_event(frame) for frame in batch.frames], self.start)
