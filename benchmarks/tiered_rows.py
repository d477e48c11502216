"""M rows/s looked up and changed in a table whose DRAM holds a quarter of its rows, the rest on SSD, on a Zipf trace."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paramstream.tiers import TieredStore
from paramstream.tiers.rows import OptimizerSpec, RowSpec, RowTable

from .processes import medians

DIM = 64
LOOKED_UP = 4096
"""Keys of one look-up."""
CHANGED = 3000
"""Rows of one event: 768 KiB of values."""
INDEX_BYTES = 29
"""A key's share of the index."""

Keys = NDArray[np.int64]


def run(quick: bool = False) -> dict[str, object]:
    """Rows of 64 float32, Zipf 0.99; files in the page cache. Medians of rounds after a first one that warms up.

    `hit_share`: rows that look-ups found in DRAM. `us_per_cold_row`: CPU time of a round of look-ups, over the rows that it found on SSD.
    """
    rows, rounds, calls = (100_000, 3, 25) if quick else (1_000_000, 5, 200)
    dram = int((rows / 4 * (DIM * 4 + 16) + rows * INDEX_BYTES) / 0.9)
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd()) as folder,
        TieredStore(dram=dram, ssd=f"{folder}:{rows * 1024}") as store,
    ):
        table = store.rows((1, 0), "emb", RowSpec(DIM, "float32", OptimizerSpec("sgd", {"lr": 1.0})))
        results: dict[str, object] = {"rows": rows, "written_m_rows_per_s": rows / _fill(table, rows) / 1e6}
        draw = _zipf(rows)
        found = [_round(table, draw, calls, position=2 + calls * number) for number in range(rounds + 1)]
        return results | medians(found[1:])


def _fill(table: RowTable, rows: int) -> float:
    """Seconds."""
    began = time.perf_counter()
    for start in range(0, rows, CHANGED):
        keys = np.arange(start, min(start + CHANGED, rows))
        table.write(keys, np.ones((len(keys), DIM), np.float32), 1, images=False)
    return time.perf_counter() - began


def _zipf(rows: int) -> Callable[[int], Keys]:
    generator = np.random.default_rng(1)
    weights: NDArray[np.float64] = np.arange(1, rows + 1, dtype=np.float64) ** -0.99
    chances, key_of_rank = np.cumsum(weights), generator.permutation(rows)

    def draw(count: int) -> Keys:
        ranks: Keys = np.searchsorted(chances, generator.random(count) * float(chances[-1])).astype(np.int64)
        return key_of_rank[np.minimum(ranks, rows - 1)]

    return draw


def _round(table: RowTable, draw: Callable[[int], Keys], calls: int, position: int) -> dict[str, float]:
    looked_up = [draw(LOOKED_UP) for _ in range(calls)]
    changed = [draw(CHANGED) for _ in range(calls // 5)]
    gradients = np.zeros((CHANGED, DIM), np.float32)
    before, began, cpu = table.counters(), time.perf_counter(), time.process_time()
    for keys in looked_up:
        table.lookup(keys)
    seconds, cpu, after = time.perf_counter() - began, time.process_time() - cpu, table.counters()
    hits, cold = after.dram_hits - before.dram_hits, after.tiers.ssd_hits - before.tiers.ssd_hits
    began = time.perf_counter()
    for number, keys in enumerate(changed):
        table.apply(keys, gradients, position + number, images=False)
    return {
        "looked_up_m_rows_per_s": calls * LOOKED_UP / seconds / 1e6,
        "hit_share": hits / (hits + cold),
        "us_per_cold_row": 1e6 * cpu / cold,
        "changed_m_rows_per_s": len(changed) * CHANGED / (time.perf_counter() - began) / 1e6,
    }
