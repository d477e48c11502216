"""Rows in a file of slots: layouts, damage, and when a slot may be taken again."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fakes.tier_files import FaultyFile, SparseFile
from paramstream.errors import CorruptTier, StorageFull
from paramstream.tiers.budget import Budget
from paramstream.tiers.rows.batch import RowBatch
from paramstream.tiers.rows.slot_file import SlotFile
from paramstream.tiers.rows.slots import SlotLayout
from paramstream.tiers.rows.spec import OptimizerSpec, RowSpec
from paramstream.tiers.ssd import SsdFolder

MiB = 1 << 20
ADAM = OptimizerSpec("adam", {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8})
ROWWISE = OptimizerSpec("rowwise_adagrad", {"lr": 0.1, "eps": 1e-8, "initial_accumulator_value": 0.0})
SPEC = RowSpec(6, "float32", ROWWISE)
SLOT = SlotLayout(SPEC).nbytes

Ints = NDArray[np.int64]


def some_rows(spec: RowSpec, keys: Ints, seed: int = 0) -> RowBatch:
    generator = np.random.default_rng(seed)
    count = len(keys)
    values = generator.normal(size=(count, spec.dim)).astype(spec.value_dtype)
    state = generator.normal(size=(count, spec.state_width)).astype(spec.accumulate_dtype)
    return RowBatch(keys, values, state, spec.kind, generator.integers(1, 2**63, count).astype(np.uint64))


def assert_same(one: RowBatch, other: RowBatch) -> None:
    for name in ("keys", "values", "state", "positions"):
        ours, theirs = getattr(one, name), getattr(other, name)
        assert (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes()), name
    assert one.kind == other.kind


class Disk:
    """A file of slots on a disk that fails when it is told to."""

    def __init__(self, limit: int = 8 * MiB) -> None:
        self.ssd = Budget(limit, "ssd", "/disk")
        self.dram = Budget(MiB)
        self.raw = FaultyFile(self.ssd)
        self.file = SlotFile(self.raw, SlotLayout(SPEC), self.dram)

    def put(self, keys: Ints, seed: int = 0) -> tuple[Ints, RowBatch]:
        slots, batch = self.file.take(len(keys)), some_rows(SPEC, keys, seed)
        self.file.write(slots, self.file.layout.pack(batch))
        return slots, batch

    def get(self, slots: Ints, keys: Ints) -> RowBatch:
        return self.file.layout.unpack(self.file.read(slots, keys))


@pytest.mark.parametrize(
    "spec",
    [
        RowSpec(64, "float32"),
        RowSpec(1, "float16"),
        RowSpec(7, "bfloat16", ADAM),
        RowSpec(3, "float64", ROWWISE),
        RowSpec(5, "int8"),
    ],
    ids=lambda spec: spec.dtype,
)
def test_rows_come_back_bit_for_bit_and_any_flipped_bit_is_found(spec: RowSpec) -> None:
    layout = SlotLayout(spec)
    batch = some_rows(spec, np.array([-1, 0, 2**63 - 1, -(2**63), 5]))
    words = layout.pack(batch)
    assert_same(layout.unpack(words), batch)
    assert layout.are_whole(words, batch.keys).all()
    raw = words.view(np.uint8)
    for bit in range(layout.nbytes * 8):
        raw[2, bit // 8] ^= 1 << bit % 8
        assert layout.are_whole(words, batch.keys).tolist() == [True, True, False, True, True], bit
        raw[2, bit // 8] ^= 1 << bit % 8


def test_zeros_other_keys_and_rows_of_another_kind_are_no_rows() -> None:
    layout, keys = SlotLayout(RowSpec(12, "float32", ROWWISE)), np.arange(3)
    words = layout.pack(some_rows(RowSpec(12, "float32", ROWWISE), keys))
    assert not layout.are_whole(words, keys + 1).any()
    assert not layout.are_whole(np.zeros_like(words), np.zeros(3, np.int64)).any()
    other = SlotLayout(RowSpec(13, "float32"))
    assert other.words == layout.words
    assert not other.are_whole(words, keys).any()


def test_neighbours_are_read_and_written_in_one_go() -> None:
    disk = Disk()
    keys = np.arange(1000)
    slots, batch = disk.put(keys)
    assert disk.raw.writes == [(0, 1000 * SLOT)]
    assert_same(disk.get(slots[::-1].copy(), keys[::-1].copy()), batch.take(keys[::-1]))
    assert disk.raw.reads == [(0, 1000 * SLOT)]
    disk.raw.reads.clear()
    near, far = np.array([7, 3, 20]), np.array([900])
    assert_same(disk.get(slots[np.append(near, far)], np.append(near, far)), batch.take(np.append(near, far)))
    assert disk.raw.reads == [(3 * SLOT, 18 * SLOT), (900 * SLOT, SLOT)]


def test_free_slots_are_taken_in_the_order_of_the_file() -> None:
    disk = Disk()
    slots, _ = disk.put(np.arange(4000))
    total = disk.raw.nbytes // SLOT
    disk.file.free(slots[1::2])
    taken = np.concatenate([disk.file.take(100) for _ in range((total - 2000) // 100)])
    assert len(np.unique(taken)) == len(taken)
    assert not np.isin(taken, slots[::2]).any()
    assert disk.file.held == 2000 + len(taken)


def test_a_slot_is_not_taken_again_while_somebody_who_began_before_reads() -> None:
    disk = Disk(limit=MiB)
    slots, batch = disk.put(np.arange(MiB // SLOT))
    early = disk.file.begin_read()
    disk.file.free(slots[:10])
    late = disk.file.begin_read()
    with pytest.raises(StorageFull):
        disk.file.take(1)
    assert_same(disk.get(slots[:10], batch.keys[:10]), batch.take(np.arange(10)))
    disk.file.end_read(early)
    assert disk.file.take(10).tolist() == slots[:10].tolist(), "who began later cannot know of them"
    disk.file.end_read(late)


def test_a_flipped_bit_is_told_with_file_slot_and_key_and_all_others_are_read_K03() -> None:
    disk = Disk()
    keys = np.arange(100, 200)
    slots, batch = disk.put(keys)
    for bit in (0, 8 * SLOT - 1, 8 * SLOT // 2):
        disk.raw.flip(50 * SLOT * 8 + bit)
        with pytest.raises(CorruptTier, match=r"/disk/faulty\.tier .*key 150 in slot 50: ") as caught:
            disk.get(slots, keys)
        assert caught.value.keys == (150,)
        rest = np.delete(np.arange(100), 50)
        assert_same(disk.get(slots[rest], keys[rest]), batch.take(rest))
        disk.raw.flip(50 * SLOT * 8 + bit)
    assert_same(disk.get(slots, keys), batch)


def test_a_read_that_fails_is_told_with_file_slots_and_keys() -> None:
    disk = Disk()
    keys = np.arange(20)
    slots, batch = disk.put(keys)
    disk.raw.fail_reads = 1
    with pytest.raises(CorruptTier, match=r"key 0 in slot 0, .* and 12 more: .*Input/output error") as caught:
        disk.get(slots, keys)
    assert caught.value.keys == tuple(range(20))
    assert_same(disk.get(slots, keys), batch)


def test_a_full_tier_names_tier_path_and_bytes_takes_nothing_and_goes_on_once_there_is_room() -> None:
    disk = Disk()
    slots, batch = disk.put(np.arange(10))
    disk.raw.is_full = True
    fitting = disk.raw.nbytes // SLOT - 10
    with pytest.raises(StorageFull, match=rf"the ssd tier in /disk cannot hold {SLOT} bytes more.*No space left"):
        disk.file.take(fitting + 1)
    more, others = disk.put(np.arange(10, 10 + fitting))
    assert_same(disk.get(slots, batch.keys), batch)
    assert_same(disk.get(more, others.keys), others)
    disk.raw.is_full = False
    disk.put(np.arange(fitting + 1))


def test_notes_about_slots_are_charged_and_all_is_given_back() -> None:
    disk = Disk()
    disk.put(np.arange(10))
    assert disk.ssd.held == disk.raw.nbytes == disk.dram.held * SLOT > 0
    disk.file.close()
    assert disk.ssd.held == disk.dram.held == 0


def test_only_free_slots_at_the_end_go_back_to_the_disk_and_none_that_a_reader_may_know(tmp_path: Path) -> None:
    folder, dram = SsdFolder(tmp_path, 8 * MiB), Budget(MiB)
    raw = folder.create("rows")
    file = SlotFile(raw, SlotLayout(SPEC), dram)
    keys = np.arange(1_000)
    slots, batch = file.take(1_000), some_rows(SPEC, keys)
    file.write(slots, file.layout.pack(batch))
    turn = file.begin_read()
    file.free(slots[500:])
    file.shrink()
    assert raw.nbytes == 1_000 * SLOT
    assert_same(file.layout.unpack(file.read(slots, keys)), batch)
    file.end_read(turn)
    assert file.shrink() == 500 * SLOT
    assert file.shrink() == 0
    assert raw.nbytes == raw.path.stat().st_size == folder.budget.held == 500 * SLOT == dram.held * SLOT
    assert_same(file.layout.unpack(file.read(slots[:500], keys[:500])), batch.take(keys[:500]))
    more = file.take(700)
    assert not np.isin(more, slots[:500]).any()
    file.free(more)
    file.free(slots[:500])
    file.shrink()
    assert (raw.nbytes, dram.held, file.slots) == (0, 0, 0)
    assert len(file.take(3)) == 3
    file.close()
    folder.close()


def test_the_last_of_seventy_million_rows_lies_where_it_should_E06(tmp_path: Path) -> None:
    spec = RowSpec(32, "float32")
    raw = SparseFile(tmp_path / "sparse")
    layout = SlotLayout(spec)
    file = SlotFile(raw, layout, Budget(1 << 30))
    last = 69_999_999
    raw.reserve((last + 1) * layout.nbytes)
    slots = np.array([0, last])
    batch = some_rows(spec, np.array([0, last]))
    try:
        file.write(slots, layout.pack(batch))
        assert_same(layout.unpack(file.read(slots[::-1].copy(), slots[::-1].copy())), batch.take(np.array([1, 0])))
        wrapped = [last * layout.nbytes % 2**bits // layout.nbytes + near for bits in (31, 32) for near in (-1, 0, 1)]
        others = np.array([1, *wrapped, last - 1])
        for slot in others.tolist():
            with pytest.raises(CorruptTier):
                file.read(np.array([slot]), np.array([slot]))
        with open(raw.path, "rb") as found:
            for slot in others.tolist():
                found.seek(slot * layout.nbytes)
                assert not any(found.read(layout.nbytes)), f"slot {slot} was written"
        assert raw.path.stat().st_blocks * 512 < MiB
    finally:
        file.close()
