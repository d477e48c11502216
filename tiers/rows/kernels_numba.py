"""The loops of a row table compiled by numba, for rows of float32; of other dtypes what only moves bytes.

Importing this imports numba and compiles, or loads what was compiled before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from . import compiled_rows as compiled
from .hash_index import HashIndex
from .index import MOST_INDEX_BYTES, Ints, RowIndex
from .initial import mixed_seed
from .kernels_numpy import Before, Changed, Columns, Folded, NumpyKernels
from .optimizers import Floats
from .spec import OptimizerSpec, RowSpec

_NO_SUMS: Final = np.empty((0, 1), np.float32)


class NumbaKernels(NumpyKernels):
    """As `NumpyKernels`, bit for bit."""

    def make_ready(self, spec: RowSpec) -> None:
        if spec.optimizer is not None and spec.accumulate_dtype == np.float32:
            compiled.compiled_pass(spec.kind)
        if spec.init.kind == "normal":
            _normal()

    def new_index(self, most_bytes: int = MOST_INDEX_BYTES) -> RowIndex:
        return HashIndex(most_bytes)

    def exact_rows(self, spec: RowSpec, keys: Ints) -> NDArray[np.float64]:
        if spec.init.kind != "normal":
            return super().exact_rows(spec, keys)
        rows = np.empty((len(keys), spec.dim), np.float64)
        _normal()(keys, mixed_seed(spec.init), spec.init.settings["std"], rows)
        return rows

    def gather(self, column: NDArray[Any], slots: Ints) -> NDArray[Any]:
        rows = np.empty((len(slots), column.shape[1]), column.dtype)
        if rows.size:
            compiled.gather(column.view(np.uint8), slots, rows.view(np.uint8))
        return rows

    def scatter(self, column: NDArray[Any], slots: Ints, rows: NDArray[Any], places: Ints) -> None:
        if rows.size:
            compiled.scatter(column.view(np.uint8), slots, rows.view(np.uint8), places)

    def fold(self, slots: Ints) -> Folded:
        distinct, first, last, owner = np.empty((4, len(slots)), np.int64)
        count = compiled.fold(slots, distinct, first, last, owner)
        return Folded(distinct[:count], first[:count], last[:count], owner)

    def sum_repeated(self, gradients: Floats, folded: Folded) -> Floats:
        if gradients.dtype != np.float32:
            return super().sum_repeated(gradients, folded)
        source, sums = self._sums(gradients, folded)
        rows = gradients[folded.first]
        repeated = source < 0
        rows[repeated] = sums[-1 - source[repeated]]
        return rows

    def step(self, optimizer: OptimizerSpec, values: Floats, state: Floats, gradients: Floats) -> None:
        if values.dtype != np.float32:
            super().step(optimizer, values, state, gradients)
            return
        every = np.arange(len(values))
        columns = Columns(RowSpec(1, "float32"), every, np.zeros(len(values), np.uint64), values, state)
        self._pass(optimizer, columns, every, every, gradients, _NO_SUMS, 1, images=False)

    def apply(
        self,
        optimizer: OptimizerSpec,
        columns: Columns,
        folded: Folded,
        gradients: NDArray[Any],
        position: int,
        images: bool,
    ) -> Changed:
        if columns.values.dtype != np.float32:
            return super().apply(optimizer, columns, folded, gradients, position, images)
        source, sums = self._sums(gradients, folded)
        which, before = self._pass(optimizer, columns, folded.slots, source, gradients, sums, position, images)
        if len(which) == len(folded.slots):
            return Changed(folded.slots, folded.first, before)
        return Changed(folded.slots[which], folded.first[which], before)

    def _sums(self, gradients: Floats, folded: Folded) -> tuple[Ints, Floats]:
        """Where each slot's gradient stands (see `compiled_rows`), and the sums of those that repeat."""
        count = len(folded.slots)
        if count == len(folded.owner):
            return folded.first, _NO_SUMS
        source = np.empty(count, np.int64)
        sums = np.empty((min(count, len(folded.owner) - count), gradients.shape[1]), np.float32)
        compiled.sum_repeated(gradients, folded.first, folded.last, folded.owner, source, sums)
        return source, sums

    def _pass(
        self,
        optimizer: OptimizerSpec,
        columns: Columns,
        slots: Ints,
        source: Ints,
        gradients: Floats,
        sums: Floats,
        position: int,
        images: bool,
    ) -> tuple[Ints, Before | None]:
        count = len(slots) if images else 0
        which = np.empty(len(slots), np.int64)
        values = np.empty((count, columns.values.shape[1]), np.float32)
        state = np.empty((count, columns.state.shape[1]), np.float32)
        positions = np.empty(len(slots), np.uint64)
        taken = compiled.compiled_pass(optimizer.kind)(
            slots, source, gradients, sums, columns.values, columns.state, columns.positions, position,
            images, which, values, state, positions, *_settings(optimizer),
        )  # fmt: skip
        before = Before(values[:taken], state[:taken], positions[:taken]) if images else None
        return which[:taken], before


@cache
def _normal() -> Callable[..., None]:
    """Compiled for the first table that begins so."""
    from .compiled_initial import normal

    return normal


def _settings(optimizer: OptimizerSpec) -> tuple[Any, ...]:
    """What the optimizer's pass is told, rounded as `optimizers.py` does."""
    settings = optimizer.settings
    if optimizer.kind == "sgd":
        return (np.float32(settings["lr"]),)
    if optimizer.kind != "adam":
        return np.float32(settings["lr"]), np.float32(settings["eps"])
    beta1, beta2 = settings["beta1"], settings["beta2"]
    return (
        settings["lr"], beta1, beta2,
        np.float32(1 - beta1), np.float32(beta2), np.float32(1 - beta2), np.float32(settings["eps"]),
    )  # fmt: skip
