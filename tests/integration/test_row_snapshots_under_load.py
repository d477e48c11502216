"""Rows are copied while they learn, move between tiers and change their optimizers: each copy and the log behind it give all of them."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import paramstream as ps

WAIT_S = 60.0
DRAM = 10 << 20
"""Less than the table, with its state."""
ROWS, DIM, EVENTS = 60_000, 16, 150
OPTIMIZERS: list[ps.SGD | ps.Adagrad | ps.Adam | ps.RowwiseAdagrad] = [
    ps.SGD(0.1),
    ps.Adagrad(0.1),
    ps.Adam(0.01),
    ps.RowwiseAdagrad(0.1),
]


def small_store(folder: Path) -> ps.TieredStore:
    return ps.TieredStore(dram=DRAM, ssd=f"{folder}:256MiB")


def train(pub: ps.Publisher, seed: int) -> ps.Receipt:
    """Gradients and deletions of random keys, some of them far more often than others; the last receipt."""
    chance = np.random.default_rng(seed)
    last: ps.Receipt | None = None
    for _ in range(EVENTS):
        keys = np.minimum(chance.zipf(1.2, 300), 1 << 40) % (ROWS + 10_000)
        if chance.random() < 0.1:
            last = pub.delete_rows("users", keys[:50])
        else:
            last = pub.publish_gradients("users", keys, chance.random((300, DIM), np.float32))
    assert last is not None
    return last


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_copy_made_under_load_and_the_log_behind_it_give_every_row(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with (
        ps.Broker(log=f"file:{tmp_path}/log") as broker,
        ps.connect(broker.endpoint) as client,
        ThreadPoolExecutor(3) as threads,
    ):
        client.create_topic("ads", partitions=2)
        client.create_table("ads", "users", dim=DIM, optimizer=ps.Adagrad(0.1), init=ps.Normal(0.1, 3))
        pubs = [client.publisher("ads", producer=f"trainer-{number}") for number in range(2)]
        for at in range(0, ROWS, 5000):
            pubs[0].publish_rows("users", np.arange(at, at + 5000), np.ones((5000, DIM), np.float32))
        with (
            small_store(tmp_path / "own") as store,
            client.replica("ads", name="own", store=store, snapshot_dir=tmp_path / "kept") as replica,
        ):
            for turn in range(3):
                training = [threads.submit(train, pub, 10 * turn + number) for number, pub in enumerate(pubs)]
                time.sleep(chance.random() / 4)
                altering = threads.submit(client.alter_table, "ads", "users", chance.choice(OPTIMIZERS))
                replica.snapshot(timeout=WAIT_S)
                altering.result(WAIT_S)
                check_copy(client, replica, [each.result(WAIT_S) for each in training], tmp_path, turn)


def check_copy(client: ps.Client, replica: ps.Replica, last: list[ps.Receipt], folder: Path, turn: int) -> None:
    """A replica that begins with the copy, and one that begins with the log, have what `replica` has, while nothing moves."""
    for receipt in last:
        replica.wait(receipt, WAIT_S)
    digest = replica.digest()
    for start in (f"snapshot:{folder}/kept", "earliest"):
        with (
            small_store(folder / f"{turn}-{start[:3]}") as store,
            client.replica("ads", store=store, start=start, timeout=WAIT_S) as other,
        ):
            for receipt in last:
                other.wait(receipt, WAIT_S)
            assert other.digest() == digest, (turn, start)
            assert store.usage().held <= DRAM
