"""Columns of memory that grow in place: reserved once as addresses, and taken from the system as they are used.

A column never moves, so growing costs no copy, and its pages are huge ones (2 MiB) once it is larger than that: on pages of 4 KiB a
table that is larger than the processor's caches loses about a third of its speed.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_HUGE_PAGE_BYTES: Final = 2 << 20

_NO_RESERVE: Final = {"linux": 0x4000, "darwin": 0x40}.get(sys.platform, 0)
"""MAP_NORESERVE, which Python 3.11 has no name for: addresses alone, no promise of memory behind them."""


class Column:
    """`capacity` items of `width` numbers of one dtype each, of which the first `used` may be touched."""

    def __init__(self, capacity: int, width: int, dtype: np.dtype[Any]) -> None:
        """Takes addresses and no memory. Raises `OSError` where the system has no such range of addresses left."""
        self.item_bytes: Final = width * dtype.itemsize
        self.charged_bytes = 0
        """Bytes of the pages behind the items used."""
        self._capacity_bytes = max(mmap.PAGESIZE, capacity * self.item_bytes)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        self._mapping = mmap.mmap(-1, self._capacity_bytes + _HUGE_PAGE_BYTES, flags=flags)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            # Where the system gives huge pages unasked, the first rows of each small table would take one in each of its columns.
            with contextlib.suppress(OSError):
                self._mapping.madvise(mmap.MADV_NOHUGEPAGE)
        # Through bytes: numpy does not take a foreign dtype (bfloat16) from a buffer.
        whole = np.frombuffer(self._mapping, np.uint8)
        self._start = -whole.ctypes.data % _HUGE_PAGE_BYTES
        """Where the first item stands in the mapping: at a huge page's begin, or the column would share each with what is not used."""
        items = whole[self._start : self._start + capacity * self.item_bytes]
        self.array: NDArray[Any] = items.view(dtype).reshape(capacity, width)
        """(capacity, width); zeros where nothing was written."""

    def bytes_for(self, used: int) -> int:
        """What `charged_bytes` is once `used` items are used: whole pages, and whole huge ones beyond the first of these."""
        nbytes = used * self.item_bytes
        page = mmap.PAGESIZE if nbytes <= _HUGE_PAGE_BYTES else _HUGE_PAGE_BYTES
        return min(-(-nbytes // page) * page, -(-self._capacity_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)

    def use(self, used: int) -> int:
        """The first `used` items may be touched from now on. Returns by how much `charged_bytes` grew."""
        before, self.charged_bytes = self.charged_bytes, max(self.charged_bytes, self.bytes_for(used))
        start = max(before, _HUGE_PAGE_BYTES)
        end = self.charged_bytes
        if end > start and hasattr(mmap, "MADV_HUGEPAGE"):
            # A kernel without them refuses, which changes nothing.
            with contextlib.suppress(OSError):
                self._mapping.madvise(mmap.MADV_HUGEPAGE, self._start + start, end - start)
        return self.charged_bytes - before

    def cut(self, used: int) -> None:
        """Only the first `used` items are kept: the pages of the others go back to the system, and they are zeros again."""
        before, self.charged_bytes = self.charged_bytes, min(self.charged_bytes, self.bytes_for(used))
        if self.charged_bytes < before:
            self._mapping.madvise(mmap.MADV_DONTNEED, self._start + self.charged_bytes, before - self.charged_bytes)
