"""Puts a violation into words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from .constraints import Edge
from .operations import Operations, name_text, value_text
from .patterns import Violation


class Wording:
    """Speaks of operations as the lines of their files do."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def explain(self, violation: Violation) -> tuple[str, tuple[str, ...]]:
        """Why it is a violation, in one sentence; and what that rests on."""
        reasons = tuple(self._older(edge, past) for edge, past in violation.pasts.items())
        if violation.read is not None:
            return self._read(violation, violation.read), reasons
        older = [edge for edge in violation.edges if edge.because is not None]
        chains = [list(edges) for is_chain, edges in groupby(violation.edges, lambda e: e.because is None) if is_chain]
        if not older:
            return f"it runs in a circle: {self._chain(violation.edges)}", reasons
        if len(older) == 1 and older[0].because is not None:
            read, newer = older[0].because, self._item(older[0].before)
            why = f"{self._act(read)}, although {newer}, which comes after that, is in its past"
        else:
            circle = ", ".join(f"{self._item(edge.before)} before {self._item(edge.after)}" for edge in older)
            why = f"there is no order of these writes that suits all reads: {circle}"
        return why, (*(f"{self._ends(chain)}: {self._chain(chain)}" for chain in chains), *reasons)

    def _read(self, violation: Violation, read: int) -> str:
        if not violation.edges:
            return f"{self._act(read)}, which nobody wrote"
        written = self._item(violation.edges[0].before)
        return f"{self._act(read)}, although {written} is in its past: {self._chain(violation.edges)}"

    def _older(self, edge: Edge, past: Sequence[Edge]) -> str:
        assert edge.because is not None
        older, newer = self._item(edge.before), self._item(edge.after)
        seen = f"{self._act(edge.because)} with {older} in its past"
        return f"{older} comes before {newer}: {seen}: {self._chain(past)}"

    def _ends(self, chain: Sequence[Edge]) -> str:
        return f"{self._item(chain[0].before)} comes before {self._item(chain[-1].after)}"

    def _chain(self, edges: Sequence[Edge]) -> str:
        """The way from the first operation to the last."""
        text = self._act(edges[0].before)
        for edge in edges:
            if edge.because is not None:
                text += f", which comes before {self._item(edge.after)}"
            elif self._operations.source[edge.after] == edge.before:
                text += f", which {self._process(edge.after)} read ({self._place(edge.after)})"
            else:
                text += f", then {self._act(edge.after)}"
        return text

    def _act(self, operation: int) -> str:
        did = "wrote" if self._operations.is_write[operation] else "read"
        return f"{self._process(operation)} {did} {self._item(operation)} ({self._place(operation)})"

    def _process(self, operation: int) -> str:
        return name_text(self._operations.line(operation).process)

    def _item(self, operation: int) -> str:
        line = self._operations.line(operation)
        return f"{name_text(line.key)}={value_text(line.value)}"

    def _place(self, operation: int) -> str:
        line = self._operations.line(operation)
        return f"line {line.line}" if len(self._operations.labels.files) == 1 else f"line {line.line} of {line.file}"
