"""The one delivery gate: may this event be applied now?

PRAM and causal order are the same gate with two inputs. A PRAM consumer waits for the stamp's *own* vector (the producer's
earlier writes), a causal consumer for the *observed* vector too. Partitions that are not followed are ignored, and so is
the event's own partition: that one is applied in order anyway.

A dependency that was lost is passed without a wait: the consumer's applied position is then above it in a later epoch. It
is counted, because the promise has a hole there that the user should know of.

A consumer that jumps over events *passes* them: they count here at once, so that nobody waits for what will never be
applied, and for users only when the event that the jump leads to is applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from .epochs import EpochEnds
from .stamp import Stamp
from .vector import PartitionId, VersionVector


class Ordering(StrEnum):
    PRAM = "pram"
    CAUSAL = "causal"


class Gate:
    """Keeps the applied position of each followed partition, and the *context*: the closed vector of what was applied."""

    def __init__(self, ordering: Ordering, follows: Iterable[PartitionId]) -> None:
        self._ordering = ordering
        self._applied: dict[PartitionId, int] = dict.fromkeys(follows, 0)
        self._shown: dict[PartitionId, int] = {}
        """Where users see a partition that is passing events: it stands still until the next `applied` or `moved`."""
        self._ends: dict[PartitionId, EpochEnds] = {}
        self._context: dict[PartitionId, int] = {}
        self.lost_dependencies = 0
        """How many dependencies were passed because they were lost."""

    def blocked_by(self, partition: PartitionId, stamp: Stamp) -> tuple[PartitionId, int] | None:
        """The first dependency that is not applied yet, or None if the event may be applied."""
        blocked = self._missing(partition, stamp.own)
        if blocked is None and self._ordering is Ordering.CAUSAL:
            blocked = self._missing(partition, stamp.observed)
        return blocked

    def applied(self, partition: PartitionId, stamp: Stamp) -> None:
        """The event was applied: later events may rest on it, and whoever observes this consumer observes it, closed."""
        self.moved(partition, stamp.position)
        self._count_lost(stamp)
        for vector in (stamp.own, stamp.observed):
            for other, at in vector.items():
                if at > self._context.get(other, 0):
                    self._context[other] = at

    def moved(self, partition: PartitionId, position: int) -> None:
        """The consumer stands at `position` without an event: where it starts, an epoch record, or an undo (backwards)."""
        self._shown.pop(partition, None)
        self._applied[partition] = position

    def passed(self, partition: PartitionId, position: int) -> None:
        """Everything up to `position` is jumped over: other events need not wait for it, users do not see it yet."""
        self._shown.setdefault(partition, self._applied[partition])
        self._applied[partition] = position

    def rests_on(self, context: Mapping[PartitionId, int]) -> None:
        """What the consumer begins with rests on a closed vector: whoever observes the consumer observes that too."""
        for other, at in context.items():
            self._context[other] = max(at, self._context.get(other, 0))

    def forget(self, partition: PartitionId) -> None:
        """The partition is not followed any more (its topic is gone): nothing waits for it, nothing observed names it."""
        self._applied.pop(partition, None)
        self._shown.pop(partition, None)
        self._ends.pop(partition, None)
        self._context.pop(partition, None)

    def ended(self, partition: PartitionId, end: int) -> None:
        """An epoch of the partition ended at `end`; what is above it there is lost."""
        self._ends.setdefault(partition, EpochEnds()).add(end)

    def position(self, partition: PartitionId) -> int:
        """The last position that is applied, or passed."""
        return self._applied[partition]

    def shown(self, partition: PartitionId) -> int:
        """The last position that is applied, as users see it."""
        return self._shown.get(partition, self._applied[partition])

    def positions(self) -> VersionVector[int]:
        """What is applied, by partition, without what is only passed: not closed. A wait on a position is answered from here."""
        return VersionVector(self._applied | self._shown)

    def end_of(self, partition: PartitionId, epoch: int) -> int | None:
        """Where a finished epoch of the partition ended, if that is known."""
        ends = self._ends.get(partition)
        return None if ends is None else ends.end_of(epoch)

    def is_lost(self, partition: PartitionId, position: int) -> bool:
        ends = self._ends.get(partition)
        return ends is not None and ends.is_lost(position)

    def vector(self) -> VersionVector[int]:
        """The closed vector of what was applied: applied positions merged with both vectors of every applied event.

        An event that is only passed stands in it where an applied one rests on it, because closed vectors leave nothing out.
        """
        return VersionVector({p: at for p, at in self.positions().items() if at}).merge(self._context)

    def _missing(self, partition: PartitionId, vector: Mapping[PartitionId, int]) -> tuple[PartitionId, int] | None:
        applied = self._applied
        for other, at in vector.items():
            if other != partition and applied.get(other, at) < at:
                return other, at
        return None

    def _count_lost(self, stamp: Stamp) -> None:
        if self._ends:
            vectors = (stamp.own, stamp.observed) if self._ordering is Ordering.CAUSAL else (stamp.own,)
            self.lost_dependencies += sum(self.is_lost(p, at) for vector in vectors for p, at in vector.items())
