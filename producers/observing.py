"""What a producer can have observed: anything that knows a closed vector."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ..consistency.vector import VersionVector
from ..events.recording import Token


class Observable(Protocol):
    """What can be observed: a replica, or a receipt."""

    @property
    def vector(self) -> VersionVector[str]:
        """Closed: everything seen, and everything that rests on."""
        ...


@runtime_checkable
class Recorded(Protocol):
    """An observable that may record what it does."""

    def observed(self) -> tuple[VersionVector[str], Token | None]:
        """Its `vector`, and the token of just that; None where it records nothing."""
        ...
