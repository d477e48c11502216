"""Stamps: who wrote an event, where it stands, and what it depends on."""

from __future__ import annotations

from dataclasses import dataclass

from .vector import EMPTY, PartitionId, VersionVector


@dataclass(frozen=True, slots=True)
class Stamp:
    """The producer gives the first five fields; the partition's owner adds `position` and `time` when it sequences."""

    producer: str
    incarnation: int
    sequence: int
    """Counts from 1 in each partition; never given twice by one incarnation."""
    own: VersionVector[int] = EMPTY
    """The producer's own earlier writes, wherever they went. Complete and closed."""
    observed: VersionVector[int] = EMPTY
    """What the producer had seen of others. Complete and closed."""
    position: int = 0
    time: int = 0
    """Time of sequencing, ns since 1970 by the partition's own steady time."""

    def dependencies(self) -> VersionVector[int]:
        return self.own.merge(self.observed)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One line of a delivery log: an event as a consumer applied it."""

    partition: PartitionId
    stamp: Stamp
