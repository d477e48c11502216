"""Reads one partition's records in Kafka: page by page, at an offset, from the end."""

from __future__ import annotations

from typing import NamedTuple

from ...consistency.vector import PartitionId
from ...errors import CorruptLog
from ...events.codec import decode_event
from ...events.kinds import Base, Kind
from ..counting import Point
from .records import MAX_VALUE_BYTES, Assembler, Mark, Whole
from .wire import Page, Trouble, Wire

PAGE_BYTES = 4 * 1024 * 1024
"""What one fetch asks for at most while a log is read in order."""

SMALL_PAGE_BYTES = 1
"""For one batch: Kafka gives it whole, however large."""

MAX_EMPTY_PAGES = 20
"""So often a fetch below the log's end may bring nothing before it is a `Trouble`."""

_STEPS_BACK = 4
"""How far back from the end a mark is looked for, in powers of 16 records."""


class Place(NamedTuple):
    """A partition and where it is in Kafka."""

    wire: Wire
    topic: str
    """Kafka's name for it."""
    partition: PartitionId

    @property
    def number(self) -> int:
        return self.partition[1]

    async def fetch(self, offset: int, max_bytes: int) -> Page:
        return await self.wire.fetch(self.topic, self.number, offset, max_bytes)

    async def ends(self) -> tuple[int, int]:
        return await self.wire.ends(self.topic, self.number)


class Scan:
    """Whole frames from one offset to another, in order. After a `Trouble` it may be asked again."""

    def __init__(self, place: Place, offset: int, end: int) -> None:
        self._place = place
        self._assembler = Assembler(place.partition)
        self._empty_pages = 0
        self.offset = offset
        """Read so far."""
        self.end = end

    @property
    def is_done(self) -> bool:
        return self.offset >= self.end

    async def page(self, max_bytes: int = PAGE_BYTES) -> list[Whole]:
        """The next ones; may be none, while there are more. Raises what `Wire.fetch` raises, and `CorruptLog`."""
        page = await self._place.fetch(self.offset, max_bytes)
        self._empty_pages = 0 if page.next_offset > self.offset else self._empty_pages + 1
        if self._empty_pages > MAX_EMPTY_PAGES:
            raise Trouble(f"{self._place.topic}/{self._place.number} shows nothing at offset {self.offset}")
        found = list[Whole]()
        for record in page.records:
            if self.offset <= record.offset < self.end:
                try:
                    whole = self._assembler.take(record)
                except CorruptLog:
                    if not found:
                        raise
                    self.offset = record.offset  # What stands before it is given first; it is met again.
                    return found
                if whole is not None:
                    found.append(whole)
        # What came with it from behind the end is for whoever asks from there.
        self.offset = min(page.next_offset, self.end)
        return found


async def base_at(place: Place, offset: int, end: int) -> tuple[Whole, Point] | None:
    """The base whose first record stands at `offset`, and the point it stands at; None where none does."""
    scan = Scan(place, offset, end)
    nbytes = 0
    while not scan.is_done:
        for whole in await scan.page(SMALL_PAGE_BYTES if not nbytes else PAGE_BYTES):
            if whole.offset != offset or whole.prefix.kind is not Kind.BASE:
                return None
            payload = decode_event(whole.frame).payload
            assert isinstance(payload, Base)
            return whole, Point(payload.epoch, whole.prefix.nonce, whole.prefix.position)
        nbytes += MAX_VALUE_BYTES
    return None


async def newest_mark(place: Place, start: int, end: int) -> Mark | None:
    """The mark near the log's end that names the latest base; None where none is found there."""
    for power in range(_STEPS_BACK):
        offset = max(start, end - 16**power)
        page = await place.fetch(offset, SMALL_PAGE_BYTES if not power else PAGE_BYTES)
        marks = [mark for record in page.records if (mark := Mark.decode(record.key)) is not None]
        if marks:
            return max(marks, key=lambda mark: mark.base)
        if offset == start:
            break
    return None


def no_base_at_start(place: Place, start: int) -> CorruptLog:
    return CorruptLog(
        f"the Kafka topic {place.topic} begins at offset {start}, and no base stands there: somebody else removed records",
        partition=place.number,
        remedy="Restore from a snapshot, and leave retention of this topic to paramstream",
    )
