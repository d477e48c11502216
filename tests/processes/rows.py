"""What trainers, replicas and their test know of one table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

TOPIC, TABLE = "recommender", "items"
PARTITIONS = 2
LR, EPS, FIRST = 0.05, 1e-10, 0.25

_ODD = 0x9E3779B1


def some_keys(chance: np.random.Generator, rows: int, count: int) -> npt.NDArray[np.int64]:
    """Of 0 … rows - 1, rank r with a likelihood of about 1/r (Zipf's law); the ranks are spread over the keys."""
    ranks = np.floor(np.exp(chance.random(count) * np.log(rows))).astype(np.int64) - 1
    keys: npt.NDArray[np.int64] = np.minimum(ranks, rows - 1) * _ODD % rows
    return keys
