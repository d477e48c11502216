"""Fault case L09, of rows, and tables larger than memory: what leaves the log is held by snapshots, whatever tier it lies in."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import paramstream as ps

WAIT_S = 20.0
LIMIT = 2 << 20
"""Of a log from which state leaves behind its keeper's snapshots."""
DRAM = 4 << 20
"""Of stores that hold a part of the table."""
DIM, ROWS = 16, 40_000


def small_store(folder: Path) -> ps.TieredStore:
    return ps.TieredStore(dram=DRAM, ssd=f"{folder}:256MiB")


def publish_rows(pub: ps.Publisher, keys: npt.NDArray[np.int64], value: float) -> ps.Receipt:
    """Where the log is full, its keeper makes room."""
    deadline = time.monotonic() + 2 * WAIT_S
    while True:
        try:
            receipt = pub.publish_rows("users", keys, np.full((len(keys), DIM), value, np.float32))
            receipt.accepted.result(WAIT_S)
            return receipt
        except ps.StorageFull:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.slow
def test_a_row_that_was_evicted_and_then_deleted_does_not_come_back_from_an_older_snapshot_L09(tmp_path: Path) -> None:
    log, keeper = f"file:{tmp_path}/log", tmp_path / "keeper"
    with ps.Broker(log=log, log_limit=LIMIT, keeper=keeper) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("ads")
        client.create_table("ads", "users", dim=DIM, optimizer=ps.Adagrad(0.1))
        pub = client.publisher("ads", producer="trainer")
        with small_store(tmp_path / "ssd") as store, client.replica("ads", store=store, arrays="numpy") as replica:
            publish_rows(pub, np.array([-1]), 7)
            published = [publish_rows(pub, np.arange(at, at + 2000), 1) for at in range(0, ROWS, 2000)]
            replica.wait(published[-1], WAIT_S)
            # Its row went down long ago: there is room for a part of them.
            assert replica.table("users").rows == ROWS + 1 and store.usage().held <= DRAM
            replica.snapshot(tmp_path / "old")
            deleted = pub.delete_rows("users", [-1]).durable.result(WAIT_S)
            replica.wait(deleted, WAIT_S)
            deadline = time.monotonic() + 2 * WAIT_S
            while not _has_left_the_log(client, deleted):
                assert time.monotonic() < deadline
                with suppress(ps.StorageFull):
                    publish_rows(pub, np.arange(1000), 2)
            replica.wait(pub.publish_rows("users", [0], np.ones((1, DIM), np.float32)), WAIT_S)
            digest = replica.digest()
        with pytest.raises(ps.LogTruncated) as caught:
            client.replica("ads", start=f"snapshot:{tmp_path}/old")
        assert (caught.value.topic, caught.value.partition) == ("ads", 0)
        with small_store(tmp_path / "late") as store, client.replica("ads", store=store, arrays="numpy") as late:
            assert not late.lookup("users", [-1], return_found=True)[1].any() and late.digest() == digest
    with (
        small_store(tmp_path / "restored") as store,
        ps.restore(log, "ads", snapshots=keeper, store=store, arrays="numpy") as restored,
    ):
        assert not restored.lookup("users", [-1], return_found=True)[1].any() and restored.digest() == digest
        assert store.usage().held <= DRAM


def _has_left_the_log(client: ps.Client, vector: ps.VersionVector[str]) -> bool:
    try:
        client.subscribe("ads", start=vector).close()
    except ps.LogTruncated:
        return True
    return False
