"""The index by numba: open addressing in segments of bounded size, found through a directory of hash prefixes (extendible hashing).

A table grows by splitting one full segment at a time (some 25,000 keys, half a millisecond), so no reader ever waits for a whole index
to be built anew.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...errors import StorageFull
from . import compiled_index as compiled
from . import compiled_rows
from .columns import Column
from .index import ABSENT, Charge, Ints, Marks, no_charge

FIRST_BITS: Final = 6
"""An index begins with one segment of 64 entries, and doubles it"""
LAST_BITS: Final = 15
"""up to 32,768 entries (512 KiB); then it is split."""
LOAD: Final = 0.75
"""The share of a segment's entries that are filled at most; on average it is 0.55, about 29 bytes a key."""
SPARE_SEGMENTS: Final = 64
"""Addresses beyond what the index may grow to, for keys that must not be refused."""
MOST_DEPTH: Final = 26
ENTRY_BYTES: Final = 16


class HashIndex:
    """Key → location as `RowIndex` has it."""

    def __init__(self, most_bytes: int) -> None:
        """Takes addresses for `most_bytes`, or as many as there are."""
        self._segments = (most_bytes >> LAST_BITS) // ENTRY_BYTES + SPARE_SEGMENTS
        """How many there are addresses for."""
        while True:
            try:
                self._column = Column(self._segments << LAST_BITS, 2, np.dtype(np.int64))
            except OSError:
                if self._segments == 1:
                    raise
                self._segments //= 2
            else:
                break
        self._entries: Ints = self._column.array.reshape(-1)
        self._begin()

    @property
    def nbytes(self) -> int:
        return self._bytes if self._is_charged else 0

    def __len__(self) -> int:
        return self._held

    def clear(self) -> None:
        self._column.cut(0)
        self._begin()

    def _begin(self) -> None:
        self._bits = FIRST_BITS
        self._depth = 0
        self._used = 1
        self._held = 0
        self._directory = np.zeros(1, np.int32)
        self._counts: Ints = np.zeros(1, np.int64)
        self._levels: Ints = np.zeros(1, np.int64)
        """How many hash bits all keys of a segment share."""
        self._column.use(1 << self._bits)
        self._is_charged = False
        """Its first segment is charged with the first key."""
        self._wipe_first()

    def find(self, keys: Ints) -> Ints:
        locations = np.empty(len(keys), np.int64)
        compiled.find(self._entries, self._directory, self._depth, self._bits, keys, locations)
        return locations

    def lookup(self, keys: Ints, values: NDArray[Any], rows: NDArray[Any], found: Marks) -> Ints:
        locations = np.empty(len(keys), np.int64)
        compiled_rows.lookup(
            self._entries, self._directory, self._depth, self._bits,
            values.view(np.uint8), keys, rows.view(np.uint8), found, locations,
        )  # fmt: skip
        return locations

    def growth_bytes(self, count: int) -> int:
        return count * ENTRY_BYTES * 3 + (ENTRY_BYTES << self._bits) + (0 if self._is_charged else self._bytes)

    def insert(self, keys: Ints, locations: Ints, charge: Charge = no_charge) -> None:
        done = 0
        try:
            if not self._is_charged:
                charge(self._bytes)
                self._is_charged = True
            while True:
                done = self._insert(keys, locations, done)
                if done == len(keys):
                    break
                self._grow(charge)
        except BaseException:
            self.remove(keys[:done])
            self._held += done
            raise
        self._held += len(keys)

    def move(self, keys: Ints, locations: Ints) -> None:
        compiled.move(self._entries, self._directory, self._depth, self._bits, keys, locations)

    def remove(self, keys: Ints) -> None:
        compiled.remove(self._entries, self._directory, self._counts, self._depth, self._bits, keys)
        self._held -= len(keys)

    def keys(self) -> Ints:
        return self._filled()[0]

    @property
    def _bytes(self) -> int:
        return self._column.charged_bytes + self._directory.nbytes + self._counts.nbytes + self._levels.nbytes

    @property
    def _most(self) -> int:
        """Keys that a segment has at most."""
        return int(LOAD * (1 << self._bits))

    def _insert(self, keys: Ints, locations: Ints, first: int) -> int:
        """Adds keys from `first` on, up to one whose segment is full. Returns its place, or the number of keys."""
        done: int = compiled.insert(
            self._entries,
            self._directory,
            self._counts,
            self._depth,
            self._bits,
            self._most,
            keys,
            locations,
            first,
        )
        return done

    def _filled(self) -> tuple[Ints, Ints]:
        """All keys and their locations."""
        used = self._entries[: 2 * self._used << self._bits].reshape(-1, 2)
        filled = used[used[:, 1] != ABSENT]
        return np.ascontiguousarray(filled[:, 0]), np.ascontiguousarray(filled[:, 1])

    def _wipe_first(self) -> None:
        self._entries[1 : 2 << self._bits : 2] = ABSENT
        self._counts[0] = 0

    def _grow(self, charge: Charge) -> None:
        """Makes room in every segment that is full."""
        if self._bits < LAST_BITS:
            self._double(charge)
            return
        for segment in np.flatnonzero(self._counts[: self._used] >= self._most).tolist():
            self._split(segment, charge)

    def _split(self, segment: int, charge: Charge) -> None:
        if self._levels[segment] == self._depth:
            self._deepen(charge)
        self._take_segment(charge)
        level, new = int(self._levels[segment]), self._used - 1
        compiled.split(
            self._entries, self._counts, self._bits, segment, new, level, np.empty(2 << self._bits, np.int64)
        )
        self._levels[segment] = self._levels[new] = level + 1
        # The prefixes of the segment stand in a row; the second half of them leads to the new one.
        (prefixes,) = np.nonzero(self._directory == segment)
        self._directory[prefixes[len(prefixes) // 2 :]] = new

    def _double(self, charge: Charge) -> None:
        """The only segment gets twice as many entries."""
        keys, locations = self._filled()
        entries = 2 << self._bits
        charge(self._column.bytes_for(entries) - self._column.charged_bytes)
        self._column.use(entries)
        self._bits += 1
        self._wipe_first()
        self._insert(keys, locations, 0)

    def _deepen(self, charge: Charge) -> None:
        """One more hash bit leads to the segments."""
        if self._depth == MOST_DEPTH:
            raise StorageFull("too many keys of a row table have hashes that begin alike")
        charge(self._directory.nbytes)
        self._directory = np.repeat(self._directory, 2)
        self._depth += 1

    def _take_segment(self, charge: Charge) -> None:
        if self._used == self._segments:
            raise StorageFull("the index of a row table has no addresses left")
        entries = (self._used + 1) << self._bits
        more = self._counts.nbytes * 2 if self._used == len(self._counts) else 0
        charge(self._column.bytes_for(entries) - self._column.charged_bytes + more)
        self._column.use(entries)
        if more:
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._levels = np.concatenate((self._levels, np.zeros_like(self._levels)))
        self._used += 1
