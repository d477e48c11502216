"""The digest of all that a replica holds, made piece by piece: values that lie on SSD are read one at a time."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import xxhash

from ..tiers.entries import Entry


class TopicHeld(NamedTuple):
    """What a replica holds of one topic at one moment."""

    name: str
    weights: bytes
    """The digest of digests of the version served; empty where there is none."""
    entries: list[tuple[bytes, Entry]]
    """Of all state partitions followed."""
    rows: Sequence[Any]
    """(table, digest), or what else stands for the rows."""


def digest_of(topics: Iterable[TopicHeld]) -> str:
    """32 hexadecimal digits: the xxh3_128 of the msgpack of [name, weights, [[key, value, deadline or 0]], rows] of each topic, topics
    by name and entries by key. Raises `CorruptTier` where SSD does not give a value.
    """
    found, encode = xxhash.xxh3_128(), msgspec.msgpack.encode
    ordered = sorted(topics, key=lambda topic: topic.name)
    found.update(_array_head(len(ordered)))
    for topic in ordered:
        found.update(_array_head(4) + encode(topic.name) + encode(topic.weights) + _array_head(len(topic.entries)))
        for key, entry in sorted(topic.entries, key=lambda item: item[0]):
            found.update(encode((key, entry.value, entry.deadline or 0)))
        found.update(encode(topic.rows))
    return found.hexdigest()


def _array_head(length: int) -> bytes:
    """How msgpack begins an array."""
    if length < 16:
        return bytes([0x90 | length])
    return struct.pack(">BH", 0xDC, length) if length < 1 << 16 else struct.pack(">BI", 0xDD, length)
