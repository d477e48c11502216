"""What can be done to a world in one step."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from .kinds import Kind
from .world import World


@dataclass(frozen=True)
class Act:
    name: str
    """Stands in scenarios that are kept: it is never given another meaning."""
    do: Callable[[World, random.Random], None]
    """Does nothing where the world has nothing to do it to. All chance comes from the stream that is handed in."""
    weight: float
    """How often, beside the others."""
    is_fault: bool = True
    """Some worlds have none of it, and some much."""
    kinds: tuple[Kind, ...] = ("alone", "shared")
    """Of worlds in which it is done."""
