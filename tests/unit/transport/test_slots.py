"""Slots are a hash that never changes."""

from __future__ import annotations

from paramstream.transport.slots import SLOTS, slot_of


def test_the_slot_of_a_partition_is_pinned() -> None:
    assert [slot_of((0, 0)), slot_of((1, 0)), slot_of((1, 1)), slot_of((1 << 62, 1024))] == [8, 17, 6, 14]


def test_partitions_spread_over_the_slots() -> None:
    owned = [slot_of((topic, number)) for topic in range(1, 101) for number in range(9)]
    assert set(owned) == set(range(SLOTS))
    assert max(owned.count(slot) for slot in range(SLOTS)) < 3 * len(owned) // SLOTS
