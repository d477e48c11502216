"""Where a segment can be read from: a few of its offsets, each with the point that is reached there.

An index of a closed segment lies beside it in a file. It is never needed: where it is missing, old or damaged it is made
again from the segment.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from ..events.digest import checksum
from .counting import Point

SUFFIX = ".index"
STEP_NBYTES = 64 * 1024
"""At least so many bytes of records lie between two entries: what a read passes over at most, beside one record."""

_HEADER = struct.Struct("<4sIQQQ")  # magic, format, number of the segment, its end, checksum of the entries
_MAGIC = b"PSIX"
_FORMAT = 1
_ENTRY = struct.Struct("<QQQI")


class Entry(NamedTuple):
    offset: int
    point: Point
    """What is reached before the record at `offset`."""


class Index:
    """Entries in order. Grows at the end while its segment does."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = list(entries)
        assert self._entries, "the first entry is the segment's beginning"

    def note(self, offset: int, point: Point) -> None:
        """A record begins at `offset`; kept where the last entry is far enough."""
        if offset - self._entries[-1].offset >= STEP_NBYTES:
            self._entries.append(Entry(offset, point))

    def find(self, after: int) -> Entry:
        """The last entry from which every record behind position `after` is met."""
        index = bisect_right(self._entries, after, key=lambda entry: entry.point.reached) - 1
        return self._entries[max(index, 0)]

    def cut(self, end: int) -> None:
        """The segment ends at `end` now."""
        while len(self._entries) > 1 and self._entries[-1].offset >= end:
            self._entries.pop()

    def encode(self, number: int, end: int) -> bytes:
        entries = b"".join(
            _ENTRY.pack(offset, point.epoch, point.reached, point.nonce) for offset, point in self._entries
        )
        return _HEADER.pack(_MAGIC, _FORMAT, number, end, checksum(entries)) + entries

    @classmethod
    def decode(cls, data: bytes, number: int, end: int) -> Index | None:
        """None where `data` is no whole index of that segment as it is now."""
        if len(data) <= _HEADER.size or (len(data) - _HEADER.size) % _ENTRY.size:
            return None
        entries = data[_HEADER.size :]
        if _HEADER.unpack_from(data) != (_MAGIC, _FORMAT, number, end, checksum(entries)):
            return None
        return cls(
            Entry(offset, Point(epoch, nonce, reached)) for offset, epoch, reached, nonce in _ENTRY.iter_unpack(entries)
        )
