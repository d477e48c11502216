"""Files of a tier whose disk fails when it is told to, and one that is sparse."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paramstream.tiers.budget import Budget
from paramstream.tiers.reads import Ints, read_places


class FaultyFile:
    """Bytes in memory as a `TierFile`, under a budget. Faults are switched by its attributes."""

    def __init__(self, budget: Budget, name: str = "faulty.tier") -> None:
        self.path = Path("/disk") / name
        self.data = bytearray()
        self.writes: list[tuple[int, int]] = []
        """(offset, bytes) of each."""
        self.reads: list[tuple[int, int]] = []
        self.is_full = False
        """The disk has no room for more."""
        self.fail_writes = 0
        """So many of the next writes fail, half-way."""
        self.fail_reads = 0
        self.before_read: Callable[[], None] = lambda: None
        """Called before each read: may wait."""
        self.is_closed = False
        self._budget = budget

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def reserve(self, nbytes: int) -> None:
        growth = nbytes - len(self.data)
        if self.is_full:
            raise self._budget.full(growth, because=f"the system refused them: {os.strerror(errno.ENOSPC)}")
        self._budget.charge(growth)
        self.data.extend(bytes(growth))

    def write(self, data: memoryview, offset: int) -> None:
        assert not self.is_closed and offset + data.nbytes <= len(self.data)
        self.writes.append((offset, data.nbytes))
        if self.fail_writes:
            self.fail_writes -= 1
            half = data.nbytes // 2
            self.data[offset : offset + half] = data[:half]
            raise self._budget.full(data.nbytes, because=f"the system refused them: {os.strerror(errno.EIO)}")
        self.data[offset : offset + data.nbytes] = data

    def read_places(self, buffer: NDArray[np.uint8], begins: Ints, nbytes: Ints, offsets: Ints) -> None:
        self.before_read()
        assert not self.is_closed
        for begin, count, offset in zip(begins.tolist(), nbytes.tolist(), offsets.tolist(), strict=True):
            self.reads.append((offset, count))
            if self.fail_reads:
                self.fail_reads -= 1
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            buffer.data[begin : begin + count] = self.data[offset : offset + count]

    def flip(self, bit: int) -> None:
        self.data[bit // 8] ^= 1 << bit % 8

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._budget.refund(len(self.data))


class SparseFile:
    """A real file that takes no blocks before it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    @property
    def nbytes(self) -> int:
        return os.fstat(self.handle).st_size

    def reserve(self, nbytes: int) -> None:
        os.ftruncate(self.handle, nbytes)

    def write(self, data: memoryview, offset: int) -> None:
        assert os.pwrite(self.handle, data, offset) == data.nbytes

    def read_places(self, buffer: NDArray[np.uint8], begins: Ints, nbytes: Ints, offsets: Ints) -> None:
        read_places(self.handle, buffer, begins, nbytes, offsets)

    def close(self) -> None:
        os.close(self.handle)
