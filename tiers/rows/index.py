"""Where the row of a key is: the index that covers all tiers of a table.

A location is a number: 0 and above is a slot in DRAM, `ABSENT` is nowhere, below `ABSENT` is for tiers further down.
"""

from __future__ import annotations

from itertools import repeat
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

ABSENT: Final = -1
"""The location of a key without a row."""

DICT_BYTES_A_KEY: Final = 176
"""Charged for each key of a `DictIndex`: key, location and their place in the dict."""

Ints = NDArray[np.int64]


class RowIndex(Protocol):
    """Key → location, for any int64 key. Used under the lock of its table."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        ...

    def __len__(self) -> int: ...

    def find(self, keys: Ints) -> Ints:
        """The location of each key, `ABSENT` where there is none. Keys may repeat."""
        ...

    def bytes_to_insert(self, keys: Ints) -> int:
        """How much `nbytes` grows at most when these keys, none of which is there and none of which repeats, are inserted."""
        ...

    def insert(self, keys: Ints, locations: Ints) -> None:
        """Adds keys, none of which is there and none of which repeats."""
        ...

    def move(self, keys: Ints, locations: Ints) -> None:
        """Gives keys that are there another location."""
        ...

    def remove(self, keys: Ints) -> None:
        """Drops keys that are there, none of which repeats."""
        ...

    def keys(self) -> Ints:
        """All keys, in no order."""
        ...

    def clear(self) -> None:
        """Drops everything."""
        ...


class DictIndex:
    """The index in plain Python, for where numba is not installed."""

    def __init__(self) -> None:
        self._locations: dict[int, int] = {}

    @property
    def nbytes(self) -> int:
        return len(self._locations) * DICT_BYTES_A_KEY

    def __len__(self) -> int:
        return len(self._locations)

    def find(self, keys: Ints) -> Ints:
        return np.fromiter(map(self._locations.get, keys.tolist(), repeat(ABSENT)), np.int64, len(keys))

    def bytes_to_insert(self, keys: Ints) -> int:
        return len(keys) * DICT_BYTES_A_KEY

    def insert(self, keys: Ints, locations: Ints) -> None:
        self._locations.update(zip(keys.tolist(), locations.tolist(), strict=True))

    def move(self, keys: Ints, locations: Ints) -> None:
        self._locations.update(zip(keys.tolist(), locations.tolist(), strict=True))

    def remove(self, keys: Ints) -> None:
        for key in keys.tolist():
            del self._locations[key]

    def keys(self) -> Ints:
        return np.fromiter(self._locations, np.int64, len(self._locations))

    def clear(self) -> None:
        self._locations = {}
