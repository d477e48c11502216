"""Copies of rows whose truth is elsewhere: a bounded table that forgets what is not used, and what its owner says has changed.

A copy is of the row as of a position; a change behind that position drops it. Nothing is ever written back.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .index import Ints, Marks
from .kernels import kernels
from .policy import EvictionPolicy

PIECE_ROWS: Final = 16384
"""Rows that are read under the lock at a time."""

KEY_BYTES: Final = 17
"""Of each copy, beside its values: the key, the position, and whether the row is there."""


@dataclass(frozen=True, slots=True)
class CopyCounters:
    """Since the table was made, in rows."""

    hits: int
    misses: int
    dropped: int
    """Copies of rows that changed."""
    evicted: int
    """Copies that made room for others."""


class RowCopies:
    """Copies of at most so many rows of one table. Thread-safe: one lock, held for one batch, or a piece of it."""

    def __init__(self, dim: int, dtype: np.dtype[Any], nbytes: int) -> None:
        """Takes at most `nbytes` of memory in all, bit by bit as copies come. `ValueError` where that is no room for one.

        The first in a process may take seconds, if its loops are compiled for the first time on this machine.
        """
        self._index = kernels().new_index()
        per_row = (
            dim * dtype.itemsize
            + KEY_BYTES
            + EvictionPolicy.nbytes_for(64) / 64
            + self._index.growth_bytes(1 << 20) / (1 << 20)
        )
        self.capacity: Final = int(nbytes / per_row)
        """Copies that there can be at a time."""
        if self.capacity < 1:
            raise ValueError(f"{nbytes} bytes hold no copy of a row that takes {per_row:.0f}")
        self._policy = EvictionPolicy(self.capacity)
        # Pages of these become memory only when they are written to.
        self._keys = np.empty(self.capacity, np.int64)
        self._values = np.empty((self.capacity, dim), dtype)
        self._there = np.empty(self.capacity, np.bool_)
        self._positions = np.empty(self.capacity, np.uint64)
        self._free = np.empty(0, np.int64)
        self._used = 0
        """Slots from here on were never used."""
        self._lock = threading.Lock()
        self._hits = self._misses = self._dropped = self._evicted = 0
        self._compile()

    def __len__(self) -> int:
        return len(self._index)

    def counters(self) -> CopyCounters:
        with self._lock:
            return CopyCounters(self._hits, self._misses, self._dropped, self._evicted)

    def read(self, keys: Ints, usable: Marks) -> tuple[NDArray[Any], Marks, Marks]:
        """(values (n, dim), there (n,), known (n,)): of what is not known the others mean nothing. Keys may repeat. Counts as use.

        A copy that is not `usable` (n,) at the moment is not known.
        """
        values = np.empty((len(keys), self._values.shape[1]), self._values.dtype)
        there, known = np.empty(len(keys), np.bool_), np.empty(len(keys), np.bool_)
        for at in range(0, len(keys), PIECE_ROWS):
            piece = slice(at, at + PIECE_ROWS)
            with self._lock:
                slots = self._index.find(keys[piece])
                is_known = known[piece] = (slots >= 0) & usable[piece]
                # What is unknown reads the last slot: any will do.
                values[piece], there[piece] = self._values[slots], self._there[slots]
                hits = int(np.count_nonzero(is_known))
                self._hits += hits
                self._misses += len(slots) - hits
                if hits:
                    self._policy.touch(slots[is_known])
        return values, there, known

    def keep(self, keys: Ints, values: NDArray[Any], there: Marks, positions: NDArray[np.uint64]) -> None:
        """Copies of rows as of these positions, one for each; older ones of the same key make way, newer ones stay. Keys may repeat: of those the
        first counts. More than there is room for are not kept.
        """
        _, first = np.unique(keys, return_index=True)
        with self._lock:
            slots = self._index.find(keys[first])
            self._overwrite(first, slots, values, there, positions)
            new = first[slots < 0][: self.capacity]
            if not len(new):
                return
            slots = self._room(len(new))
            new = new[: len(slots)]
            self._keys[slots] = keys[new]
            self._index.insert(keys[new], slots)
            self._policy.admit(slots, keys[new])
            self._write(slots, new, values, there, positions)

    def drop(self, keys: Ints, position: int) -> None:
        """Rows of these keys have changed at `position`. Keys may repeat."""
        with self._lock:
            slots = np.unique(self._index.find(keys))
            slots = slots[slots >= 0]
            slots = slots[self._positions[slots] < np.uint64(position)]
            if len(slots):
                self._index.remove(self._keys[slots])
                self._policy.forget(slots)
                self._free = np.concatenate([self._free, slots])
                self._dropped += len(slots)

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._dropped += len(self._index)
            self._index.clear()
            self._policy = EvictionPolicy(self.capacity)
            self._free = np.empty(0, np.int64)
            self._used = 0

    def _compile(self) -> None:
        """Every loop runs once, so that none is compiled while others wait."""
        key, value, there = (
            np.zeros(1, np.int64),
            np.zeros((1, self._values.shape[1]), self._values.dtype),
            np.ones(1, np.bool_),
        )
        self.keep(key, value, there, np.zeros(1, np.uint64))
        self._policy.left(chosen := self._policy.choose(1), self._keys[chosen])
        self.read(key, there)
        self.clear()
        self.keep(key, value, there, np.zeros(1, np.uint64))
        self.drop(key, 1)
        self.clear()
        self._hits = self._misses = self._dropped = self._evicted = 0

    def _overwrite(
        self, which: Ints, slots: Ints, values: NDArray[Any], there: Marks, positions: NDArray[np.uint64]
    ) -> None:
        newer = slots >= 0
        newer[newer] = self._positions[slots[newer]] < positions[which[newer]]
        self._write(slots[newer], which[newer], values, there, positions)

    def _write(
        self, slots: Ints, which: Ints, values: NDArray[Any], there: Marks, positions: NDArray[np.uint64]
    ) -> None:
        self._values[slots] = values[which]
        self._there[slots] = there[which]
        self._positions[slots] = positions[which]

    def _room(self, count: int) -> Ints:
        """Up to so many slots that are free now."""
        fresh = min(count - min(count, len(self._free)), self.capacity - self._used)
        taken, self._free = self._free[:count], self._free[count:]
        slots = np.concatenate([taken, np.arange(self._used, self._used + fresh)])
        self._used += fresh
        chosen = self._policy.choose(count - len(slots))
        if len(chosen):
            keys = self._keys[chosen]
            self._index.remove(keys)
            self._policy.left(chosen, keys)
            self._evicted += len(chosen)
        return np.concatenate([slots, chosen])
