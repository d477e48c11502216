"""What a partition core wants done: the shell does it, in this order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..events.codec import Buffer
from ..transport.messages import Ack, Refused


class Origin(NamedTuple):
    """The connection that something came over."""

    peer: bytes
    """Where answers go."""
    serial: int
    """Grows from connection to connection of a broker, in the order of their hellos."""


@dataclass(frozen=True, slots=True)
class Append:
    """Append one stamped frame to the partition's log. Appends go to the log in the order in which they were returned."""

    frame: Buffer
    position: int
    """Of the event or epoch record; of a claim or base: the position of the state it was made at."""
    lasting: bool = True
    """False under persistence "none" for all but claims and epoch records: for the broker's memory only."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Send `message` to the session's peer (the routing id on which the event came)."""

    peer: bytes
    message: Ack | Refused


@dataclass(frozen=True, slots=True)
class FanOut:
    """Give one stamped frame to those that follow the partition. Positions of a partition come in order."""

    frame: Buffer
    position: int


Effect = Append | Answer | FanOut
