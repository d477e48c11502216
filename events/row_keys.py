"""Row keys as users give them, and a batch of them by state partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from ..errors import InvalidEvent
from .arrays import describe, is_torch

Keys = npt.NDArray[np.int64]

_SECRET: Final = np.uint64(0xC73AB174C5ECD5A2)
"""Bytes 8 to 15 of XXH3's secret, xor bytes 16 to 23: what a hash of 4 to 8 bytes begins with where the seed is 0."""
_PRIME: Final = np.uint64(0x9FB21C651E98DF25)
_LENGTH: Final = np.uint64(8)


def row_keys(table: str, keys: object) -> Keys:
    """`keys` as a flat int64 array: a sequence of ints, or an array or tensor of int64 and one dimension, which is not copied where
    it lies flat in the host's memory. Raises `InvalidEvent` for another dtype or shape: keys are never cast.
    """
    if isinstance(keys, list | tuple | range):
        keys = np.asarray(cast(Any, keys))
        keys = keys if keys.size else np.empty(0, np.int64)
    dtype, shape = describe(table, keys)
    if dtype != "int64" or len(shape) != 1:
        raise InvalidEvent(
            f"row keys are int64 of one dimension, not {dtype} {shape}", item=table, remedy="Convert them first"
        )
    flat = keys.detach().cpu().numpy() if is_torch(keys) else np.asarray(keys)  # type: ignore[attr-defined]
    return np.ascontiguousarray(flat, dtype=np.int64)


def hash_keys(keys: Keys) -> npt.NDArray[np.uint64]:
    """xxh3_64 with seed 0 of each key's 8 little-endian bytes, as `digest.key_hash` gives it: pinned for ever."""
    mixed = keys.astype(np.uint64)
    mixed = _rotated(mixed, 32) ^ _SECRET
    mixed ^= _rotated(mixed, 49) ^ _rotated(mixed, 24)
    mixed *= _PRIME
    mixed ^= (mixed >> np.uint64(35)) + _LENGTH
    mixed *= _PRIME
    mixed ^= mixed >> np.uint64(28)
    return mixed


def partitions_of(keys: Keys, partitions: int) -> npt.NDArray[np.int64]:
    """The state partition (0 … partitions - 1) of each row key: what `digest.partition_of` says of its 8 little-endian bytes."""
    hashes = hash_keys(keys)
    # What is divided by a power of two need not be divided.
    power = partitions & (partitions - 1) == 0
    return (hashes & np.uint64(partitions - 1) if power else hashes % np.uint64(partitions)).astype(np.int64)


def by_partition(keys: Keys, partitions: int) -> Iterator[tuple[int, npt.NDArray[np.int64] | None]]:
    """(partition, places of its keys in order) of each partition that has any; None stands for all places."""
    if partitions == 1:
        if len(keys):
            yield 0, None
        return
    # A topic has at most 1,024 state partitions.
    yield from _by_number(partitions_of(keys, partitions).astype(np.uint16), partitions)


def in_groups(keys: Keys, groups: int) -> Iterator[npt.NDArray[np.int64]]:
    """The places, in order, of each of at most `groups` (1 to 65,535) groups of about the same number of keys; all places of a key are
    in one. Which keys are together has nothing to do with their partition. Sorting would do it too, in four times the time.
    """
    numbers = (hash_keys(keys) >> np.uint64(32)) * np.uint64(groups) >> np.uint64(32)
    for _, places in _by_number(numbers.astype(np.uint16), groups):
        yield places


def _by_number(numbers: npt.NDArray[np.uint16], count: int) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """(number, its places in order) of each number that there is, below `count`. Numpy sorts 16 bits by their digits."""
    places = np.argsort(numbers, kind="stable")
    begin = 0
    for number, end in enumerate(np.cumsum(np.bincount(numbers, minlength=count)).tolist()):
        if end > begin:
            yield number, places[begin:end]
        begin = end


def _rotated(numbers: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    return (numbers << np.uint64(bits)) | (numbers >> np.uint64(64 - bits))
