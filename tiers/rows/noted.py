"""The keys that a write-back has not seen yet."""

from __future__ import annotations

from typing import Final

import numpy as np

from .index import Ints

_LEAST_NOTED: Final = 1 << 18
"""Keys that are noted before it is worth a sort to find those that repeat."""


class NotedKeys:
    """Keys that changed since they were last taken. Notes nothing before the first `take`. For one thread."""

    def __init__(self) -> None:
        self._batches: list[Ints] | None = None
        self._noted = 0
        self._most = _LEAST_NOTED

    def note(self, keys: Ints) -> None:
        """Adds keys, which may repeat. Copies."""
        if self._batches is not None:
            self._batches.append(keys.copy())
            self._noted += len(keys)

    def take(self) -> Ints:
        """Each key once, and none of them is noted any more."""
        keys = self._distinct()
        self._batches, self._noted, self._most = [], 0, _LEAST_NOTED
        return keys

    def compact(self) -> None:
        """Forgets repetitions, once there may be as many of them as there are keys: so what is held stays within a few bytes a row."""
        if self._noted > self._most:
            keys = self._distinct()
            self._batches, self._noted, self._most = [keys], len(keys), max(_LEAST_NOTED, 2 * len(keys))

    def _distinct(self) -> Ints:
        return np.unique(np.concatenate(self._batches)) if self._batches else np.empty(0, np.int64)
