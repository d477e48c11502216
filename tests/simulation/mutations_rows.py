"""What replicas promise of rows, switched off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from paramstream.tiers.rows.batch import RowBatch
from paramstream.tiers.rows.table import RowTable

from .mutation import Mutation, Patch

# --- what stands there instead --------------------------------------------------------------------------------------------

_apply = RowTable.apply


def _apply_whatever_is_held(
    table: RowTable, keys: npt.NDArray[np.int64], grads: npt.NDArray[Any], position: int, images: bool = False
) -> RowBatch | None:
    held = table.read(np.unique(keys))
    table.restore(replace(held, positions=np.minimum(held.positions, np.uint64(position - 1))))
    return _apply(table, keys, grads, position, images=images)


def _leave_it(table: RowTable, before: RowBatch) -> None:
    pass


ROWS = [
    Mutation(
        "gradients once",
        "a gradient changes a row only if its position is greater",
        (Patch(RowTable, "apply", _apply_whatever_is_held),),
        "the events say",
        seeds=1000,
        found_at=48,
    ),
    Mutation(
        "rows are taken back",
        "what was lost of rows is undone",
        (Patch(RowTable, "restore", _leave_it),),
        "the events say",
        seeds=200,
        found_at=13,
    ),
]
