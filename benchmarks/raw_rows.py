"""What the machine does to rows by itself: the least code that numba needs to add gradients to rows, and to find and copy rows.

One thread, nothing around it: no positions, no folding, no lock. The table is the one that a replica holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.int64]
Floats = NDArray[np.float32]

_SPREAD = 0x9E3779B97F4A7C15


def keys_of(count: int) -> Keys:
    """As many keys as a table has rows, spread over all of int64: ids are hashes as a rule."""
    return (np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_SPREAD)).view(np.int64)


class RawTable:
    """`keys.size` rows of `dim` float32 zeros, in the order of `keys`, and an index of open addressing, a quarter full."""

    def __init__(self, keys: Keys, dim: int) -> None:
        compiled = _compiled()
        self._scatter_add, self._gather = compiled["scatter_add"], compiled["gather"]
        self.values: Floats = np.zeros((keys.size, dim), np.float32)
        self.values[:] = 0.0  # Every page is there before anything is measured.
        size = 1 << (4 * keys.size - 1).bit_length()
        self._keys, self._slots = np.zeros(size, np.int64), np.full(size, -1, np.int64)
        compiled["build"](keys, self._keys, self._slots)

    def scatter_add_s(self, slots: Keys, gradients: Floats) -> float:
        """Seconds to add each gradient to its row. The rows are told by their places: no index is asked."""
        began = time.perf_counter()
        self._scatter_add(self.values, slots, gradients)
        return time.perf_counter() - began

    def gather_s(self, keys: Keys, out: Floats) -> float:
        """Seconds to find the row of each key by the index, and to copy it."""
        began = time.perf_counter()
        self._gather(self._keys, self._slots, keys, self.values, out)
        return time.perf_counter() - began


def _compiled() -> dict[str, Callable[..., Any]]:
    """The loops, compiled for the types that they are given. Raises `ModuleNotFoundError` without numba."""
    import numba

    jit: Callable[..., Any] = numba.njit(nogil=True)

    def build(keys: Any, found_keys: Any, found_slots: Any) -> None:
        mask = found_keys.size - 1
        for slot in range(keys.size):
            at = np.int64((np.uint64(keys[slot]) * np.uint64(0xD6E8FEB86659FD93)) >> np.uint64(20)) & mask
            while found_slots[at] >= 0:
                at = (at + 1) & mask
            found_keys[at] = keys[slot]
            found_slots[at] = slot

    def gather(found_keys: Any, found_slots: Any, keys: Any, values: Any, out: Any) -> None:
        mask = found_keys.size - 1
        for i in range(keys.size):
            at = np.int64((np.uint64(keys[i]) * np.uint64(0xD6E8FEB86659FD93)) >> np.uint64(20)) & mask
            while found_keys[at] != keys[i] and found_slots[at] >= 0:
                at = (at + 1) & mask
            row = found_slots[at]
            for j in range(values.shape[1]):
                out[i, j] = values[row, j]

    def scatter_add(values: Any, slots: Any, gradients: Any) -> None:
        for i in range(slots.size):
            row = slots[i]
            for j in range(values.shape[1]):
                values[row, j] += gradients[i, j]

    return {"build": jit(build), "gather": jit(gather), "scatter_add": jit(scatter_add)}
