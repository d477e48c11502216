"""Which bytes of a file are in use: pieces are taken where they fit best, and freed ones are used again. No I/O."""

from __future__ import annotations

from typing import Final

from sortedcontainers import SortedDict, SortedList

UNIT_BYTES: Final = 64
"""What a piece is rounded up to, so that small remains do not pile up. A piece never needs more alignment than a cache line."""


class Extents:
    """Pieces of the bytes 0 to `end`; all above the last piece is free and not counted."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: bytes that `end` may not pass."""
        self.capacity: Final = capacity
        self.end = 0
        """Where the last piece ends."""
        self.used = 0
        """Bytes of all pieces, rounded up."""
        self._free_at: SortedDict[int, int] = SortedDict()
        """Offset → bytes of each hole below `end`; no two of them touch, and none touches `end`."""
        self._by_size: SortedList[tuple[int, int]] = SortedList()
        """(bytes, offset) of the same holes."""

    def find(self, nbytes: int) -> int | None:
        """Where a piece of `nbytes` (≥ 1) would go: into the smallest hole that holds it, else to the end; None where there is no room."""
        size = rounded(nbytes)
        for _, offset in self._by_size.irange(minimum=(size, 0)):
            return offset
        return self.end if self.end + size <= self.capacity else None

    def take(self, offset: int, nbytes: int) -> None:
        """Uses what `find(nbytes)` has just found."""
        size = rounded(nbytes)
        if offset == self.end:
            self.end += size
        else:
            hole = self._remove_hole(offset)
            if hole > size:
                self._add_hole(offset + size, hole - size)
        self.used += size

    def give(self, offset: int, nbytes: int) -> None:
        """Frees a piece that was taken."""
        size = rounded(nbytes)
        self.used -= size
        after = offset + size
        if after in self._free_at:
            size += self._remove_hole(after)
        at = self._free_at.bisect_left(offset) - 1
        if at >= 0:
            before, hole = self._free_at.peekitem(at)
            if before + hole == offset:
                self._remove_hole(before)
                offset, size = before, hole + size
        if offset + size == self.end:
            self.end = offset
        else:
            self._add_hole(offset, size)

    def _add_hole(self, offset: int, size: int) -> None:
        self._free_at[offset] = size
        self._by_size.add((size, offset))

    def _remove_hole(self, offset: int) -> int:
        size = self._free_at.pop(offset)
        self._by_size.remove((size, offset))
        return size


def rounded(nbytes: int) -> int:
    """What a piece of `nbytes` takes."""
    return -(-nbytes // UNIT_BYTES) * UNIT_BYTES
