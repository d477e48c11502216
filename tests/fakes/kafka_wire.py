"""A Kafka of one partition in memory, as far as `eventlog.kafka` reads one: the records, gaps as transactions leave them, and a start."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from paramstream.consistency.vector import PartitionId
from paramstream.eventlog.kafka.records import Record
from paramstream.eventlog.kafka.scan import Place
from paramstream.eventlog.kafka.wire import OutOfRange, Page, Wire

T = TypeVar("T")

Batch = list[tuple[bytes | None, memoryview]]


class KafkaInMemory:
    """Appends whole batches. Reads give whole batches, as Kafka does."""

    def __init__(self) -> None:
        self.batches = list[list[Record]]()
        self.start = 0
        """Offsets before it are deleted. The records stay in `batches` for whoever checks the truth."""
        self.end = 0

    def land(self, batch: Batch) -> int:
        """The offset of its first record."""
        first = self.end
        self.batches.append([Record(first + at, key, bytes(value)) for at, (key, value) in enumerate(batch)])
        self.end += len(batch)
        return first

    def land_marker(self) -> None:
        """What ends a transaction: it takes an offset and holds nothing."""
        self.end += 1

    def records(self) -> list[Record]:
        """All there ever were."""
        return [record for batch in self.batches for record in batch]

    # What `Wire` offers of it.

    async def ends(self, topic: str, number: int) -> tuple[int, int]:
        return self.start, self.end

    async def fetch(self, topic: str, number: int, offset: int, max_bytes: int) -> Page:
        if not self.start <= offset <= self.end:
            raise OutOfRange(f"{offset} is not in {self.start}..{self.end}")
        found, nbytes, next_offset = list[Record](), 0, offset
        for batch in self.batches:
            if batch[-1].offset < offset:
                continue
            size = sum(len(record.value) for record in batch)
            if found and nbytes + size > max_bytes:
                return Page(found, next_offset)
            found += batch
            nbytes, next_offset = nbytes + size, batch[-1].offset + 1
        return Page(found, self.end)

    async def delete_records(self, topic: str, number: int, before: int) -> None:
        self.start = max(self.start, before)

    def place(self, partition: PartitionId) -> Place:
        return Place(cast("Wire", self), "topic", partition)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that never has to wait."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    raise AssertionError("it waits")
