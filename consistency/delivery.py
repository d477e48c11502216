"""The checker of delivery logs: no gap, no repeat, dependencies before what depends on them.

A delivery log is what one consumer did to the partitions that it follows, in order: it applied events, passed epoch records (who
has seen a partition that nobody has written to depends on its record), took lost events back, jumped. The check reads stamps
only, so it holds for any payload; it is linear in the log's length times the size of the vectors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from .gate import Ordering
from .position import epoch_of, offset_of, show
from .stamp import Delivery
from .vector import EMPTY, PartitionId

Partition = TypeVar("Partition", PartitionId, str)


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise: `index` is the line of the log, `problem` says what came before what it needed."""

    index: int
    problem: str


def check_deliveries(
    log: Iterable[Delivery],
    ordering: Ordering,
    follows: Collection[PartitionId],
    starts: Mapping[PartitionId, int] = EMPTY,
) -> list[Violation]:
    """Every violation in `log` of a consumer that follows `follows`; an empty list proves the order of this log.

    `starts`: the position behind which the consumer began, where that is not the partition's start.
    """
    consumer = DeliveryCheck[PartitionId]()
    for partition in follows:
        consumer.follow(partition, starts.get(partition, 0), ordering)
    return [
        Violation(index, problem)
        for index, delivery in enumerate(log)
        for problem in consumer.apply(
            delivery.partition, delivery.stamp.position, delivery.stamp.own, delivery.stamp.observed
        )
    ]


class DeliveryCheck(Generic[Partition]):
    """One consumer, line by line; each call returns what that line breaks.

    A dependency in an epoch that the consumer has passed is not demanded: it was applied, or it is lost.
    """

    def __init__(self) -> None:
        self._ordering = Ordering.PRAM
        self._applied: dict[Partition, int] = {}
        """For each partition that is followed the last position that is applied, or passed over."""

    def follow(self, partition: Partition, position: int, ordering: Ordering) -> list[str]:
        """It follows the partition from behind `position`; again, and perhaps further back, after a restart."""
        self._ordering = ordering
        self._applied[partition] = position
        return []

    def unfollow(self, partition: Partition) -> list[str]:
        """It follows the partition no more, and nothing waits for it."""
        self._applied.pop(partition, None)
        return []

    def apply(
        self, partition: Partition, position: int, own: Mapping[Partition, int], observed: Mapping[Partition, int]
    ) -> list[str]:
        """It applied an event whose stamp has these vectors."""
        problems = self.epoch(partition, position)
        for vector in (own, observed) if self._ordering is Ordering.CAUSAL else (own,):
            for other, at in vector.items():
                applied = self._applied.get(other, at)
                if other != partition and applied < at:
                    needs = f"{_name(other)} {show(at)}, applied {show(applied)}"
                    problems.append(f"{_name(partition)} {show(position)} needs {needs}")
        return problems

    def epoch(self, partition: Partition, position: int) -> list[str]:
        """It passed an epoch record."""
        before = self._applied.get(partition)
        self._applied[partition] = position
        if before is None:
            return [f"{_name(partition)} {show(position)} was applied, and the partition is not followed"]
        if not _follows_on(before, position):
            return [f"{_name(partition)} went from {show(before)} to {show(position)}"]
        return []

    def undo(self, partition: Partition, position: int) -> list[str]:
        """It took back all above `position`."""
        return self._move(partition, position, "was taken back", forward=False)

    def jump(self, partition: Partition, position: int) -> list[str]:
        """It passed over everything up to `position`."""
        return self._move(partition, position, "jumped", forward=True)

    def _move(self, partition: Partition, position: int, how: str, *, forward: bool) -> list[str]:
        before = self._applied.get(partition)
        self._applied[partition] = position
        if before is None:
            return [f"{_name(partition)} {how} to {show(position)}, and the partition is not followed"]
        if position != before and (position > before) is not forward:
            return [f"{_name(partition)} {how} from {show(before)} to {show(position)}"]
        return []


def _follows_on(before: int, after: int) -> bool:
    """Positions of one epoch are dense; a new epoch begins with its record at offset 0, or the event behind that."""
    if epoch_of(after) == epoch_of(before):
        return after == before + 1
    return after > before and offset_of(after) <= 1


def _name(partition: PartitionId | str) -> str:
    return partition if isinstance(partition, str) else f"{partition[0]}/{partition[1]}"
