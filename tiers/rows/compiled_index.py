"""The loops of `HashIndex`, to be compiled.

`entries` is flat: key and location of entry e stand at 2e and 2e + 1, and a location of -1 says that the entry is free. A segment is
1 << `bits` entries in a row. Its high hash bits lead a key to a segment through `directory` (1 << `depth` numbers of segments), its low ones
to its home there; what finds its home taken stands in the next free entry, around the segment's end. Nothing is ever left behind by a
removal: what stood behind moves up.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba.core import types

from .intrinsics import GIVEN_INTS, INTS, PLACES, inlined, kernel, prefetch

AHEAD: Final = 16
"""Keys, or rows, that are fetched ahead of their use; a power of two."""


@inlined
def spread(key: Any) -> Any:
    """The hash of a key: every bit depends on every bit, and no two keys have the same."""
    number = np.uint64(key)
    number = (number ^ (number >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    number = (number ^ (number >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return number ^ (number >> np.uint64(32))


@inlined
def segment_of(number: Any, directory: Any, depth: Any) -> Any:
    """The segment of a hash."""
    # Two shifts, since one by 64 means nothing.
    return np.int64(directory[np.int64((number >> np.uint64(1)) >> np.uint64(63 - depth))])


@inlined
def entry_of(entries: Any, start: Any, mask: Any, home: Any, key: Any) -> Any:
    """The entry of the key, or the free one where it would stand, in the segment that begins at entry `start`."""
    at = home
    while entries[2 * (start + at) + 1] != -1 and entries[2 * (start + at)] != key:
        at = (at + 1) & mask
    return start + at


def find(entries: Any, directory: Any, depth: Any, bits: Any, keys: Any, locations: Any) -> None:
    """Writes the location of each key, -1 where there is none."""
    mask = (1 << bits) - 1
    # A ring of the homes that are being fetched.
    starts = np.empty(AHEAD, np.int64)
    homes = np.empty(AHEAD, np.int64)
    for i in range(len(keys) + AHEAD):
        at = i & (AHEAD - 1)
        if i >= AHEAD:
            place = i - AHEAD
            locations[place] = entries[2 * entry_of(entries, starts[at], mask, homes[at], keys[place]) + 1]
        if i < len(keys):
            number = spread(keys[i])
            starts[at] = segment_of(number, directory, depth) << bits
            homes[at] = np.int64(number) & mask
            prefetch(entries, 2 * (starts[at] + homes[at]))


def insert(
    entries: Any, directory: Any, counts: Any, depth: Any, bits: Any, most: Any, keys: Any, locations: Any, first: Any
) -> Any:
    """Adds keys from `first` on, up to one whose segment has `most` keys already. Returns that one's place, or the number of keys."""
    mask = (1 << bits) - 1
    for i in range(first, len(keys)):
        number = spread(keys[i])
        segment = segment_of(number, directory, depth)
        if counts[segment] >= most:
            return i
        entry = entry_of(entries, segment << bits, mask, np.int64(number) & mask, keys[i])
        entries[2 * entry] = keys[i]
        entries[2 * entry + 1] = locations[i]
        counts[segment] += 1
    return len(keys)


def move(entries: Any, directory: Any, depth: Any, bits: Any, keys: Any, locations: Any) -> None:
    """Gives keys that are there another location."""
    mask = (1 << bits) - 1
    for i in range(len(keys)):
        number = spread(keys[i])
        start = segment_of(number, directory, depth) << bits
        entries[2 * entry_of(entries, start, mask, np.int64(number) & mask, keys[i]) + 1] = locations[i]


def remove(entries: Any, directory: Any, counts: Any, depth: Any, bits: Any, keys: Any) -> None:
    """Drops keys that are there."""
    mask = (1 << bits) - 1
    for i in range(len(keys)):
        number = spread(keys[i])
        segment = segment_of(number, directory, depth)
        start = segment << bits
        hole = entry_of(entries, start, mask, np.int64(number) & mask, keys[i]) - start
        at = hole
        while True:
            at = (at + 1) & mask
            if entries[2 * (start + at) + 1] == -1:
                break
            # Whoever is no nearer to its home in the hole than it was allowed to be stays.
            home = np.int64(spread(entries[2 * (start + at)])) & mask
            if ((at - home) & mask) >= ((at - hole) & mask):
                entries[2 * (start + hole)] = entries[2 * (start + at)]
                entries[2 * (start + hole) + 1] = entries[2 * (start + at) + 1]
                hole = at
        entries[2 * (start + hole) + 1] = -1
        counts[segment] -= 1


def split(entries: Any, counts: Any, bits: Any, segment: Any, new: Any, level: Any, moved: Any) -> None:
    """Gives half of a full segment's keys, those whose hash bit number `level` from the top is set, to the free segment `new`.

    `moved` is memory for a segment.
    """
    mask = (1 << bits) - 1
    begin, end = (segment << bits) * 2, ((segment + 1) << bits) * 2
    for at in range(begin, end):
        moved[at - begin] = entries[at]
    for at in range(begin + 1, end, 2):
        entries[at] = -1
    for at in range((new << bits) * 2 + 1, ((new + 1) << bits) * 2, 2):
        entries[at] = -1
    counts[segment] = 0
    counts[new] = 0
    for at in range(0, end - begin, 2):
        if moved[at + 1] != -1:
            number = spread(moved[at])
            into = new if (number >> np.uint64(63 - level)) & np.uint64(1) else segment
            entry = entry_of(entries, into << bits, mask, np.int64(number) & mask, moved[at])
            entries[2 * entry] = moved[at]
            entries[2 * entry + 1] = moved[at + 1]
            counts[into] += 1


_NUMBER: Final = types.int64

find = kernel(find, types.void, INTS, PLACES, _NUMBER, _NUMBER, GIVEN_INTS, INTS)
insert = kernel(insert, _NUMBER, INTS, PLACES, INTS, _NUMBER, _NUMBER, _NUMBER, GIVEN_INTS, GIVEN_INTS, _NUMBER)
move = kernel(move, types.void, INTS, PLACES, _NUMBER, _NUMBER, GIVEN_INTS, GIVEN_INTS)
remove = kernel(remove, types.void, INTS, PLACES, INTS, _NUMBER, _NUMBER, GIVEN_INTS)
split = kernel(split, types.void, INTS, INTS, _NUMBER, _NUMBER, _NUMBER, _NUMBER, INTS)
