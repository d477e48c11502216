"""A smallest part of a history that still breaks the model, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from .operations import OperationLine, Operations
from .patterns import Violation
from .wording import Wording

Find: TypeAlias = Callable[[Operations], Iterator[Violation]]

CANDIDATES = 8
"""Of so many violations the one that takes the fewest operations is made smaller: the next ones are seldom shorter."""


@dataclass(frozen=True, slots=True)
class Witness:
    """Operations that no history of the model has, by process and in its order; without any one of them it would be one."""

    operations: tuple[OperationLine, ...]
    why: str
    """One sentence."""
    because: tuple[str, ...]
    """What the sentence rests on, one step each."""


def find_witness(operations: Operations, find: Find) -> Witness | None:
    """A smallest violation of the model that `find` looks for; None if there is none."""
    found = min(islice(find(operations), CANDIDATES), key=lambda each: len(each.operations()), default=None)
    if found is None:
        return None
    smallest = _smallest(operations.restricted(found.operations()), find)
    words = Wording(smallest)
    why, because = words.explain(next(find(smallest)))
    return Witness(tuple(map(smallest.line, range(len(smallest)))), why, because)


def _smallest(operations: Operations, find: Find) -> Operations:
    """Leaves operations out, first many at once and at last one by one, as long as what is left still breaks the model."""
    step = max(1, len(operations) // 2)
    while True:
        before = len(operations)
        at = 0
        while at < len(operations):
            rest = operations.restricted([*range(at), *range(at + step, len(operations))])
            found = next(find(rest), None)
            if found is None:
                at += step
            else:
                operations = rest.restricted(found.operations())
        if step == 1 and len(operations) == before:
            return operations
        step = max(1, step // 2)
