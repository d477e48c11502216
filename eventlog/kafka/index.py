"""Where one partition's log in Kafka can be read from: a few of its offsets, each with the point that is reached there.

Kept in memory only, while appending and reading. Bases are entries always: the log is cut before one, and what lies before the
first entry is found through the base before it (`records.Mark`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from ..counting import Point

STEP_NBYTES = 1024 * 1024
"""At least so many bytes lie between two entries that are no bases: a page of a read."""


class Entry(NamedTuple):
    offset: int
    point: Point
    """What is reached before the record at `offset`."""
    nbytes: int
    """Of all frames appended before it."""
    is_base: bool = False


class OffsetIndex:
    """Entries by offset. Not thread-safe."""

    def __init__(self) -> None:
        self._entries = list[Entry]()

    @property
    def first(self) -> Entry | None:
        return self._entries[0] if self._entries else None

    @property
    def last_base(self) -> Entry | None:
        return next((entry for entry in reversed(self._entries) if entry.is_base), None)

    def note(self, entry: Entry) -> None:
        """Keep it where it is far enough from its neighbours, and a base always."""
        at = bisect_left(self._entries, entry.offset, key=_offset)
        if at < len(self._entries) and self._entries[at].offset == entry.offset:
            return
        if not entry.is_base:
            if at and entry.nbytes - self._entries[at - 1].nbytes < STEP_NBYTES:
                return
            if at < len(self._entries) and self._entries[at].nbytes - entry.nbytes < STEP_NBYTES:
                return
        self._entries.insert(at, entry)

    def find(self, after: int) -> Entry | None:
        """The last entry from which every record behind position `after` is met; None where that lies before the first."""
        at = bisect_right(self._entries, after, key=_reached)
        return self._entries[at - 1] if at else None

    def base_before(self, position: int) -> Entry | None:
        """The newest base at a position below `position`."""
        at = bisect_left(self._entries, position, key=_reached)
        return next((entry for entry in reversed(self._entries[:at]) if entry.is_base), None)

    def cut(self, offset: int) -> None:
        """The log begins at `offset` now."""
        del self._entries[: bisect_left(self._entries, offset, key=_offset)]


def _offset(entry: Entry) -> int:
    return entry.offset


def _reached(entry: Entry) -> int:
    return entry.point.reached
