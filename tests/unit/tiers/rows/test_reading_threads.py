"""Readers beside the applying thread: they see each change whole or not at all."""

import threading

import numpy as np
import pytest

from paramstream.tiers.budget import Budget
from paramstream.tiers.rows import OptimizerSpec, RowSpec, RowTable

pytestmark = pytest.mark.usefixtures("kernels")

CHANGES = 200
JOIN_TIMEOUT_SECONDS = 60


def test_readers_see_each_change_whole_while_a_table_grows_and_shrinks() -> None:
    table = RowTable("emb", RowSpec(8, "float32", OptimizerSpec("sgd", {"lr": 1.0})), Budget(1 << 24))
    keys = np.arange(256) * 2**40
    ones = np.ones((256, 8), np.float32)
    torn: list[str] = []
    is_done = threading.Event()

    def look() -> None:
        last = 0.0
        while not is_done.is_set():
            values, found = table.lookup(keys)
            if not (found.all() or not found.any()) or values.min() != values.max() or -values[0, 0] < last:
                torn.append(f"{found.sum()} found, {values.min()} to {values.max()}")
            last = float(-values[0, 0])
            for batch in table.scan(rows=64):
                if (batch.values != batch.values[:, :1]).any() or (batch.positions == 0).any():
                    torn.append("a row that is half changed")

    readers = [threading.Thread(target=look, name=f"reader-{number}") for number in range(2)]
    for reader in readers:
        reader.start()
    try:
        for change in range(1, CHANGES):
            table.apply(keys, ones, change, images=False)
            # Others come and go meanwhile, so that index and columns grow.
            others = np.arange(200) + 200 * change + 1
            table.write(others, ones[:200], change, images=False)
            if change % 3 == 0:
                table.delete(others, change + 1)
    finally:
        is_done.set()
        for reader in readers:
            reader.join(JOIN_TIMEOUT_SECONDS)
    assert torn == []
    assert table.lookup(keys)[0].tolist() == [[1.0 - CHANGES] * 8] * 256
