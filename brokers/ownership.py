"""Which slots are this broker's, and whose the others are, in one generation."""

from __future__ import annotations

from dataclasses import dataclass

from ..consistency.vector import PartitionId
from ..transport.messages import Owner
from ..transport.slots import SLOTS, slot_of


@dataclass(frozen=True, slots=True)
class Ownership:
    """One generation's map, as one broker sees it. All brokers of a generation have the same `owners`."""

    generation: int
    slots: frozenset[int]
    """This broker's own."""
    owners: tuple[Owner, ...] = ()
    """All brokers of the generation; empty where this one alone owns everything."""

    def has(self, partition: PartitionId) -> bool:
        return slot_of(partition) in self.slots


EVERYTHING = Ownership(0, frozenset(range(SLOTS)))
"""Of a broker whose log is its own."""

NOTHING = Ownership(0, frozenset())
"""Of a broker that has not been given any slots yet."""
