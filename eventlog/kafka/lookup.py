"""Reads events of one partition in Kafka by position, from the nearest place that is known.

What lies before the first known place is found from base to base: each names the one before it.
"""

from __future__ import annotations

from threading import Condition

from ...errors import CorruptLog
from ...events.kinds import LOG_ONLY_KINDS, Kind
from ..counting import BEGINNING, Counting
from .index import Entry, OffsetIndex
from .records import Whole
from .scan import PAGE_BYTES, Place, Scan, base_at

SPARE_BYTES = 1024 * 1024
"""A page asks for so much more than is wanted: what may lie between the place and the first event."""


class Lookup:
    """Runs in the Kafka thread. `lock` guards `index`, which others use too, and is held for moments."""

    def __init__(self, place: Place, index: OffsetIndex, lock: Condition) -> None:
        self._place = place
        self._index = index
        self._lock = lock

    async def read(self, after: int, max_bytes: int, end: int) -> tuple[list[memoryview], bool]:
        """Frames that stand behind position `after` and before the offset `end`, up to `max_bytes` but at least one.

        And whether that is all that is wanted: there was more. Damage behind the first frame ends them, too.
        Raises `OutOfRange` where records are gone, `CorruptLog` where the first one is damaged.
        """
        entry = await self.entry_before(after, end)
        scan, counting, nbytes_before = Scan(self._place, entry.offset, end), Counting(entry.point), entry.nbytes
        frames, nbytes = list[memoryview](), 0
        while not scan.is_done:
            try:
                wholes = await scan.page(min(PAGE_BYTES, max_bytes + SPARE_BYTES))
            except CorruptLog:
                if not frames:
                    raise
                return frames, True
            for whole in wholes:
                before = counting.point
                if not counting.takes(whole.prefix, whole.frame):
                    continue
                self._note(Entry(whole.offset, before, nbytes_before, whole.prefix.kind is Kind.BASE))
                nbytes_before += len(whole.frame)
                if whole.prefix.position <= after or whole.prefix.kind in LOG_ONLY_KINDS:
                    continue
                if frames and nbytes + len(whole.frame) > max_bytes:
                    return frames, True
                frames.append(whole.frame)
                nbytes += len(whole.frame)
        return frames, False

    async def entry_before(self, after: int, end: int) -> Entry:
        """The last known place from which every record behind `after` is met. Goes back from base to base until there is one."""
        while True:
            with self._lock:
                entry, first = self._index.find(after), self._index.first
            if entry is not None:
                return entry
            start, _ = await self._place.ends()
            known = await base_at(self._place, first.offset, end) if first is not None and first.is_base else None
            mark = known[0].mark if known is not None else None
            earlier = await base_at(self._place, mark.base, end) if mark is not None and mark.base >= start else None
            if earlier is None:
                return await self._first_entry(start, end)
            whole, point = earlier
            self._note(Entry(whole.offset, point, _nbytes_before(whole), is_base=True))

    async def _first_entry(self, start: int, end: int) -> Entry:
        found = await base_at(self._place, start, end)
        if found is None:
            return Entry(start, BEGINNING, 0)
        return Entry(start, found[1], _nbytes_before(found[0]), is_base=True)

    def _note(self, entry: Entry) -> None:
        with self._lock:
            self._index.note(entry)


def _nbytes_before(whole: Whole) -> int:
    return whole.mark.nbytes if whole.mark is not None else 0
