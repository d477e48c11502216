"""What a session core wants done, as data."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import Fenced
from .calls import Call, Event


@dataclass(frozen=True, slots=True)
class Send:
    """Put `frame` on the wire; if nothing could be sent, tell the core `unsent(event)`."""

    event: Event
    frame: bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Dropped:
    """The event does not stand, and is not sent again: it was refused, is lost, or goes again as another event."""

    event: Event


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome of `call` has changed."""

    call: Call


@dataclass(frozen=True, slots=True)
class JoinAgain:
    """Ask for a join, naming `SessionCore.unconfirmed()`."""


@dataclass(frozen=True, slots=True)
class FencedOut:
    """A newer session of the name is served. Nothing is sent any more."""

    error: Fenced


Effect = Send | Dropped | Settled | JoinAgain | FencedOut
