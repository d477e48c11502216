"""Digests and checksums: over names, shapes, dtypes and logical bytes, never over memory layout or cuts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec
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
