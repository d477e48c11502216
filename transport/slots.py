"""Slots: what brokers share among them, so that a partition's owner is found without asking for each one.

A partition belongs to a slot by a hash that never changes. Over a log that one broker has for itself it owns all slots.
"""

from __future__ import annotations

import struct

import xxhash

from ..consistency import vector
from ..consistency.vector import PartitionId

META: PartitionId = vector.META

SLOTS = 32
"""So many slots there are: more brokers than that do not share the work any further."""


def slot_of(partition: PartitionId) -> int:
    """The slot of a partition: xxh3_64, seed 0, of its topic id and number as little-endian 64-bit integers."""
    return xxhash.xxh3_64_intdigest(struct.pack("<QQ", *partition)) % SLOTS
