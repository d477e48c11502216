"""Whole rows on their way: out of a table for undo, snapshots and other tiers, and back into one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .spec import RowSpec


@dataclass(frozen=True, eq=False)
class RowBatch:
    """`n` rows with all that belongs to them. The arrays are contiguous and the holder's own: no table refers to them."""

    keys: NDArray[np.int64]
    """(n,)"""
    values: NDArray[Any]
    """(n, dim), of the table's dtype."""
    state: NDArray[Any]
    """(n, width), float32 (float64 for tables of float64): the optimizer's state, of `kind`."""
    kind: str
    """The kind of optimizer that `state` is of; "" for none."""
    positions: NDArray[np.uint64]
    """(n,): the position that last wrote the row. 0: the row is not there, and its values and state mean nothing."""

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.keys.nbytes + self.values.nbytes + self.state.nbytes + self.positions.nbytes

    def take(self, which: NDArray[Any]) -> Self:
        """The rows that `which` (indices, or a mask) picks, copied."""
        return type(self)(self.keys[which], self.values[which], self.state[which], self.kind, self.positions[which])


def empty_batch(spec: RowSpec, count: int = 0) -> RowBatch:
    """Memory for `count` rows of a table of `spec`; content is undefined."""
    return RowBatch(
        np.empty(count, np.int64),
        np.empty((count, spec.dim), spec.value_dtype),
        np.empty((count, spec.state_width), spec.accumulate_dtype),
        spec.kind,
        np.empty(count, np.uint64),
    )


def joined(pieces: list[RowBatch]) -> RowBatch:
    """One batch of several; an alter of the optimizer's kind between two of them leaves the later kind's rows only in state."""
    return RowBatch(
        np.concatenate([piece.keys for piece in pieces]),
        np.concatenate([piece.values for piece in pieces]),
        np.concatenate([piece.state for piece in pieces]),
        pieces[-1].kind,
        np.concatenate([piece.positions for piece in pieces]),
    )


def newest(batch: RowBatch) -> RowBatch:
    """The row of each key that was written last."""
    if len(np.unique(batch.keys)) == len(batch):
        return batch
    batch = batch.take(np.argsort(batch.positions, kind="stable")[::-1])
    return batch.take(np.unique(batch.keys, return_index=True)[1])
