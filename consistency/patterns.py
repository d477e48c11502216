"""What a checker finds: why a history cannot be, as operations that follow from each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
    operations: frozenset[int]
    """All that it takes: these alone violate the same model."""


def violation(edges: Iterable[Edge], explain: Explain, read: int | None = None) -> Violation:
    """With everything that explains the edges, down to what reads saw and the orders of the processes."""
    whole = tuple(edges)
    operations: set[int] = set() if read is None else {read}
    waiting, explained = list(whole), set[Edge]()
    while waiting:
        edge = waiting.pop()
        if edge in explained:
            continue
        explained.add(edge)
        operations |= {edge.before, edge.after}
        if edge.because is not None:
            operations.add(edge.because)
            waiting += explain(edge.before, edge.because)
    return Violation(whole, read, frozenset(operations))


def thin_air(operations: Operations) -> Iterator[Violation]:
    """Reads of values that nobody wrote: no model has them."""
    for read in np.flatnonzero(operations.source == NOBODY).tolist():
        yield Violation((), read, frozenset({read}))
