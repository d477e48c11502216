"""What a partition's log in Kafka holds when it is opened: the newest base that counts, and what counts behind it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...consistency.position import START
from ...errors import CorruptLog
from ...events.kinds import Kind
from ..counting import BEGINNING, Counting, Point
from .index import Entry, OffsetIndex
from .scan import Place, Scan, base_at, newest_mark, no_base_at_start


@dataclass(slots=True)
class Found:
    """A partition as it was read, up to the offset `end`."""

    end: int = 0
    """The log's end when reading began."""
    point: Point = BEGINNING
    """Reached at `end`."""
    base: memoryview | None = None
    base_offset: int = -1
    records: list[memoryview] = field(default_factory=list[memoryview])
    """Events, notes and epoch records that count behind the base."""
    index: OffsetIndex = field(default_factory=OffsetIndex)
    nbytes: int = 0
    """Of all frames appended since the partition was made."""
    start: int = START
    """The position before the first one that is held."""
    start_nbytes: int = 0
    """Of all frames appended before that."""


async def find(place: Place) -> Found:
    """Reads from the newest base on: the marks at the log's end name one not far from it.

    Raises what `Wire` raises, and `CorruptLog` where somebody else has removed records or a record is damaged.
    """
    start, end = await place.ends()
    found = Found(end)
    if end == 0:
        return found
    if start == end:
        raise CorruptLog(
            f"somebody else removed all {end} records of the Kafka topic {place.topic}", partition=place.number
        )
    counting, begin = Counting(), start
    if start:
        first = await base_at(place, start, end)
        if first is None:
            raise no_base_at_start(place, start)
        whole, point = first
        found.start = point.reached
        found.start_nbytes = whole.mark.nbytes if whole.mark is not None else 0
    found.nbytes = found.start_nbytes
    mark = await newest_mark(place, start, end)
    named = await base_at(place, mark.base, end) if mark is not None and mark.base > start else None
    if named is not None:
        whole, point = named
        counting, begin = Counting(point), whole.offset
        found.nbytes = whole.mark.nbytes if whole.mark is not None else found.nbytes
    await _read(place, found, counting, begin)
    return found


async def _read(place: Place, found: Found, counting: Counting, begin: int) -> None:
    scan = Scan(place, begin, found.end)
    while not scan.is_done:
        for whole in await scan.page():
            before = counting.point
            if not counting.takes(whole.prefix, whole.frame):
                continue
            kind = whole.prefix.kind
            if kind is Kind.BASE:
                before = counting.point  # At the log's start it sets the point that it stands at.
                found.base, found.base_offset = whole.frame, whole.offset
                found.records.clear()
            elif kind is not Kind.CLAIM:
                found.records.append(whole.frame)
            found.index.note(Entry(whole.offset, before, found.nbytes, kind is Kind.BASE))
            found.nbytes += len(whole.frame)
    found.point = counting.point
