"""When a keeper makes its next snapshot of a topic. No I/O, no clock: seconds come in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

INTERVAL_S = 60.0
"""What has moved at all is kept at least so often."""

PACE = 4
"""Snapshots take no more than about this part of the time, unless the log is more than half full."""

_LONG_AGO = -(1 << 62)


class Reached(NamedTuple):
    """How far a topic has come."""

    appended: int
    """Bytes of state, since its owners opened its partitions."""
    version: int
    """The position of the newest version's commit."""
    applied: tuple[int, ...]
    """The positions of the state partitions: of the keeper's replica, or in a snapshot."""


class LogLoad(NamedTuple):
    """What the log holds."""

    state_bytes: int
    """Of the topic's state."""
    share: int
    """So much appended to the topic's state is worth a snapshot."""
    is_pressed: bool
    """All in all it is more than half full."""


@dataclass(slots=True)
class Kept:
    """What the snapshots of a topic have that are there, the last two of them."""

    since: float
    """When the keeper took the topic up, or made the last snapshot."""
    interval_s: float = INTERVAL_S
    is_trimmed: bool = False
    """When the keeper took it up, the log did not have all of its state."""
    newest: Reached | None = None
    oldest: Reached | None = None
    """The log holds all that lies behind this one."""
    took_s: float = 0.0

    def made(self, reached: Reached, now: float, took_s: float) -> None:
        self.oldest, self.newest = self.newest, reached
        if self.oldest is not None and self.oldest.appended > reached.appended:
            # Counted from another beginning: whatever it holds is too much.
            self.oldest = self.oldest._replace(appended=_LONG_AGO)
        self.since, self.took_s = now, took_s

    def is_due(self, reached: Reached, log: LogLoad, now: float) -> bool:
        newest, oldest, since_s = self.newest, self.oldest, now - self.since
        if newest is None:
            # Of what has left the log only snapshots have the state, and nobody else's may be in reach. What was appended
            # before the keeper began is known only by what the log holds.
            return self.is_trimmed or log.state_bytes >= log.share or since_s >= self.interval_s
        grown = reached.appended - newest.appended
        if grown < 0 or (grown == 0 and reached.applied != newest.applied):
            # Partitions were opened anew, or the replica was behind, as after a move: nothing else may come that tells of more.
            return True
        if grown >= log.share:
            return log.is_pressed or since_s >= PACE * self.took_s
        if log.is_pressed and oldest is not None and reached.appended - oldest.appended >= log.share:
            # Publishers may stand still for want of room, which only another snapshot makes: by it the oldest goes.
            return True
        return since_s >= self.interval_s and reached != newest
