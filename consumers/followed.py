"""One followed partition: which event comes next, and what waits for its turn.

Contiguity is the next offset, or the epoch record that names where the epoch before ended. What has its place but waits for
the gate stands in `queue`; what came ahead of a gap stands in `ahead`. They have a budget of bytes: what comes beyond it is let
go, and fetched again when there is room.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from ..consistency.position import epoch_of, offset_of
from ..consistency.stamp import Stamp
from ..consistency.vector import PartitionId, VersionVector
from ..events.codec import EventFrame, decode_vector
from ..events.kinds import Commit, Epoch


class Mode(Enum):
    APART = "no connection"
    ASKED = "asked to follow"
    LIVE = "events are fanned out to us"
    BEHIND = "we fetch"
    STOPPED = "nothing more is taken"


@dataclass(slots=True)
class Held:
    """An event on its way to be applied."""

    frame: EventFrame
    follow: int
    """Which `SendFollow` it came under; 0 if it was fetched. Its bytes count against the credit of that one only."""
    stamp: Stamp = field(init=False)

    def __post_init__(self) -> None:
        stamp = self.frame.stamp()
        payload = self.frame.payload
        if isinstance(payload, Commit) and payload.needs:
            # Rows and KV that a commit names count as its producer's own writes.
            stamp = Stamp(
                stamp.producer, stamp.incarnation, stamp.sequence,
                stamp.own.merge(decode_vector(payload.needs)), stamp.observed, stamp.position, stamp.time,
            )  # fmt: skip
        self.stamp = stamp

    @property
    def position(self) -> int:
        return self.frame.position


@dataclass(slots=True)
class Hold:
    """The partition waits at the event `until` for events behind it that are fetched once more, from `after` on."""

    after: int
    until: int
    fetch_id: int = 0
    sent_s: float = 0.0
    failures: int = 0


@dataclass(slots=True)
class Passing:
    """A jump on its way to `target`: what lies below it is passed."""

    start: int
    target: int
    context: VersionVector[int]
    """What events that were passed rest on: the target waits for it."""
    begun: bool = False

    def passes(self, position: int) -> bool:
        return self.begun and position < self.target

    def take(self, stamp: Stamp) -> None:
        """The event was passed: what it rests on is asked of the target."""
        self.context = self.context.merge(stamp.own).merge(stamp.observed)

    def landing(self, stamp: Stamp) -> Stamp:
        """The stamp of the event that the jump leads to, as the gate is to see it."""
        return Stamp(
            stamp.producer, stamp.incarnation, stamp.sequence,
            stamp.own.merge(self.context), stamp.observed, stamp.position, stamp.time,
        )  # fmt: skip


@dataclass(slots=True)
class Followed:
    partition: PartitionId
    received: int
    """The last position of the unbroken run that we have: applied, or in `queue`."""
    mode: Mode = Mode.APART
    queue: deque[Held] = field(default_factory=deque[Held])
    ahead: dict[int, Held] = field(default_factory=dict[int, Held])
    queue_bytes: int = 0
    ahead_bytes: int = 0
    let_go: bool = False
    """Something was let go for want of room, and not asked for again yet."""
    follow: int = 0
    """Counts the times we asked to follow."""
    consumed_bytes: int = 0
    credited_bytes: int = 0
    accepted: int = 0
    durable: int = 0
    heard: bool = False
    """The present connection has told the accepted head."""
    told_durable: int = 0
    fetch_id: int = 0
    """Of the fetch that is out; 0 if none is."""
    sent_s: float = 0.0
    suspect: int = -1
    """Where an event could not be decoded that is being fetched once more: the position before it."""
    must_last: int = 0
    """The event at this position is offered once it can no longer be lost."""
    hold: Hold | None = None
    passing: Passing | None = None
    start: int = field(init=False)
    """Where we began to follow, or jumped to."""
    last_epoch: tuple[int, int] = (0, 0)
    """(position of the last epoch record applied, end that it names)."""

    def __post_init__(self) -> None:
        self.start = self.received

    @property
    def held_bytes(self) -> int:
        return self.queue_bytes + self.ahead_bytes

    def take(self, held: Held, budget_bytes: int) -> None:
        """Keep an event that is above `received`, if there is room; one that we have already is let go."""
        nbytes = held.frame.nbytes
        if held.position <= self.received or held.position in self.ahead:
            self.consume(held)
        elif self._has_room(held, budget_bytes):
            self.ahead[held.position] = held
            self.ahead_bytes += nbytes
        else:
            self.let_go = True
            self.consume(held)

    def advance(self) -> int | None:
        """Move what follows without a gap from `ahead` into `queue`.

        Returns an end that lies below what we had, where an epoch record names one: what was in `queue` above it is gone.
        """
        lost_above: int | None = None
        opened = False
        while self.ahead:
            held = self.ahead.get(self.received + 1) or self._next_epoch()
            if held is None:
                break
            del self.ahead[held.position]
            self.ahead_bytes -= held.frame.nbytes
            payload = held.frame.payload
            opened = opened or isinstance(payload, Epoch)
            if isinstance(payload, Epoch) and payload.previous_end < self.received:
                self._drop_above(payload.previous_end)
                lost_above = payload.previous_end if lost_above is None else min(lost_above, payload.previous_end)
            self.queue.append(held)
            self.queue_bytes += held.frame.nbytes
            self.received = held.position
        if opened:
            # What came ahead of a gap in an epoch that is over by now never stood.
            for position in [position for position in self.ahead if position <= self.received]:
                held = self.ahead.pop(position)
                self.ahead_bytes -= held.frame.nbytes
                self.consume(held)
        return lost_above

    def pop(self) -> Held:
        held = self.queue.popleft()
        self.queue_bytes -= held.frame.nbytes
        self.consume(held)
        return held

    def clear(self, applied: int) -> None:
        """Forget all that waits: the run ends at `applied` again."""
        for held in (*self.queue, *self.ahead.values()):
            self.consume(held)
        self.queue.clear()
        self.ahead.clear()
        self.queue_bytes = self.ahead_bytes = 0
        self.received = applied

    def jump(self, passing: Passing) -> None:
        """Go on from `passing.start`: nothing that waits or was asked for is wanted any more."""
        self.clear(passing.start)
        self.passing, self.start = passing, passing.start
        self.mode, self.hold, self.fetch_id, self.suspect, self.let_go = Mode.APART, None, 0, -1, False

    def consume(self, held: Held) -> None:
        if held.follow == self.follow:
            self.consumed_bytes += held.frame.nbytes

    def is_lost(self, position: int) -> bool:
        """Above the end that the last epoch record names, and below that record."""
        record, end = self.last_epoch
        return end < position < record

    def is_durable(self, position: int) -> bool:
        """Whether what stands at `position` of our run can no longer be lost: the durable head has passed it, or our run goes on
        into the head's epoch, whose record has taken away what that epoch found lost.
        """
        epoch = epoch_of(self.durable)
        if epoch_of(position) == epoch:
            return position <= self.durable
        return epoch_of(position) < epoch <= epoch_of(self.received)

    def _has_room(self, held: Held, budget_bytes: int) -> bool:
        """What comes next may not be refused for what is ahead of it: it is what that waits for."""
        if held.position == self.received + 1 or offset_of(held.position) == 0:
            return self.queue_bytes <= budget_bytes
        return self.held_bytes + held.frame.nbytes <= budget_bytes

    def _next_epoch(self) -> Held | None:
        """The earliest epoch record in `ahead` that follows: it names an end at or below what we have."""
        for position in sorted(position for position in self.ahead if offset_of(position) == 0):
            held = self.ahead[position]
            payload = held.frame.payload
            assert isinstance(payload, Epoch)
            if payload.previous_end <= self.received and epoch_of(position) > epoch_of(self.received):
                return held
            # It may be lost itself: then a later one names an end below it.
        return None

    def _drop_above(self, end: int) -> None:
        while self.queue and self.queue[-1].position > end:
            if self.hold is not None and self.queue[-1].position == self.hold.until:
                self.hold = None
            held = self.queue.pop()
            self.queue_bytes -= held.frame.nbytes
            self.consume(held)
        self.received = end
