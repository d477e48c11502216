"""The one rule of every log: which of its records count.

A log fences itself. A *claim* counts if its epoch is above all claims before it. Any other record counts if the latest claim
is its writer's own (epoch and nonce) and it stands at the next position: an epoch record at offset 0 of the claimed epoch, an
event or note directly behind the record before it, a base *at* the position reached (it takes none). All else is void, for
every reader alike: repeats, records of stale owners, requests that land after their sender gave up.

Whoever reads records in the log's order, from its beginning or from a point that was noted, computes the same answer.
"""

from __future__ import annotations

from typing import NamedTuple

from ..consistency.position import MAX_EPOCH, MAX_OFFSET, START, epoch_of, offset_of
from ..events.codec import Buffer, EventFrame, Prefix, decode_event
from ..events.kinds import Base, Claim, Kind

_NAMES_ITS_EPOCH = frozenset({Kind.CLAIM, Kind.BASE})


class Point(NamedTuple):
    """All that decides whether the next record counts; noted beside an offset of the log, reading may begin there."""

    epoch: int
    """Of the latest claim that counts; 0 before the first."""
    nonce: int
    """Of the latest claim that counts."""
    reached: int
    """The position of the last record that counts."""


BEGINNING = Point(0, 0, START)
"""Before the first record of a log that was never cut."""


class Counting:
    """Reads a log's records one by one and says of each whether it counts.

    One that starts at the `BEGINNING` believes a base that it meets before anything else: a log is cut only directly before a
    base which its owner has read back as counting.
    """

    __slots__ = ("_epoch", "_nonce", "_reached")

    def __init__(self, point: Point = BEGINNING) -> None:
        self._epoch, self._nonce, self._reached = point

    @property
    def point(self) -> Point:
        return Point(self._epoch, self._nonce, self._reached)

    @property
    def reached(self) -> int:
        """The position of the last record that counts."""
        return self._reached

    @property
    def last_claim(self) -> int:
        """The greatest epoch ever claimed: a new claim goes above it."""
        return self._epoch

    def counts(self, frame: EventFrame) -> bool:
        """Take the log's next record. True if it counts."""
        match frame.payload:
            case Claim(epoch=epoch, nonce=nonce):
                return self._claim(epoch, nonce)
            case Base(epoch=epoch):
                return self._base(epoch, frame.nonce, frame.position)
            case _:
                return self._record(frame.kind, frame.nonce, frame.position)

    def takes(self, prefix: Prefix, frame: Buffer) -> bool:
        """As `counts`, for a frame of which only the prefix was read. Decodes claims and bases, and nothing else."""
        if prefix.kind in _NAMES_ITS_EPOCH:
            return self.counts(decode_event(frame))
        return self._record(prefix.kind, prefix.nonce, prefix.position)

    def _claim(self, epoch: int, nonce: int) -> bool:
        if not self._epoch < epoch <= MAX_EPOCH:
            return False
        self._epoch, self._nonce = epoch, nonce
        return True

    def _base(self, epoch: int, nonce: int, position: int) -> bool:
        if self.point == BEGINNING:
            self._epoch, self._nonce, self._reached = epoch, nonce, position
            return True
        return (epoch, nonce, position) == self.point

    def _record(self, kind: Kind, nonce: int, position: int) -> bool:
        if nonce != self._nonce or not self._epoch:
            return False
        if kind is not Kind.EPOCH:
            if position != self._reached + 1 or epoch_of(position) != self._epoch or not offset_of(position):
                return False
        elif not self._opens(position):
            return False
        else:
            self._epoch = epoch_of(position)
        self._reached = position
        return True

    def _opens(self, position: int) -> bool:
        """Whether an epoch record at `position` opens an epoch.

        A full offset opens the next epoch without a claim of its own: the record stands for one, so that another owner's
        claim of that same epoch no longer counts.
        """
        if offset_of(position):
            return False
        if offset_of(self._reached) == MAX_OFFSET and epoch_of(self._reached) == self._epoch:
            return position == self._reached + 1
        return epoch_of(self._reached) < epoch_of(position) == self._epoch
