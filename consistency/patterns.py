"""What a checker finds: why a history cannot be, as operations that follow from each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from .constraints import Edge
from .operations import NOBODY, Operations

Explain: TypeAlias = Callable[[int, int], list[Edge]]
"""How a write comes into the past of a read."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Ids are those of the operations that were checked."""

    edges: tuple[Edge, ...]
    """A circle; or how a write comes into the past of a read that saw the initial value of its key; or nothing, for a read
    of a value that nobody wrote.
    """
    read: int | None
    """That read; None for a circle."""
    pasts: Mapping[Edge, tuple[Edge, ...]]
    """For each edge because of a read, here and in these again, how the older write comes into the past of that read."""

    def operations(self) -> set[int]:
        """All that it takes: these operations alone violate the same model."""
        edges = {*self.edges, *(edge for past in self.pasts.values() for edge in past)}
        ends = {end for edge in edges for end in (edge.before, edge.after, edge.because)}
        return {end for end in (*ends, self.read) if end is not None}


def violation(edges: Iterable[Edge], explain: Explain, read: int | None = None) -> Violation:
    """With everything that explains the edges, down to what reads saw and the orders of the processes."""
    whole = tuple(edges)
    pasts: dict[Edge, tuple[Edge, ...]] = {}
    waiting = list(whole)
    while waiting:
        edge = waiting.pop(0)
        if edge.because is not None and edge not in pasts:
            pasts[edge] = tuple(explain(edge.before, edge.because))
            waiting += pasts[edge]
    return Violation(whole, read, pasts)


def thin_air(operations: Operations) -> Iterator[Violation]:
    """Reads of values that nobody wrote: no model has them."""
    for read in np.flatnonzero(operations.source == NOBODY).tolist():
        yield Violation((), read, {})
