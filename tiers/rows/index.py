"""Where the row of a key is: the index that covers all tiers of a table.

A location is a number: from 0 on it is a slot in DRAM, from `RESERVED` on a slot in DRAM whose row is not there yet, `ABSENT` is
nowhere, and below `ABSENT` is for tiers further down.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

ABSENT: Final = -1
"""The location of a key without a row."""

RESERVED: Final = 1 << 62
"""Added to a slot that a row which is not there yet will have: for readers the row is nowhere."""

MOST_INDEX_BYTES: Final = 1 << 34
"""What an index may grow to if nothing else is said: enough for 500 million keys."""

DICT_BYTES_A_KEY: Final = 176
"""Charged for each key of a `DictIndex`: key, location and their place in the dict."""

Ints = NDArray[np.int64]
Marks = NDArray[np.bool_]

Charge = Callable[[int], None]
"""Takes bytes that an index is about to hold, or raises `StorageFull`."""


def no_charge(nbytes: int) -> None:
    """Lets an index grow for nothing."""


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

    def lookup(self, keys: Ints, values: NDArray[Any], rows: NDArray[Any], found: Marks) -> Ints:
        """Copies the values of the keys that are in DRAM to their places in `rows`, and says in `found` which. Returns all locations.

        `values` is the column of DRAM; places of other keys in `rows` may be written too.
        """
        ...

    def growth_bytes(self, count: int) -> int:
        """About what `nbytes` grows by when `count` keys are inserted; seldom less."""
        ...

    def insert(self, keys: Ints, locations: Ints, charge: Charge = no_charge) -> None:
        """Adds keys, none of which is there and none of which repeats.

        `charge` is told what `nbytes` is about to grow by, before it does. Where it raises, none of the keys is there.
        """
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

    def lookup(self, keys: Ints, values: NDArray[Any], rows: NDArray[Any], found: Marks) -> Ints:
        locations = self.find(keys)
        found[:] = (locations >= 0) & (locations < RESERVED)
        np.take(values, locations, axis=0, out=rows, mode="clip")
        return locations

    def growth_bytes(self, count: int) -> int:
        return count * DICT_BYTES_A_KEY

    def insert(self, keys: Ints, locations: Ints, charge: Charge = no_charge) -> None:
        charge(len(keys) * DICT_BYTES_A_KEY)
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
