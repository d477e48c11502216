"""What a producer can have observed: anything that knows a closed vector."""

from __future__ import annotations

from typing import Protocol

from ..consistency.vector import VersionVector


class Observable(Protocol):
    """What can be observed: a replica, or a receipt."""

    @property
    def vector(self) -> VersionVector[str]:
        """Closed: everything seen, and everything that rests on."""
        ...
