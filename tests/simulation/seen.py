"""What a user of a replica sees of it at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from paramstream.consistency.vector import EMPTY, VersionVector
from paramstream.events.recording import Token

from .writes import Part


@dataclass(frozen=True)
class Seen:
    vector: VersionVector[int] = EMPTY
    """Closed."""
    parts: frozenset[Part] = frozenset()
    """The writes whose values stand there."""
    token: Token | None = None
    """What stands for all of it in the history."""
