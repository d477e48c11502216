"""A table of rows under Adagrad, worked out by plain numpy: what every replica must equal bit for bit. Keys are 0 … n - 1."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Keys = npt.NDArray[np.int64]


class AdagradRows:
    """All values are float32, and each operation is rounded to it, in the order that `ps.Adagrad` says."""

    def __init__(self, rows: int, dim: int, lr: float, eps: float, first: float) -> None:
        """`first`: what a row begins with that was never written."""
        self.values: Floats = np.full((rows, dim), first, np.float32)
        self.there = np.zeros(rows, bool)
        self._sums: Floats = np.zeros((rows, dim), np.float32)
        self._lr, self._eps = np.float32(lr), np.float32(eps)

    def write(self, keys: Keys, rows: Floats) -> None:
        """The last row of a key that repeats stands."""
        last = dict(zip(keys.tolist(), range(len(keys)), strict=True))
        self.values[list(last)] = rows[list(last.values())]
        self.there[keys] = True

    def take(self, keys: Keys, gradients: Floats) -> None:
        """Gradients of a key that repeats are summed first, in the order given."""
        different, places = np.unique(keys, return_inverse=True)
        summed = np.zeros((len(different), gradients.shape[1]), np.float32)
        np.add.at(summed, places, gradients)
        self._sums[different] += summed * summed
        self.values[different] -= self._lr * summed / (np.sqrt(self._sums[different]) + self._eps)
        self.there[different] = True
