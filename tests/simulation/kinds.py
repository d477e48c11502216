"""The kinds of worlds. Which one a seed has never changes."""

from __future__ import annotations

from typing import Literal

Kind = Literal["alone", "shared"]
"""One broker that has its log for itself, or several over one log."""


def kind_of(seed: int) -> Kind:
    """A shared world takes several times as long: one in four is."""
    return "shared" if seed % 4 == 0 else "alone"
