"""What a change needs beside arithmetic, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def fold(slots: Ints) -> tuple[Ints, Ints]:
    """The distinct slots in the order of their first place in `slots`, and for each of `slots` its place among these."""
    distinct, first, inverse = np.unique(slots, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return distinct[order], rank[inverse]


def last_places(owner: Ints, count: int) -> Ints:
    """For each of `count` distinct slots its last place in the batch that `owner` was folded from."""
    places = np.empty(count, np.int64)
    np.maximum.at(places := np.zeros(count, np.int64), owner, np.arange(len(owner)))
    return places


def sum_repeated(rows: NDArray[Any], owner: Ints, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """(count, dim): the rows of each distinct slot summed in `dtype`, in their order; the first one is taken as it is."""
    first = np.zeros(count, np.int64)
    first[owner[::-1]] = np.arange(len(owner))[::-1]
    sums = rows[first].astype(dtype)
    if count < len(owner):
        later = np.ones(len(owner), bool)
        later[first] = False
        with np.errstate(all="ignore"):
            np.add.at(sums, owner[later], rows[later].astype(dtype))
    return sums
