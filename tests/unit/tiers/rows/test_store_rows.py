"""Row tables of a store with an ssd tier: the files on a real disk, what an earlier store left, and the store's status."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from paramstream.errors import CorruptTier, ParamstreamError, StorageFull
from paramstream.tiers import TieredStore
from paramstream.tiers.rows import OptimizerSpec, RowSpec, RowTable
from paramstream.tiers.rows.tiered import TieredRowTable

PARTITION = (7, 0)
SPEC = RowSpec(16, "float32", OptimizerSpec("sgd", {"lr": 1.0}))


def put(table: RowTable, first: int, count: int, position: int = 1) -> None:
    keys = np.arange(first, first + count)
    rows = np.repeat(keys.astype(table.spec.value_dtype)[:, None], table.spec.dim, axis=1)
    table.prepare(keys)
    table.write(keys, rows, position, images=False)


def tiered(store: TieredStore, name: str = "emb", spec: RowSpec = SPEC) -> TieredRowTable:
    table = store.rows(PARTITION, name, spec)
    assert isinstance(table, TieredRowTable)
    return table


def tier_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tier"))


@pytest.mark.parametrize("name", ["n" * 400, "a/b", "../../x", "..", "ключ"])
def test_tables_of_any_name_lie_in_the_folder_only_and_come_back_exactly_B06(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "deep" / "tier"
    with TieredStore(ssd=f"{folder}:16MiB") as store:
        table = tiered(store, name)
        put(table, 0, 100)
        assert table.demote(100) == 100
        (file,) = tier_files(folder)
        assert name not in file.name
        assert [entry for entry in tmp_path.rglob("*") if entry.is_file()] == [*folder.glob("*")]
        values, found = table.lookup(np.arange(100))
        assert found.all() and values[:, 3].tolist() == list(range(100))
    assert tier_files(folder) == []


def test_keys_that_are_alike_in_their_lower_half_are_two_on_ssd_too_E03(tmp_path: Path) -> None:
    with TieredStore(ssd=f"{tmp_path}:16MiB") as store:
        table = tiered(store)
        keys = np.array([5, 5 + 2**32, -1, 2**63 - 1, -(2**63)])
        table.write(keys, np.repeat(np.arange(1.0, 6.0, dtype=np.float32)[:, None], 16, axis=1), 1, images=False)
        assert table.demote(5) == 5
        assert table.read(keys).values[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
        assert table.prefetch(keys[:2]) == 2
        assert table.lookup(keys)[0][:, 15].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_file_that_a_killed_process_left_with_another_schema_is_never_read(tmp_path: Path) -> None:
    """Its folder's lock went with it; its files stayed."""
    with TieredStore(ssd=f"{tmp_path}:16MiB") as store:
        put(tiered(store), 0, 100)
        tiered(store).demote(100)
        left = {path.name: path.read_bytes() for path in tier_files(tmp_path)}
    for name, data in left.items():
        (tmp_path / name).write_bytes(data)
    other = RowSpec(5, "float64")
    with TieredStore(ssd=f"{tmp_path}:16MiB") as store:
        assert tier_files(tmp_path) == []
        table = tiered(store, spec=other)
        assert not table.lookup(np.arange(100))[1].any()
        put(table, 50, 100)
        assert table.demote(100) == 100
        values, found = table.lookup(np.arange(200))
        assert found.tolist() == [50 <= key < 150 for key in range(200)]
        assert values[50:150, 4].tolist() == list(range(50, 150))


def test_a_flipped_bit_on_the_disk_is_named_in_the_status_with_its_file_K03(tmp_path: Path) -> None:
    with TieredStore(ssd=f"{tmp_path}:16MiB") as store:
        table = tiered(store)
        put(table, 0, 100)
        table.demote(100)
        (path,) = tier_files(tmp_path)
        with path.open("r+b") as file:
            file.seek(50)
            byte = file.read(1)[0]
            file.seek(50)
            file.write(bytes([byte ^ 4]))
        with pytest.raises(CorruptTier, match=r"key [0-9]+ in slot 0") as caught:
            table.lookup(np.arange(100))
        assert str(path) in str(caught.value)
        (_, ssd) = store.tiers()
        assert (ssd.failed, str(path) in ssd.error) == (1, True)
        rest = np.setdiff1d(np.arange(100), caught.value.keys)
        assert table.lookup(rest)[0][:, 0].tolist() == rest.tolist()


def test_the_status_counts_what_moves_and_says_why_something_did_not(tmp_path: Path) -> None:
    with TieredStore(ssd=f"{tmp_path}:100KB") as store:
        table = tiered(store)
        put(table, 0, 500)
        table.demote(300)
        table.lookup(np.arange(10))
        (dram, ssd) = store.tiers()
        assert ssd.demoted == 300
        assert ssd.read == ssd.promoted == table.counters().tiers.ssd_hits > 0
        assert ssd.held == table.ssd_nbytes == sum(path.stat().st_size for path in tier_files(tmp_path)) > 0
        assert dram.held == store.usage().rows_bytes
        put(table, 500, 1_000, position=2)
        table.demote(1_000)
        (_, ssd) = store.tiers()
        assert ssd.failed > 0 and str(tmp_path) in ssd.error
        assert isinstance(table.error, StorageFull)


def test_values_and_weights_get_the_room_that_rows_have(tmp_path: Path) -> None:
    with TieredStore(dram="16MiB", ssd=f"{tmp_path}:256MiB") as store:
        wide = RowSpec(256, "float32")
        table = tiered(store, spec=wide)
        for first in range(0, 20_000, 500):
            put(table, first, 500)
        assert store.usage().rows_bytes > 12 << 20
        store.allocate(8 << 20).release()
        usage = store.usage()
        assert usage.held <= usage.limit and usage.rows_bytes <= 8 << 20
        assert len(table) == 20_000
        assert table.lookup(np.arange(19_000, 20_000))[0][:, 7].tolist() == list(range(19_000, 20_000))


def test_a_dropped_partition_leaves_no_file_and_no_bytes(tmp_path: Path) -> None:
    with TieredStore(ssd=f"{tmp_path}:16MiB") as store:
        put(tiered(store), 0, 1_000)
        tiered(store).demote(1_000)
        store.drop_entries(PARTITION)
        assert tier_files(tmp_path) == []
        assert store.usage().held == 0
        assert store.tiers()[1].held == 0
    assert os.listdir(tmp_path) == []


def test_what_a_table_no_longer_needs_of_the_ssd_tier_another_one_gets_K05(tmp_path: Path) -> None:
    with TieredStore(dram="1MiB", ssd=f"{tmp_path}:512KiB") as store:
        one, other = tiered(store, "one"), tiered(store, "other")
        for first in range(0, 4_000, 500):
            put(one, first, 500)
        one.demote(4_000)
        assert one.ssd_nbytes > 300 << 10
        one.delete(np.arange(4_000), 2)
        for first in range(0, 4_000, 500):
            put(other, first, 500)
        other.demote(4_000)
        assert (one.ssd_nbytes, other.ssd_nbytes > 300 << 10) == (0, True)
        assert store.ssd is not None and store.ssd.budget.held == other.ssd_nbytes
        put(one, 0, 100, 3)
        assert one.demote(100) == 100
        for table in (one, other):
            assert table.lookup(np.arange(100))[0][:, 3].tolist() == list(range(100))


def test_rows_that_are_read_while_the_store_is_closed_say_so(tmp_path: Path) -> None:
    store = TieredStore(ssd=f"{tmp_path}:16MiB")
    table = tiered(store)
    put(table, 0, 10)
    table.demote(10)
    assert store.ssd is not None
    store.ssd.close()
    with pytest.raises(ParamstreamError, match="the store was closed while rows were read from its ssd tier"):
        table.lookup(np.arange(10))
    store.close()
