"""The checker of delivery logs: no gap, no repeat, dependencies before what depends on them.

A delivery log is the list of events in the order in which one consumer applied them. Epoch records belong into it, as lines
whose stamps have a position and nothing else: who has seen a partition that nobody has written to depends on its record. The
check reads stamps only, so it holds for any payload; it is linear in the log's length times the size of the vectors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from .gate import Ordering
from .position import epoch_of, offset_of, show
from .stamp import Delivery, Stamp
from .vector import EMPTY, PartitionId


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

    `starts`: the position behind which the consumer began, where that is not the partition's start. A dependency in an
    epoch that the consumer has passed is not demanded: it was applied, or it is lost.
    """
    violations: list[Violation] = []
    applied: dict[PartitionId, int] = dict(starts)
    for index, delivery in enumerate(log):
        stamp, partition = delivery.stamp, delivery.partition
        before = applied.get(partition)
        if before and not _follows_on(before, stamp.position):
            violations.append(Violation(index, f"{partition} went from {show(before)} to {show(stamp.position)}"))
        for other, at in _demanded(stamp, ordering):
            if other != partition and other in follows and applied.get(other, 0) < at:
                seen = show(applied.get(other, 0))
                violations.append(
                    Violation(index, f"{partition} {show(stamp.position)} needs {other} {show(at)}, applied {seen}")
                )
        applied[partition] = stamp.position
    return violations


def _follows_on(before: int, after: int) -> bool:
    """Positions of one epoch are dense; a new epoch begins with its record at offset 0, or the event behind that."""
    if epoch_of(after) == epoch_of(before):
        return after == before + 1
    return after > before and offset_of(after) <= 1


def _demanded(stamp: Stamp, ordering: Ordering) -> Iterable[tuple[PartitionId, int]]:
    yield from stamp.own.items()
    if ordering is Ordering.CAUSAL:
        yield from stamp.observed.items()
