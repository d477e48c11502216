"""A row table: what is read back, folding, positions, undo, and what is refused."""

import errno
import os
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from paramstream.errors import InvalidEvent, StorageFull
from paramstream.tiers import TieredStore
from paramstream.tiers.budget import Budget
from paramstream.tiers.rows import InitSpec, OptimizerSpec, RowBatch, RowSpec, RowTable
from paramstream.tiers.rows.columns import Column

pytestmark = pytest.mark.usefixtures("kernels")

SGD = OptimizerSpec("sgd", {"lr": 1.0})
ADAGRAD = OptimizerSpec("adagrad", {"lr": 1.0, "eps": 0.0, "initial_accumulator_value": 0.0})
ADAM = OptimizerSpec("adam", {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8})

ODD_KEYS = (0, -1, 2**63 - 1, -(2**63), 5, 5 + 2**32)


def table_of(
    optimizer: OptimizerSpec | None = SGD, dim: int = 2, limit: int = 1 << 24, dtype: str = "float32"
) -> RowTable:
    return RowTable("emb", RowSpec(dim, dtype, optimizer), Budget(limit))


def ints(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)


def floats(*rows: list[float]) -> NDArray[np.float32]:
    return np.array(rows, np.float32)


def same(one: RowBatch, other: RowBatch) -> bool:
    """Whether both hold the same rows, bit for bit, in any order; values of rows that are not there do not count."""

    def rows(batch: RowBatch) -> dict[int, tuple[int, bytes, bytes]]:
        there = {key: int(position) for key, position in zip(batch.keys.tolist(), batch.positions, strict=True)}
        return {
            key: (position, batch.values[row].tobytes(), batch.state[row].tobytes()) if position else (0, b"", b"")
            for row, (key, position) in enumerate(there.items())
        }

    return one.kind == other.kind and rows(one) == rows(other)


def test_any_int64_is_a_key_E03() -> None:
    table = table_of()
    keys = ints(*ODD_KEYS)
    rows = np.arange(2 * len(keys), dtype=np.float32).reshape(-1, 2)
    table.write(keys, rows, 1, images=False)
    values, found = table.lookup(keys[::-1])
    assert found.all()
    assert values.tolist() == rows[::-1].tolist()
    assert sorted(table.keys().tolist()) == sorted(ODD_KEYS)


def test_a_lookup_of_a_key_without_a_row_gives_its_initial_value_and_creates_nothing_E04() -> None:
    table = table_of()
    table.write(ints(7), floats([1, 2]), 1, images=False)
    values, found = table.lookup(ints(7, 999, 7))
    assert values.tolist() == [[1, 2], [0, 0], [1, 2]]
    assert found.tolist() == [True, False, True]
    assert len(table) == 1
    assert table.counters().misses == 1


@pytest.mark.parametrize("optimizer", [SGD, ADAGRAD])
def test_gradients_of_a_key_that_repeats_are_summed_before_they_are_applied_E01(optimizer: OptimizerSpec) -> None:
    table = table_of(optimizer)
    table.apply(ints(1, 1, 3, 1), floats([1, 1], [2, 2], [5, 5], [4, 4]), 1, images=False)
    batch = table.read(ints(1, 3))
    if optimizer is SGD:
        assert batch.values.tolist() == [[-7, -7], [-5, -5]]
    else:
        assert batch.state.tolist() == [[49, 49], [25, 25]]
        assert batch.values.tolist() == [[-1, -1], [-1, -1]]


def test_of_a_key_that_repeats_the_last_row_is_written() -> None:
    table = table_of()
    table.write(ints(1, 2, 1), floats([1, 1], [2, 2], [3, 3]), 1, images=False)
    assert table.lookup(ints(1, 2))[0].tolist() == [[3, 3], [2, 2]]


def test_a_row_changes_only_to_a_greater_position() -> None:
    table = table_of()
    table.write(ints(1), floats([1, 1]), 5, images=False)
    for position in (4, 5):
        before = table.write(ints(1), floats([9, 9]), position, images=True)
        assert before is not None
        assert len(before) == 0
        table.apply(ints(1), floats([9, 9]), position, images=False)
        table.delete(ints(1), position)
    assert table.read(ints(1)).positions.tolist() == [5]
    assert table.lookup(ints(1))[0].tolist() == [[1, 1]]


def test_rows_are_removed_up_to_a_position() -> None:
    table = table_of()
    table.write(ints(1), floats([1, 1]), 5, images=False)
    table.write(ints(2), floats([2, 2]), 6, images=False)
    table.delete(ints(1, 2, 3), 9, up_to=5)
    assert table.keys().tolist() == [2]


def test_undo_puts_back_what_was_there_and_removes_what_was_not() -> None:
    table = table_of(ADAM)
    table.apply(ints(1, 2), floats([1, 1], [2, 2]), 1, images=False)
    held = table.read(ints(1, 2, 3))
    images = [
        table.apply(ints(2, 3, 2), floats([1, 1], [2, 2], [3, 3]), 2, images=True),
        table.write(ints(1, 4), floats([1, 1], [2, 2]), 3, images=True),
        table.delete(ints(1, 2, 2), 4, images=True),
    ]
    for before in reversed(images):
        assert before is not None
        table.restore(before)
    assert same(table.read(ints(1, 2, 3)), held)
    assert len(table) == 2


def test_what_was_prepared_and_not_written_is_not_there() -> None:
    table = table_of()
    table.prepare(ints(1, 2))
    assert len(table) == 0
    assert table.keys().tolist() == []
    assert table.lookup(ints(1))[1].tolist() == [False]
    table.write(ints(1), floats([1, 1]), 1, images=False)
    assert table.keys().tolist() == [1]
    assert [batch.keys.tolist() for batch in table.scan()] == [[1]]


def test_a_full_tier_refuses_rows_and_changes_nothing() -> None:
    table = table_of(limit=1 << 16)
    table.write(ints(1), floats([1, 1]), 1, images=False)
    held = table.nbytes
    many = np.arange(100_000, dtype=np.int64)
    with pytest.raises(StorageFull):
        table.prepare(many)
    for change in (table.write, table.apply):
        with pytest.raises(StorageFull):
            change(many, np.ones((100_000, 2), np.float32), 2, images=False)
    assert table.nbytes == held
    assert table.keys().tolist() == [1]
    assert table.read(ints(1)).positions.tolist() == [1]


def test_an_undo_is_never_refused() -> None:
    budget = Budget(1 << 18)
    table = RowTable("emb", RowSpec(2, "float32", SGD), budget)
    keys = np.arange(1000, dtype=np.int64)
    table.write(keys, np.ones((1000, 2), np.float32), 1, images=False)
    before = table.read(keys)
    table.clear()
    budget.charge(budget.limit - budget.held)
    table.restore(before)
    assert same(table.read(keys), before)


def test_another_kind_of_optimizer_starts_the_state_anew_and_other_settings_keep_it() -> None:
    table = table_of(ADAGRAD)
    table.apply(ints(1), floats([2, 2]), 1, images=False)
    faster = OptimizerSpec("adagrad", {"lr": 2.0, "eps": 0.0, "initial_accumulator_value": 0.0})
    table.alter(RowSpec(2, "float32", faster))
    assert table.read(ints(1)).state.tolist() == [[4, 4]]
    table.alter(RowSpec(2, "float32", ADAM))
    batch = table.read(ints(1))
    assert batch.kind == "adam"
    assert batch.state.tolist() == [[0] * 5]
    assert batch.positions.tolist() == [1]


def test_an_alter_that_has_no_room_changes_nothing() -> None:
    budget = Budget(5 << 19)
    table = RowTable("emb", RowSpec(64, "float32", SGD), budget)
    keys = np.arange(4000, dtype=np.int64)
    table.write(keys, np.ones((4000, 64), np.float32), 1, images=False)
    held = table.nbytes
    with pytest.raises(StorageFull):
        table.alter(RowSpec(64, "float32", ADAM))
    assert (table.spec.kind, table.nbytes, budget.held) == ("sgd", held, held)
    table.apply(keys, np.ones((4000, 64), np.float32), 2, images=False)
    assert not table.lookup(keys)[0].any()


def test_loaded_rows_are_taken_where_they_are_newer() -> None:
    table = table_of(ADAGRAD)
    table.apply(ints(1, 2), floats([1, 1], [2, 2]), 5, images=False)
    other = table_of(ADAGRAD)
    other.apply(ints(2, 3), floats([7, 7], [8, 8]), 3, images=False)
    other.load(table.read(ints(1, 2, 9)))
    assert same(other.read(ints(1, 2)), table.read(ints(1, 2)))
    assert other.read(ints(3)).positions.tolist() == [3]
    assert len(other) == 3


def test_loaded_state_of_another_kind_starts_anew() -> None:
    table, other = table_of(ADAGRAD), table_of(ADAM)
    table.apply(ints(1), floats([1, 1]), 5, images=False)
    other.load(table.read(ints(1)))
    assert other.read(ints(1)).state.tolist() == [[0] * 5]
    assert other.lookup(ints(1))[0].tolist() == table.lookup(ints(1))[0].tolist()


def test_changed_keys_are_told_once_each_from_the_first_call_on() -> None:
    table = table_of()
    table.write(ints(1), floats([1, 1]), 1, images=False)
    assert table.changed().tolist() == []
    table.write(ints(3, 2, 3), floats([1, 1], [1, 1], [1, 1]), 2, images=False)
    table.delete(ints(1, 7), 3)
    assert table.changed().tolist() == [1, 2, 3]
    assert table.changed().tolist() == []


def test_rows_and_keys_may_be_of_any_memory() -> None:
    table = table_of()
    keys = np.array([1, 7, 2, 7], np.int64)[::2]
    rows = np.asfortranarray(floats([1, 2], [3, 4]))
    table.write(keys, rows, 1, images=False)
    frozen = np.frombuffer(b"?" + rows.tobytes("C"), np.float32, 4, offset=1).reshape(2, 2)
    table.apply(np.frombuffer(b"?" + keys.tobytes(), np.int64, 2, offset=1), frozen, 2, images=False)
    table.write(ints(3, 4), np.broadcast_to(floats([5, 6]), (2, 2)), 3, images=False)
    assert table.lookup(ints(1, 2, 3, 4))[0].tolist() == [[0, 0], [0, 0], [5, 6], [5, 6]]


def test_the_greatest_position_counts_as_one() -> None:
    table = table_of()
    for position in (2**63 - 1, 2**63, 2**64 - 1):
        table.apply(ints(1), floats([1, 1]), position, images=False)
        table.write(ints(2), floats([1, 1]), position, images=False)
    assert table.lookup(ints(1, 2))[0].tolist() == [[-3, -3], [1, 1]]
    assert table.read(ints(1)).positions.tolist() == [2**64 - 1]
    table.delete(ints(1), 2**64 - 1)
    assert len(table) == 2


def test_keys_that_change_again_and_again_are_still_told_once_each() -> None:
    table = table_of(dim=1)
    table.changed()
    keys = np.arange(60_000, dtype=np.int64)
    for position in range(1, 12):
        table.write(keys, np.ones((len(keys), 1), np.float32), position, images=False)
    assert np.array_equal(table.changed(), keys)


def test_what_does_not_fit_the_table_is_refused() -> None:
    table = table_of()
    for wrong in (floats([1, 1, 1]), floats([1, 1], [1, 1]), np.ones((1, 2))):
        with pytest.raises(InvalidEvent):
            table.write(ints(1), wrong, 1, images=False)
        with pytest.raises(InvalidEvent):
            table.apply(ints(1), wrong, 1, images=False)
    with pytest.raises(InvalidEvent):
        table_of(None).apply(ints(1), floats([1, 1]), 1, images=False)
    with pytest.raises(InvalidEvent):
        table.lookup(np.array([1], np.int32))  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidEvent):
        table.alter(RowSpec(3, "float32", SGD))
    assert len(table) == 0


def test_an_empty_batch_changes_nothing() -> None:
    table = table_of(ADAM)
    empty, none = ints(), np.empty((0, 2), np.float32)
    table.prepare(empty)
    for before in (
        table.write(empty, none, 1, images=True),
        table.apply(empty, none, 1, images=True),
        table.delete(empty, 1, images=True),
        table.read(empty),
    ):
        assert before is not None
        assert len(before) == 0
        table.restore(before)
        table.load(before)
    assert table.lookup(empty)[0].shape == (0, 2)
    assert list(table.scan()) == []


def test_a_store_has_one_table_of_a_name_and_drops_it_with_its_partition() -> None:
    with TieredStore(dram="1MiB") as store:
        spec = RowSpec(2, "float32", SGD, InitSpec("uniform", {"lo": -1.0, "hi": 1.0}, 3))
        table = store.rows((1, 0), "emb", spec)
        assert store.rows((1, 0), "emb", RowSpec(3, "float32")) is table
        assert store.rows((1, 1), "emb", spec) is not table
        table.write(ints(1), floats([1, 1]), 1, images=False)
        assert dict(store.row_tables((1, 0))) == {"emb": table}
        assert store.usage().rows_bytes == store.usage().held == table.nbytes > 0
        store.drop_entries((1, 0))
        assert dict(store.row_tables((1, 0))) == {}
        assert store.usage().held == 0


def test_a_row_that_is_prepared_is_among_the_keys_at_no_moment_before_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = Budget(1 << 20)
    table = RowTable("emb", RowSpec(2, "float32", SGD), budget)
    refund, seen = budget.refund, list[tuple[int, int]]()

    def look(nbytes: int) -> None:
        seen.append((len(table), len(table.keys())))
        refund(nbytes)

    monkeypatch.setattr(budget, "refund", look)
    table.prepare(ints(1, 2, 3))
    assert set(seen) == {(0, 0)}


def test_rows_after_a_clear_begin_anew_in_the_same_memory() -> None:
    table = table_of(ADAGRAD)
    for position in (1, 2):
        table.apply(ints(1, 2, 3), np.full((3, 2), float(position), np.float32), 1, images=False)
        assert (table.read(ints(3, 1)).state == position**2).all()
        assert sorted(table.keys().tolist()) == [1, 2, 3]
        table.clear()
        assert (len(table), table.nbytes, table.lookup(ints(1))[1].tolist()) == (0, 0, [False])


def test_a_table_that_the_system_has_no_addresses_for_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with TieredStore() as store:
        with monkeypatch.context() as full:
            full.setattr("paramstream.tiers.rows.columns.mmap.mmap", none_left)
            with pytest.raises(StorageFull, match=r"the dram tier .* no addresses for table 'emb': Cannot allocate"):
                store.rows((1, 0), "emb", RowSpec(2, "float32", SGD))
        assert len(store.rows((1, 0), "emb", RowSpec(2, "float32", SGD))) == 0


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the flags of memory are told there")
def test_the_first_rows_of_a_small_table_take_no_huge_pages() -> None:
    column = Column(1 << 20, 16, np.dtype(np.float32))
    column.use(1)
    first = column.array.ctypes.data
    blocks = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    (flags,) = [
        re.findall("VmFlags: (.*)", block)[0].split()
        for block in blocks
        for begin, end in [re.match("([0-9a-f]+)-([0-9a-f]+)", block).groups()]  # type: ignore[union-attr]
        if int(begin, 16) <= first < int(end, 16)
    ]
    assert "nh" in flags
