"""Fault cases K05 and K03 of rows on SSD, through the whole stream: what has no room waits for it, what is damaged is named."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import paramstream as ps
from paramstream.consumers import replica_sink
from reference.waiting import eventually

DIM = 256
ROWS = 6_000
WAIT_S = 20.0
FREED_S = 10.0

Keys = NDArray[np.int64]


def publish(publisher: ps.Publisher, keys: Keys) -> None:
    """Each row is its key throughout."""
    for start in range(0, len(keys), 1_000):
        some = keys[start : start + 1_000]
        publisher.publish_rows("emb", some, np.repeat(some.astype(np.float32)[:, None], DIM, axis=1))


def looked_up(replica: ps.Replica, keys: Keys) -> list[float]:
    values, found = replica.lookup("emb", keys, return_found=True)
    assert np.asarray(found).all()
    return [float(value) for value in np.asarray(values)[:, 100]]


@pytest.fixture
def publisher(client: ps.Client) -> ps.Publisher:
    client.create_topic("model")
    client.create_table("model", "emb", dim=DIM, optimizer=ps.SGD(1.0))
    return client.publisher("model", producer="trainer")


def test_a_table_that_fills_dram_and_ssd_is_served_and_goes_on_by_itself_once_there_is_room_K05(
    client: ps.Client, publisher: ps.Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert replica_sink.LOOK_AGAIN_S < FREED_S
    monkeypatch.setattr(replica_sink, "LOOK_AGAIN_S", 0.2)
    keys = np.arange(ROWS)
    with ps.TieredStore(dram="4MiB", ssd=f"{tmp_path}:1MiB") as store, client.replica("model", store=store) as replica:
        publish(publisher, keys)
        receipt = publisher.publish_gradients("emb", keys[:10], np.full((10, DIM), -0.5, np.float32))
        error = eventually(lambda: replica.status().stopped.get(("model", 0)), WAIT_S)
        assert isinstance(error, ps.StorageFull)
        for part in ("the dram tier cannot hold", f"the ssd tier in {tmp_path} cannot hold", "bytes more"):
            assert part in str(error)
        served = replica.lookup("emb", keys, return_found=True)
        count = int(np.asarray(served[1]).sum())
        assert 1_500 < count < ROWS
        assert looked_up(replica, keys[:count]) == keys[:count].tolist()
        assert store.ssd is not None
        store.ssd.budget.limit = 64 << 20
        freed = time.monotonic()
        eventually(lambda: not replica.status().stopped, WAIT_S)
        replica.wait(receipt, WAIT_S)
        assert time.monotonic() - freed < FREED_S
        assert looked_up(replica, keys) == [key + 0.5 if key < 10 else key for key in range(ROWS)]
        assert not replica.status().stopped
        assert store.tiers()[1].error == ""


def test_a_damaged_row_is_named_to_whoever_reads_it_and_a_replica_that_begins_anew_has_it_K03(
    client: ps.Client, publisher: ps.Publisher, tmp_path: Path
) -> None:
    keys = np.arange(ROWS)
    publish(publisher, keys)
    with (
        ps.TieredStore(dram="4MiB", ssd=f"{tmp_path}:64MiB") as store,
        client.replica("model", store=store, timeout=WAIT_S) as replica,
    ):
        (path,) = tmp_path.glob("*rows*.tier")
        with path.open("r+b") as file:
            file.seek(100)
            byte = file.read(1)[0]
            file.seek(100)
            file.write(bytes([byte ^ 16]))
        with pytest.raises(ps.CorruptTier, match=r"key [0-9]+ in slot 0:") as caught:
            replica.lookup("emb", keys)
        assert str(path) in str(caught.value)
        rest = np.setdiff1d(keys, caught.value.keys)
        assert len(rest) == ROWS - 1
        assert looked_up(replica, rest) == rest.tolist()
        assert str(path) in store.tiers()[1].error
    with (
        ps.TieredStore(dram="4MiB", ssd=f"{tmp_path}:64MiB") as store,
        client.replica("model", store=store, timeout=WAIT_S) as replica,
    ):
        assert looked_up(replica, keys) == keys.tolist()
