"""Where the epochs of a partition ended: what is above an end is lost, for everybody alike."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from .position import epoch_of

REMEMBERED_EPOCHS = 1000
"""Ends kept for each partition (24 KiB). Older positions count as standing: whoever still asks is far behind."""


class EpochEnds:
    """The ends of a partition's finished epochs, oldest first, as (epoch, position of its last event that stands).

    An epoch of which nothing stands ends at its own offset 0, or is missing (its epoch record never counted); a position
    of a missing epoch that lies below a known one is lost too.
    """

    __slots__ = ("_ends",)

    def __init__(self, ends: Iterable[tuple[int, int]] = ()) -> None:
        self._ends: list[tuple[int, int]] = sorted(ends)[-REMEMBERED_EPOCHS:]

    def add(self, end: int) -> None:
        """The epoch of `end` is over and ended there. Adding it again changes nothing."""
        epoch = epoch_of(end)
        if self._ends and epoch <= self._ends[-1][0]:
            return
        self._ends.append((epoch, end))
        del self._ends[:-REMEMBERED_EPOCHS]

    def is_lost(self, position: int) -> bool:
        """True if `position` is known to be above the end of its epoch; False while its epoch goes on, or if it stands."""
        index = bisect_left(self._ends, (epoch_of(position), 0))
        if index == len(self._ends):
            return False
        epoch, end = self._ends[index]
        if epoch == epoch_of(position):
            return position > end
        return index > 0

    def end_of(self, epoch: int) -> int | None:
        """Where a finished epoch ended; None where that is not known, or the epoch goes on."""
        index = bisect_left(self._ends, (epoch, 0))
        return self._ends[index][1] if index < len(self._ends) and self._ends[index][0] == epoch else None

    def pairs(self) -> list[tuple[int, int]]:
        return list(self._ends)
