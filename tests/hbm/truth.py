"""Rows of a table as the tiers below hold them, in the plainest way: what any look-up has to give."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramstream.tiers.hbm.table import HbmTable

Keys = NDArray[np.int64]


class Truth:
    """Row of key k, as first written: k + column / 100. Changes are told to `above` as a row table tells them."""

    def __init__(self, dim: int, dtype: str = "float32") -> None:
        self.dim = dim
        self.rows: dict[int, NDArray[Any]] = {}
        self.dtype = np.dtype(dtype)
        self.lock = threading.Lock()
        self.above: HbmTable | None = None
        self.before_read: Callable[[], None] = lambda: None
        """Called at the beginning of each read."""
        self.after_read: Callable[[], None] = lambda: None
        """Called at its end."""
        self.reads = 0
        self.fails: Exception | None = None

    def fill(self, keys: range) -> None:
        self.write(np.array(keys, np.int64), 0.0)

    def write(self, keys: Keys, plus: float) -> None:
        """One event: the rows of `keys` are those first written, and `plus`."""
        with self.lock:
            for key in keys.tolist():
                self.rows[key] = self.row(key, plus)
            if self.above is not None:
                self.above.drop(keys)

    def row(self, key: int, plus: float = 0.0) -> NDArray[Any]:
        return (key % 1000 + plus + np.arange(self.dim) / 100).astype(self.dtype)

    def read(self, keys: Keys) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        self.before_read()
        if self.fails is not None:
            raise self.fails
        with self.lock:
            self.reads += 1
            absent = np.full(self.dim, -1, self.dtype)
            found = np.array([key in self.rows for key in keys.tolist()], np.bool_)
            values = [self.rows.get(key, absent) for key in keys.tolist()]
        self.after_read()
        return np.array(values, self.dtype).reshape(len(keys), self.dim), found
