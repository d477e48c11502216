"""The memory of the HBM tier: one tensor, lent to tables page by page.

Each table looks at the whole slab as a matrix of its own rows, so that one gather reads rows of any of its pages, and a page goes
from one table to another without anything being moved. Only rows that lie wholly inside a page of the table are its own.
"""

from __future__ import annotations

import threading
from typing import final

import torch

MAX_PAGE_BYTES = 2 << 20
"""A row of an event (at most 896 KiB) fits a page at any alignment."""
PAGES = 256
"""Into so many pages a small slab is cut, for tables to share it."""


def page_bytes_of(slab_bytes: int) -> int:
    """The size of a page in a slab of that size: a multiple of 4 KiB, unless the whole slab is smaller."""
    return min(MAX_PAGE_BYTES, max(4096, slab_bytes // PAGES // 4096 * 4096), max(1, slab_bytes))


def rows_per_page(page_bytes: int, row_bytes: int) -> int:
    """Rows that lie wholly inside any page; 0 where the row is too long to be held."""
    whole, rest = divmod(page_bytes, row_bytes)
    return whole if rest == 0 else max(0, whole - 1)


@final
class Slab:
    """`memory` (uint8, one dimension) in pages. Lending is thread-safe; who may write a page is its holder's business."""

    def __init__(self, memory: torch.Tensor, page_bytes: int | None = None) -> None:
        assert memory.dtype == torch.uint8 and memory.dim() == 1 and memory.is_contiguous()
        self._memory = memory
        self.page_bytes = page_bytes or page_bytes_of(memory.numel())
        self.pages = memory.numel() // self.page_bytes
        """How many there are."""
        self._free = list(range(self.pages - 1, -1, -1))
        self._lock = threading.Lock()

    @property
    def device(self) -> torch.device:
        return self._memory.device

    @property
    def nbytes(self) -> int:
        """Bytes taken from the device."""
        return self._memory.numel()

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def take(self) -> int | None:
        """A page that nobody has, lowest number first; None where there is none."""
        with self._lock:
            return self._free.pop() if self._free else None

    def give(self, page: int) -> None:
        """The page is nobody's again. Nothing reads or writes it any more."""
        with self._lock:
            self._free.append(page)

    def release(self) -> None:
        """Gives the memory back to the device; rows that somebody still reads keep it."""
        self._memory = self._memory[:0].clone()

    def rows(self, dtype: torch.dtype, dim: int) -> torch.Tensor:
        """The slab as rows of `dim` values of `dtype`: a view, (slab bytes // row bytes, dim)."""
        row_bytes = dim * dtype.itemsize
        count = self._memory.numel() // row_bytes
        return self._memory[: count * row_bytes].view(dtype).view(count, dim)

    def first_row(self, page: int, row_bytes: int) -> int:
        """The number of the first row that begins in the page, in `rows` of that width. Exact: Python's integers."""
        return -(-page * self.page_bytes // row_bytes)
