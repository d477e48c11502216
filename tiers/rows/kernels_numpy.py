"""The loops of a row table as numpy does them: what the compiled ones follow bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .index import MOST_INDEX_BYTES, DictIndex, Ints, RowIndex
from .initial import exact_rows
from .optimizers import Floats, step
from .spec import OptimizerSpec, RowSpec

Positions = NDArray[np.uint64]

_BLOCK_VALUES: Final = 1 << 15
"""First values made at a time: their steps then stay in the processor's cache, which is several times as fast."""


@dataclass(frozen=True, slots=True)
class Folded:
    """The slots of a batch without repeats, in the order of their first place in it."""

    slots: Ints
    first: Ints
    """The first place of each in the batch,"""
    last: Ints
    """and the last one."""
    owner: Ints
    """For each place of the batch, which of `slots` stands there."""


@dataclass(frozen=True, slots=True)
class Before:
    """Rows as they were before a change."""

    values: NDArray[Any]
    state: Floats
    positions: Positions


@dataclass(frozen=True, slots=True)
class Changed:
    """What a change did."""

    slots: Ints
    """The slots that were older than it, and changed."""
    places: Ints
    """The first place of each in the batch."""
    before: Before | None
    """What they were, where that was asked for."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The memory of a table's rows, by slot."""

    spec: RowSpec
    keys: Ints
    positions: Positions
    values: NDArray[Any]
    state: Floats


class NumpyKernels:
    """Loops over slots and rows. What they are given fits, and is under its table's lock."""

    def make_ready(self, spec: RowSpec) -> None:
        """Compiles what a table of `spec` needs; under no lock, since it may take seconds."""

    def new_index(self, most_bytes: int = MOST_INDEX_BYTES) -> RowIndex:
        """An empty index that may grow to about so many bytes."""
        return DictIndex()

    def initial_rows(self, spec: RowSpec, keys: Ints) -> NDArray[Any]:
        """What rows under `keys` hold before they were written: (n, dim) of the table's dtype."""
        rows = np.empty((len(keys), spec.dim), spec.value_dtype)
        if spec.init.kind == "constant":
            rows[:] = np.float64(spec.init.settings["value"]).astype(spec.value_dtype)
            return rows
        step = max(1, _BLOCK_VALUES // spec.dim)
        for start in range(0, len(keys), step):
            rows[start : start + step] = self.exact_rows(spec, keys[start : start + step]).astype(spec.value_dtype)
        return rows

    def exact_rows(self, spec: RowSpec, keys: Ints) -> NDArray[np.float64]:
        """The same before it is rounded, of a kind that is no constant."""
        return exact_rows(spec.init, keys, spec.dim)

    def gather(self, column: NDArray[Any], slots: Ints) -> NDArray[Any]:
        """A copy of the rows of `slots` (all ≥ 0)."""
        return column[slots]

    def scatter(self, column: NDArray[Any], slots: Ints, rows: NDArray[Any], places: Ints) -> None:
        """Copies to each of `slots`, which do not repeat, the row of `rows` at its place."""
        column[slots] = rows[places]

    def fold(self, slots: Ints) -> Folded:
        """Finds the slots that repeat."""
        distinct, first, inverse = np.unique(slots, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        owner = rank[inverse]
        last = np.zeros(len(order), np.int64)
        np.maximum.at(last, owner, np.arange(len(slots)))
        return Folded(distinct[order], first[order], last, owner)

    def sum_repeated(self, gradients: Floats, folded: Folded) -> Floats:
        """One row for each slot: its gradients summed in their order, beginning with the first one as it is. Of the same dtype."""
        sums = gradients[folded.first]
        if len(folded.slots) < len(folded.owner):
            later = np.ones(len(folded.owner), bool)
            later[folded.first] = False
            with np.errstate(all="ignore"):
                np.add.at(sums, folded.owner[later], gradients[later])
        return sums

    def step(self, optimizer: OptimizerSpec, values: Floats, state: Floats, gradients: Floats) -> None:
        """Has the optimizer change rows in place, as `optimizers.step`."""
        step(optimizer, values, state, gradients)

    def apply(
        self,
        optimizer: OptimizerSpec,
        columns: Columns,
        folded: Folded,
        gradients: NDArray[Any],
        position: int,
        images: bool,
    ) -> Changed:
        """Changes the rows that are older than `position`."""
        exact, older = columns.spec.accumulate_dtype, self.older(columns, folded, position)
        slots = folded.slots[older]
        sums = self.sum_repeated(gradients.astype(exact), folded)[older]
        before = self.before(columns, slots) if images else None
        held = before.values if before else self.gather(columns.values, slots)
        # Always a copy: the rows before stay what they were.
        values = held.astype(exact)
        state = self.gather(columns.state, slots)
        self.step(optimizer, values, state, sums)
        every = np.arange(len(slots))
        with np.errstate(all="ignore"):
            self.scatter(columns.values, slots, values.astype(columns.values.dtype), every)
        self.scatter(columns.state, slots, state, every)
        columns.positions[slots] = position
        return Changed(slots, folded.first[older], before)

    def write(self, columns: Columns, folded: Folded, rows: NDArray[Any], position: int, images: bool) -> Changed:
        """Gives the slots that are older than `position` the last of their rows."""
        older = self.older(columns, folded, position)
        slots = folded.slots[older]
        before = self.before(columns, slots) if images else None
        self.scatter(columns.values, slots, rows, folded.last[older])
        columns.positions[slots] = position
        return Changed(slots, folded.first[older], before)

    def before(self, columns: Columns, slots: Ints) -> Before:
        """A copy of whole rows."""
        return Before(self.gather(columns.values, slots), self.gather(columns.state, slots), columns.positions[slots])

    def older(self, columns: Columns, folded: Folded, position: int) -> NDArray[np.bool_]:
        """Which slots were last written below `position`."""
        return columns.positions[folded.slots] < np.uint64(position)
