"""Digests and checksums: over names, shapes, dtypes and logical bytes, never over memory layout or cuts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

DIGEST_BYTES = 16


class Described(Protocol):
    """What a version's digest reads of a tensor."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def digest(self) -> bytes: ...


def checksum(data: bytes | bytearray | memoryview) -> int:
    """xxh3_64 with seed 0: as fast as memcpy."""
    return xxhash.xxh3_64_intdigest(data)


def tensor_digest(data: bytes | bytearray | memoryview) -> bytes:
    """xxh3_128 of a tensor's row-major bytes: 16 bytes."""
    return xxhash.xxh3_128_digest(data)


class TensorHash(Protocol):
    """A `tensor_digest` of bytes that come piece by piece."""

    def update(self, data: bytes | bytearray | memoryview, /) -> None: ...
    def digest(self) -> bytes: ...


def tensor_hash() -> TensorHash:
    return xxhash.xxh3_128()


def version_digest(tensors: Iterable[Described]) -> bytes:
    """The digest of digests: 16 bytes over (name, dtype, shape, digest) of every tensor in the order of their names.

    A tied tensor counts under its own name with the digest of the bytes it shares.
    """
    rows = sorted((tensor.name, tensor.dtype, tensor.shape, tensor.digest) for tensor in tensors)
    return xxhash.xxh3_128_digest(msgspec.msgpack.encode(rows))


def key_hash(key: bytes) -> int:
    """xxh3_64 with seed 0: decides a key's partition, so it is pinned for ever."""
    return xxhash.xxh3_64_intdigest(key, seed=0)


def partition_of(key: bytes, partitions: int) -> int:
    """The state partition (0 … partitions − 1) of a KV key, or of a row key as 8 little-endian bytes."""
    return key_hash(key) % partitions if partitions > 1 else 0


# xxh3_64 of 8 bytes with seed 0: the constants of its definition, for all keys of an array at once.
_FLIP = np.uint64(0xC73AB174C5ECD5A2)
_PRIME = np.uint64(0x9FB21C651E98DF25)
_ROW_KEY_BYTES = np.uint64(8)


def row_key_hashes(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """`key_hash` of each key as 8 little-endian bytes."""
    mixed = keys.astype("<i8", copy=False).view(np.uint64)
    mixed = _rotated(mixed, 32) ^ _FLIP
    mixed = mixed ^ _rotated(mixed, 49) ^ _rotated(mixed, 24)
    mixed = mixed * _PRIME
    mixed = (mixed ^ ((mixed >> np.uint64(35)) + _ROW_KEY_BYTES)) * _PRIME
    return mixed ^ (mixed >> np.uint64(28))


def partitions_of(keys: npt.NDArray[np.int64], partitions: int) -> npt.NDArray[np.int64]:
    """The state partition of each row key: what `partition_of` says of its 8 little-endian bytes."""
    if partitions == 1:
        return np.zeros(len(keys), np.int64)
    return (row_key_hashes(keys) % np.uint64(partitions)).astype(np.int64)


def _rotated(values: npt.NDArray[np.uint64], left: int) -> npt.NDArray[np.uint64]:
    return (values << np.uint64(left)) | (values >> np.uint64(64 - left))
