"""Rows in snapshots: values, state and position of one moment, copied while they learn, and put back where they stood."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from feeding.rows import delete_rows, rows_of, table_of, write_gradients, write_rows
from feeding.world import World
from fuzzing import sealing
from paramstream.consumers.definitions import Defined
from paramstream.consumers.effects import Deliver, Step
from paramstream.consumers.replica import Replica
from paramstream.consumers.rows import Tables
from paramstream.consumers.snapshots import taking
from paramstream.consumers.snapshots.row_pages import encode_rows
from paramstream.consumers.snapshots.verifying import verify_snapshots
from paramstream.errors import CorruptLog, LogTruncated
from paramstream.events.kinds import Gradients, Table
from paramstream.events.manifest import decode_manifest
from paramstream.tiers.rows import batch as batches
from paramstream.tiers.rows.batch import RowBatch
from paramstream.tiers.store import TieredStore

KEYS = [5, -1, 0, 2**63 - 1, -(2**63), 17]


class RowWorld(World):
    """Each replica has a store to look into."""

    def __init__(self, root: Path, **settings: int | str) -> None:
        super().__init__(root, **settings)
        self.stores: list[TieredStore] = []

    def replica(self, start: str = "latest", **options: object) -> Replica:
        """`store`: another than one that is large enough."""
        # A definition is applied once it is durable.
        self.broker.durable = {p: writer.position for p, writer in self.broker.writers.items()}
        store = options.pop("store", None) or TieredStore("64MiB")
        assert isinstance(store, TieredStore)
        self.stores.append(store)
        return super().replica(start, store=self.stores[-1], **options)

    def rows(self, at: int = -1) -> dict[tuple[int, str], list[tuple[bytes, ...]]]:
        return rows_of(self.stores[at], list(self.broker.writers)[:-1])

    def close(self) -> None:
        for replica in self.replicas:
            replica.close()
        for store in self.stores:
            store.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[RowWorld]:
    made = RowWorld(tmp_path / "snapshots")
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_rows_of_every_kind_come_back_bit_for_bit(world: RowWorld, kind: str, dtype: str) -> None:
    state, table = world.broker.state, table_of("users", kind, dtype=dtype)
    state.write(table)
    write_rows(state, table, KEYS[:2], 1.5)
    for step in range(3):
        write_gradients(state, table, KEYS, step / 3)
    delete_rows(state, table, KEYS[2:3])
    replica = world.replica()
    world.settle()
    info = world.snapshot(replica)
    held = safetensors.numpy.load_file(info.path / "rows-0-0-0000.safetensors") if dtype != "bfloat16" else {}
    if held:
        assert held["values"].shape == (len(KEYS) - 1, 3) and held["positions"].dtype == np.uint64
    expected = world.rows()
    write_gradients(state, table, KEYS, 1)
    world.settle()
    behind = world.rows()
    world.restarted()
    world.settle()
    assert expected != behind == world.rows() and ml_dtypes.bfloat16


def test_only_what_comes_behind_a_snapshot_is_applied_to_its_rows_L03(world: RowWorld) -> None:
    state, table = world.broker.state, table_of("users", "sgd", dtype="float64")
    state.write(table)
    write_rows(state, table, [1], 0)
    for number in range(1, 61):
        write_gradients(state, table, [1], number)
    replica = world.replica()
    world.settle()
    info = world.snapshot(replica)
    for number in range(61, 101):
        write_gradients(state, table, [1], number)
    world.settle()
    applied: list[int] = []

    def note(step: Step) -> None:
        if isinstance(step, Deliver) and isinstance(step.frame.payload, Gradients):
            applied.append(step.frame.position)

    world.restarted(on_applied=note)
    world.settle()
    assert len(applied) == 40 and min(applied) == info.ceiling["model", 0] + 1
    values, _ = world.stores[-1].row_tables(state.partition)["users"].lookup(np.array([1]))
    assert values.tolist() == [[-0.5 * sum(range(1, 101))] * 3]


def test_values_and_state_are_of_one_moment_while_new_rows_come_L01(
    world: RowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "PAGE_BYTES", 1)
    state, table = world.broker.state, table_of("users", "adam")
    state.write(table)
    write_gradients(state, table, range(20), 1)
    replica = world.replica()
    world.settle()
    moved = iter(range(100))

    def encode_while_it_moves(page: RowBatch, definition: Table) -> list[bytes | memoryview]:
        number = next(moved)
        write_gradients(state, table, [number % 20, 1000 + number], number)
        delete_rows(state, table, [(number + 7) % 20])
        world.settle()
        return encode_rows(page, definition)

    monkeypatch.setattr(taking, "encode_rows", encode_while_it_moves)
    info = world.snapshot(replica)
    assert info.floor["model", 0] < info.ceiling["model", 0]
    monkeypatch.setattr(batches, "np", Poisoned())
    expected = world.rows()
    world.restarted()
    world.settle()
    assert world.rows() == expected
    assert not any(b"\xab" * 4 in column for rows in world.rows().values() for row in rows for column in row)


class Poisoned:
    """numpy whose fresh memory is full of what somebody else left there."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: Any, dtype: Any = float) -> np.ndarray[Any, Any]:
        made = np.empty(shape, dtype)
        made.reshape(-1).view(np.uint8)[:] = 0xAB
        return made


def test_a_copy_in_which_an_optimizer_changes_its_kind_is_begun_again(
    world: RowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "PAGE_BYTES", 1)
    state, table, other = world.broker.state, table_of("users", "adagrad"), table_of("users", "adam")
    state.write(table)
    write_gradients(state, table, range(6), 1)
    replica = world.replica()
    world.settle()
    written: list[str] = []

    def encode_while_it_changes(page: RowBatch, definition: Table) -> list[bytes | memoryview]:
        written.append(page.kind)
        # Away and back: the rows of both pages have state of the same width, and not of the same beginning.
        for changed in (other, table) if len(written) == 2 else ():
            state.write(changed)
            write_gradients(state, changed, range(6), 1)
        world.settle()
        return encode_rows(page, definition)

    monkeypatch.setattr(taking, "encode_rows", encode_while_it_changes)
    world.snapshot(replica)
    assert len(written) == 12
    expected = world.rows()
    world.restarted()
    world.settle()
    assert world.rows() == expected


def test_new_settings_of_the_same_kind_are_met_again_at_their_place(
    world: RowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, table, faster = world.broker.state, table_of("users", "adam"), table_of("users", "adam", lr=0.7)
    state.write(table)
    write_gradients(state, table, [1, 2], 1)
    replica = world.replica()
    world.settle()

    def encode_while_it_changes(page: RowBatch, definition: Table) -> list[bytes | memoryview]:
        write_gradients(state, table, [1], 1)
        state.write(faster)
        write_gradients(state, table, [1], 1)
        world.settle()
        return encode_rows(page, definition)

    monkeypatch.setattr(taking, "encode_rows", encode_while_it_changes)
    world.snapshot(replica)
    write_gradients(state, table, [1, 2], 1)
    world.settle()
    expected = world.rows()
    world.restarted()
    world.settle()
    assert world.rows() == expected


def test_a_flipped_bit_in_a_file_of_rows_is_named_and_the_snapshot_before_is_used_K03(world: RowWorld) -> None:
    state, table = world.broker.state, table_of("users")
    state.write(table)
    write_gradients(state, table, KEYS, 1)
    replica = world.replica()
    world.settle()
    before = world.snapshot(replica)
    write_gradients(state, table, KEYS, 2)
    world.settle()
    newest = world.snapshot(replica)
    expected = world.rows()
    path = newest.path / "rows-0-0-0000.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    assert [flaw[0] for check in verify_snapshots(world.root) for flaw in check.flaws] == [path]
    world.restarted()
    world.settle()
    assert world.rows() == expected
    (before.path / path.name).unlink()
    with pytest.raises(CorruptLog, match="rows-0-0-0000"):
        world.restarted()


def test_of_a_snapshot_whose_maker_passed_over_tables_only_the_other_partitions_are_read(tmp_path: Path) -> None:
    world = RowWorld(tmp_path / "snapshots", partitions=2)
    try:
        for number in range(2):
            world.broker.writers[77, number].put(b"key", b"value")
        replica = world.replica()
        world.settle()
        path, digest = world.snapshot(replica).path / "manifest.json", replica.digest()
        inner = json.loads(path.read_bytes())["manifest"] | {"format": 1}
        inner["state"][0] |= {"skipped": 3, "tables": []}
        found, _ = decode_manifest(sealing.manifest(json.dumps(inner).encode()), "here")
        # Its log was never cut: whoever reads begins there.
        assert [state.number for state in found.state] == [1]
        path.write_bytes(sealing.manifest(json.dumps(inner).encode()))
        assert world.restarted().digest() == digest
    finally:
        world.close()


def test_a_table_that_a_damaged_copy_defined_otherwise_is_that_of_the_copy_before(
    world: RowWorld,
) -> None:
    state, table = world.broker.state, table_of("users", "adagrad")
    with TieredStore("1MiB") as store:
        tables, rows = Tables(store), RowBatch(
            np.array([1]), np.ones((1, 3), np.float32), np.full((1, 3), 0.5, np.float32), "adagrad", np.array([5], np.uint64)
        )  # fmt: skip
        tables.begin_with(state.partition, [Defined(table_of("users", "adam"), 9, 9)], [])
        tables.begin_with(state.partition, [Defined(table, 4, 4)], [("users", rows)])
        (found,) = store.row_tables(state.partition)["users"].scan()
        assert (found.kind, found.state.tolist()) == ("adagrad", rows.state.tolist())


def test_a_table_larger_than_memory_is_copied_and_a_row_evicted_and_then_deleted_stays_away_L09(
    world: RowWorld, tmp_path: Path
) -> None:
    state, table, dram, rows = world.broker.state, table_of("users", "adagrad", dim=16), 3 << 20, 25_000
    state.write(table)
    write_rows(state, table, [-1], 7)
    for at in range(0, rows, 5_000):
        write_rows(state, table, range(at, at + 5_000), at)
    replica = world.replica(store=TieredStore(dram, ssd=f"{tmp_path}/one:64MiB"))
    world.settle()
    held = world.stores[-1].row_tables(state.partition)["users"]
    assert len(held) == rows + 1 and world.stores[-1].usage().held <= dram
    world.snapshot(replica)
    delete_rows(state, table, [-1])
    write_rows(state, table, [5], 1)
    world.settle()
    expected = world.rows()
    # Where the log still has the deletion it is applied again; where it has left, the copy is of no use.
    world.restarted(store=TieredStore(dram, ssd=f"{tmp_path}/two:64MiB"))
    world.settle()
    assert world.rows() == expected and len(expected[0, "users"]) == rows
    assert world.stores[-1].usage().held <= dram
    world.broker.starts = {state.partition: state.position}
    with pytest.raises(LogTruncated):
        world.restarted()


@pytest.mark.parametrize("replicas", [1, 2, 3, 8])
def test_rows_of_a_snapshot_are_shared_by_any_number_of_replicas_L06(tmp_path: Path, replicas: int) -> None:
    world = RowWorld(tmp_path, partitions=4)
    try:
        table = table_of("users")
        sizes = (10, 10, 17, 0)
        for number, size in enumerate(sizes):
            writer = world.broker.writers[77, number]
            writer.write(table)
            if size:
                write_gradients(writer, table, range(100 * number, 100 * number + size), 1)
        replica = world.replica()
        world.settle()
        world.snapshot(replica)
        write_gradients(world.broker.writers[77, 0], table, [3], 1)
        world.settle()
        expected, found = world.rows(), list[tuple[tuple[int, str], list[tuple[bytes, ...]]]]()
        for number in range(replicas):
            world.restarted(partitions=list(range(number, 4, replicas)))
            world.settle()
            found += world.rows().items()
        assert sorted(found) == sorted(expected.items()) and sum(len(rows) for _, rows in found) == 37
    finally:
        world.close()
