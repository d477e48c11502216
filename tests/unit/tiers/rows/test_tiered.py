"""A row table over DRAM and SSD: what moves when, what stays where it is, and what readers see meanwhile."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from fakes.tier_files import FaultyFile
from paramstream.errors import CorruptTier, StorageFull
from paramstream.tiers.budget import Budget
from paramstream.tiers.rows import OptimizerSpec, RowBatch, RowSpec
from paramstream.tiers.rows.kernels import NumpyKernels
from paramstream.tiers.rows.slots import SlotLayout
from paramstream.tiers.rows.tiered import TieredRowTable
from paramstream.tiers.rows.tiering import BATCH_BYTES, Tiering
from reference.waiting import eventually

DIM = 64
SGD = OptimizerSpec("sgd", {"lr": 1.0})
ADAGRAD = OptimizerSpec("adagrad", {"lr": 1.0, "eps": 0.0, "initial_accumulator_value": 0.0})
ROW_NBYTES = SlotLayout(RowSpec(DIM, "float32", SGD)).nbytes
WAIT_S = 20.0

Ints = NDArray[np.int64]


class Tiers:
    """A table on a disk that fails when it is told to."""

    def __init__(self, dram: int = 1 << 20, ssd: int = 64 << 20, optimizer: OptimizerSpec = SGD) -> None:
        self.dram = Budget(dram)
        self.ssd = Budget(ssd, "ssd", "/disk")
        self.files: list[FaultyFile] = []
        self.table = TieredRowTable("emb", RowSpec(DIM, "float32", optimizer), self.dram, self.create, NumpyKernels())
        self.dram.reclaim_with(self.table.give_back)
        self.position = 0

    def create(self) -> FaultyFile:
        self.files.append(FaultyFile(self.ssd, f"{len(self.files)}.tier"))
        return self.files[-1]

    @property
    def file(self) -> FaultyFile:
        """The only one."""
        (file,) = self.files
        return file

    def put(self, keys: Ints, value: float | None = None) -> None:
        """Each row is its key, or `value`, throughout."""
        self.position += 1
        column = keys.astype(np.float32) if value is None else np.full(len(keys), value, np.float32)
        rows = np.repeat(column[:, None], DIM, axis=1)
        self.table.prepare(keys)
        self.table.write(keys, rows, self.position, images=False)

    def fill(self, count: int) -> None:
        for start in range(0, count, 100):
            self.put(np.arange(start, min(start + 100, count)))

    def get(self, keys: Ints) -> list[float]:
        values, found = self.table.lookup(keys)
        assert found.all()
        assert (values == values[:, :1]).all()
        return [float(value) for value in values[:, 0]]

    @property
    def counts(self) -> dict[str, int]:
        tiers = self.table.counters().tiers
        return {name: getattr(tiers, name) for name in ("ssd_hits", "promotions", "demotions", "written")}


def test_rows_that_dram_has_no_room_for_lie_on_ssd_and_all_are_read_within_the_budget() -> None:
    tiers = Tiers()
    tiers.fill(3_000)
    keys = np.arange(3_000)
    assert len(tiers.table) == 3_000
    assert tiers.counts["demotions"] > 1_000
    assert tiers.get(keys[::-1].copy()) == [float(key) for key in keys[::-1]]
    assert tiers.table.read(keys).values[:, 5].tolist() == keys.tolist()
    assert np.sort(tiers.table.keys()).tolist() == keys.tolist()
    scanned = np.concatenate([batch.keys for batch in tiers.table.scan(777)])
    assert np.sort(scanned).tolist() == keys.tolist()
    assert tiers.dram.held == tiers.table.nbytes <= tiers.dram.limit
    assert tiers.ssd.held == tiers.table.ssd_nbytes


def test_a_clean_row_leaves_again_without_a_write_and_a_changed_one_is_written_with_what_is_new() -> None:
    tiers = Tiers()
    tiers.put(np.arange(10))
    assert tiers.table.demote(10) == 10
    assert tiers.table.prefetch(np.arange(4)) == 4
    assert tiers.table.prefetch(np.arange(4)) == 0
    tiers.put(np.array([1]), 100.0)
    writes = len(tiers.file.writes)
    assert tiers.table.demote(10) == 4
    assert tiers.file.writes[writes:] == [tiers.file.writes[-1]]
    assert tiers.file.writes[-1][1] == ROW_NBYTES, "one row"
    assert tiers.get(np.arange(4)) == [0.0, 100.0, 2.0, 3.0]
    assert tiers.counts == {"ssd_hits": 4, "promotions": 8, "demotions": 14, "written": 11}


def test_a_lookup_brings_rows_up_and_a_read_does_not() -> None:
    tiers = Tiers()
    tiers.put(np.arange(10))
    tiers.table.demote(10)
    tiers.table.read(np.arange(10))
    assert tiers.counts["promotions"] == tiers.counts["ssd_hits"] == 0
    tiers.get(np.array([3, 3, 4]))
    tiers.get(np.array([3, 3, 4]))
    counters = tiers.table.counters()
    assert (counters.dram_hits, counters.tiers.ssd_hits, counters.tiers.promotions) == (3, 3, 2)


def test_neighbours_in_an_eviction_are_written_in_one_go() -> None:
    tiers = Tiers()
    tiers.put(np.arange(1000))
    tiers.table.demote(1000)
    assert tiers.file.writes == [(0, 1000 * ROW_NBYTES)]


def test_what_is_pinned_stays_while_all_else_leaves() -> None:
    tiers = Tiers()
    tiers.fill(5_000)
    pinned = np.arange(0, 5_000, 100)
    tiers.table.pin(pinned)
    tiers.table.pin(pinned[:2])
    tiers.table.demote(5_000)
    tiers.table.give_back(tiers.dram.limit)
    reads = len(tiers.file.reads)
    assert tiers.get(pinned) == pinned.tolist()
    assert len(tiers.file.reads) == reads
    tiers.table.unpin(pinned)
    tiers.table.unpin(np.array([7, 4_999]))
    assert tiers.table.demote(5_000) == len(pinned) - 2
    tiers.table.unpin(pinned[:2])
    assert tiers.table.demote(5_000) == 2


def test_a_pin_ends_with_its_row() -> None:
    tiers = Tiers()
    tiers.put(np.arange(3))
    assert tiers.table.pin(np.array([2, 9, 1, 2, 0])).tolist() == [0, 1, 2]
    tiers.table.delete(np.array([1]), 10)
    tiers.position = 10
    tiers.put(np.array([1]))
    assert tiers.table.demote(3) == 1
    tiers.table.unpin(np.arange(3))
    assert tiers.table.demote(3) == 2


def test_a_row_that_is_prepared_after_it_was_chosen_to_leave_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    tiers, keys = Tiers(), np.arange(10)
    tiers.put(keys)
    tiers.table.demote(5)
    tiers.table.prefetch(keys)
    move_down = vars(Tiering)["_move_down"]

    def prepare_first(moved: Tiering, chosen: Ints, *, may_write: bool) -> int:
        tiers.table.prepare(keys)
        left: int = move_down(moved, chosen, may_write=may_write)
        return left

    monkeypatch.setattr(Tiering, "_move_down", prepare_first)
    assert tiers.table.demote(10) == 0
    tiers.table.apply(keys, np.full((10, DIM), -1.0, np.float32), 2, images=False)
    assert tiers.get(keys) == (keys + 1).tolist()
    assert len(tiers.table) == 10


def test_more_rows_pinned_than_there_is_room_for_are_refused_and_none_is_pinned() -> None:
    tiers = Tiers()
    tiers.fill(3_000)
    with pytest.raises(StorageFull, match=r"the dram tier .* no more rows of 'emb' can leave: .* in use"):
        tiers.table.pin(np.arange(3_000))
    tiers.fill(1_000)
    tiers.table.demote(3_000)
    assert tiers.table.prefetch(np.arange(10)) == 10


def test_a_change_of_more_rows_than_dram_holds_is_refused_and_changes_nothing() -> None:
    tiers = Tiers()
    tiers.fill(3_000)
    rows = np.zeros((2_500, DIM), np.float32)
    with pytest.raises(StorageFull, match="the dram tier cannot hold"):
        tiers.table.prepare(np.arange(2_500))
    with pytest.raises(StorageFull, match="the dram tier cannot hold"):
        tiers.table.write(np.arange(2_000, 4_500), rows, tiers.position + 1, images=False)
    assert tiers.get(np.arange(3_000)) == np.arange(3_000).tolist()
    assert len(tiers.table) == 3_000
    tiers.put(np.arange(2_950, 3_050))
    assert len(tiers.table) == 3_050


def test_an_undo_puts_rows_back_that_have_left_dram_since() -> None:
    tiers = Tiers()
    tiers.put(np.arange(10))
    rows = np.full((12, DIM), -1.0, np.float32)
    before = tiers.table.write(np.arange(12), rows, 2, images=True)
    gone = tiers.table.delete(np.array([3]), 3, images=True)
    assert before is not None and gone is not None
    tiers.table.demote(12)
    tiers.file.fail_reads = 1
    tiers.table.restore(gone)
    tiers.table.restore(before)
    assert tiers.get(np.arange(10)) == np.arange(10).tolist()
    assert tiers.table.lookup(np.array([10, 11]))[1].tolist() == [False, False]
    assert len(tiers.table) == 10
    assert tiers.file.fail_reads == 1, "nothing had to be read"


def test_another_kind_of_optimizer_starts_the_state_anew_on_ssd_too() -> None:
    tiers = Tiers(optimizer=ADAGRAD)
    keys = np.arange(10)
    gradients = np.full((10, DIM), 2.0, np.float32)
    tiers.table.apply(keys, gradients, 1, images=False)
    tiers.table.demote(10)
    assert (tiers.table.read(keys).state == 4.0).all()
    tiers.table.alter(RowSpec(DIM, "float32", SGD))
    assert tiers.table.read(keys).state.shape == (10, 0)
    settings = {"lr": 1.0, "eps": 0.0, "initial_accumulator_value": 9.0}
    tiers.table.alter(RowSpec(DIM, "float32", OptimizerSpec("adagrad", settings)))
    assert (tiers.table.read(keys).state == 9.0).all()
    tiers.table.alter(RowSpec(DIM, "float32", OptimizerSpec("adagrad", settings | {"initial_accumulator_value": 5.0})))
    assert (tiers.table.read(keys).state == 9.0).all(), "other settings change no state"
    tiers.table.apply(keys, gradients, 2, images=False)
    assert (tiers.table.read(keys).state == 13.0).all()
    tiers.table.demote(10)
    assert [file.is_closed for file in tiers.files] == [True, False]
    assert (tiers.table.read(keys).state == 13.0).all()


def test_memory_that_others_need_is_given_back_and_taken_again() -> None:
    tiers = Tiers(dram=2 << 20)
    tiers.fill(5_000)
    held = tiers.table.nbytes
    assert held > 1.7 * (1 << 20)
    tiers.dram.charge(1 << 20)
    assert tiers.table.nbytes <= tiers.dram.limit - (1 << 20)
    assert tiers.get(np.arange(5_000)) == np.arange(5_000).tolist()
    tiers.dram.refund(1 << 20)
    tiers.get(np.arange(5_000))
    assert tiers.table.nbytes > 0.9 * held


def test_clear_gives_all_back_and_a_lookup_that_had_begun_still_ends_right() -> None:
    tiers = Tiers()
    tiers.fill(3_000)
    tiers.table.demote(3_000)
    with paused_reads(tiers) as read:
        result = in_thread(lambda: tiers.get(np.arange(100)))
        assert read.wait(WAIT_S)
        tiers.table.clear()
    assert result() == np.arange(100).tolist()
    assert len(tiers.table) == tiers.dram.held == tiers.ssd.held == 0
    tiers.fill(3_000)
    assert tiers.get(np.arange(3_000)) == np.arange(3_000).tolist()


# Readers and writers side by side.


@contextmanager
def paused_reads(tiers: Tiers) -> Generator[threading.Event]:
    """Reads of the disk wait until the block ends; the event says that one has begun."""
    begun, goes_on = threading.Event(), threading.Event()

    def before_read() -> None:
        begun.set()
        assert goes_on.wait(WAIT_S)

    tiers.file.before_read = before_read
    try:
        yield begun
    finally:
        tiers.file.before_read = lambda: None
        goes_on.set()


def in_thread(act: Callable[[], list[float]]) -> Callable[[], list[float]]:
    """Starts it; the result waits for its end."""
    results: list[list[float]] = []
    thread = threading.Thread(target=lambda: results.append(act()), name="paramstream-test")
    thread.start()

    def result() -> list[float]:
        thread.join(WAIT_S)
        assert results
        return results[0]

    return result


@pytest.mark.parametrize("keys", [np.array([5]), np.arange(50)], ids=["single", "batch"])
def test_a_slow_read_gives_the_bytes_of_its_moment_while_its_slots_are_wanted_by_others_M01(keys: Ints) -> None:
    tiers = Tiers(ssd=2 << 20)
    tiers.put(np.arange(100))
    tiers.table.demote(100)
    with paused_reads(tiers) as read:
        result = in_thread(lambda: tiers.get(keys))
        assert read.wait(WAIT_S)
        # The rows are changed and moved down over and over, with others: each slot is wanted again.
        for value in range(60):
            rows = np.full((100, DIM), 1000.0 + value, np.float32)
            tiers.table.restore(batch_of(tiers, np.arange(100), rows))
            tiers.table.demote(100)
    assert result() == keys.tolist()
    assert tiers.get(keys) == [1059.0] * len(keys)


def batch_of(tiers: Tiers, keys: Ints, rows: NDArray[np.float32]) -> RowBatch:
    tiers.position += 1
    positions = np.full(len(rows), tiers.position, np.uint64)
    return RowBatch(keys, rows, np.empty((len(rows), 0), np.float32), "sgd", positions)


def test_nobody_waits_for_the_table_while_the_disk_is_read() -> None:
    tiers = Tiers()
    tiers.put(np.arange(100))
    tiers.table.demote(100)
    tiers.put(np.arange(100, 200))
    with paused_reads(tiers) as read:
        result = in_thread(lambda: tiers.get(np.arange(100)))
        assert read.wait(WAIT_S)
        assert tiers.get(np.arange(100, 200)) == np.arange(100, 200).tolist()
        tiers.put(np.arange(100, 200), 7.0)
    assert result() == np.arange(100).tolist()


@pytest.mark.parametrize("updates", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_updates_of_one_row_beside_its_moves_are_all_there_M06(updates: int) -> None:
    tiers = Tiers(ssd=4 << 20)
    keys, gradient = np.array([42]), np.full((1, DIM), -1.0, np.float32)
    ended = threading.Event()
    moved: list[int] = []

    def move() -> None:
        while not ended.wait(0.001):
            moved.append(tiers.table.demote(1))
            tiers.table.prefetch(keys)

    def has_moved(times: int) -> bool:
        return sum(moved) >= times

    mover = threading.Thread(target=move, name="paramstream-test-mover")
    mover.start()
    try:
        for position in range(1, updates + 1):
            tiers.table.prepare(keys)
            tiers.table.apply(keys, gradient, position, images=False)
            if position % 100 == 0:
                # In between it seldom gets away: it is in use, or was changed while it was written.
                expected = sum(moved) + 1
                eventually(partial(has_moved, expected))
    finally:
        ended.set()
        mover.join(WAIT_S)
    assert tiers.get(keys) == [float(updates)]
    assert tiers.table.read(keys).positions.tolist() == [updates]
    tiers.table.demote(1)
    assert tiers.get(keys) == [float(updates)], "what was written last is the newest"
    assert sum(moved) >= updates // 100


def test_lookups_of_many_threads_beside_changes_and_evictions_see_whole_rows_that_never_go_back() -> None:
    tiers = Tiers(dram=800_000)
    keys = np.arange(2_000)
    tiers.fill(2_000)
    ended = threading.Event()
    problems: list[BaseException] = []

    def read(seed: int) -> None:
        random = np.random.default_rng(seed)
        newest = np.zeros(len(keys))
        try:
            while not ended.is_set():
                some = random.integers(0, len(keys), 50)
                values = np.array(tiers.get(some))
                assert (values >= newest[some]).all()
                newest[some] = values
        except BaseException as problem:  # noqa: BLE001  it is raised below, in the test's thread
            problems.append(problem)

    threads = [threading.Thread(target=read, args=(seed,), name=f"paramstream-test-{seed}") for seed in range(4)]
    tiers.put(keys[:1000], 3_000.0)
    tiers.put(keys[1000:], 3_000.0)
    for thread in threads:
        thread.start()
    try:
        random = np.random.default_rng(9)
        for value in range(3_001, 3_031):
            tiers.put(np.unique(random.integers(0, len(keys), 100)), float(value))
    finally:
        ended.set()
        for thread in threads:
            thread.join(WAIT_S)
    assert not problems, problems[0]
    assert tiers.counts["demotions"] > 1_000


# A disk that fails.


def test_a_row_whose_write_fails_stays_counts_as_dirty_and_leaves_later_K07() -> None:
    tiers = Tiers()
    tiers.put(np.arange(10))
    tiers.table.demote(1)
    tiers.put(np.arange(10), 5.0)
    tiers.file.fail_writes = 100
    assert tiers.table.demote(10) == 0
    assert isinstance(tiers.table.error, StorageFull)
    assert "/disk" in str(tiers.table.error) and "Input/output error" in str(tiers.table.error)
    assert tiers.table.counters().tiers.failed_writes == 10
    assert tiers.get(np.arange(10)) == [5.0] * 10
    assert tiers.counts["ssd_hits"] == 0
    tiers.file.fail_writes = 0
    assert tiers.table.demote(10) == 10
    assert tiers.table.error is None
    assert tiers.get(np.arange(10)) == [5.0] * 10
    assert tiers.counts["ssd_hits"] == 10


def test_a_full_ssd_refuses_with_tier_path_and_bytes_serves_all_and_goes_on_once_there_is_room_K05() -> None:
    tiers = Tiers(ssd=300 << 10)
    with pytest.raises(StorageFull) as caught:
        tiers.fill(20_000)
    for part in ("the dram tier cannot hold", "the ssd tier in /disk cannot hold", "bytes more"):
        assert part in str(caught.value)
    count = len(tiers.table)
    assert tiers.get(np.arange(count)) == np.arange(count).tolist()
    tiers.put(np.arange(count - 10, count), -1.0)
    began = time.monotonic()
    for _ in range(3):
        with pytest.raises(StorageFull):
            tiers.put(np.arange(20_000, 20_500))
    assert time.monotonic() - began < 1.0, "it does not spin"
    tiers.ssd.limit = 2 << 20
    tiers.put(np.arange(20_000, 20_500))
    assert tiers.get(np.arange(count - 10, count)) == [-1.0] * 10
    assert tiers.get(np.arange(count - 10)) == np.arange(count - 10).tolist()
    assert tiers.table.error is None


def test_where_all_is_pinned_one_row_more_is_refused_at_once_and_fits_when_a_pin_ends_M07() -> None:
    tiers = Tiers(dram=300_000)
    count = 0
    with pytest.raises(
        StorageFull, match=r"the dram tier cannot hold [0-9]+ bytes more: .* no more rows of 'emb' can leave"
    ):
        while True:
            tiers.put(np.array([count]))
            tiers.table.pin(np.array([count]))
            count += 1
    began, cpu = time.monotonic(), time.process_time()
    for _ in range(20):
        with pytest.raises(StorageFull):
            tiers.table.prepare(np.array([count]))
    assert time.monotonic() - began < 1.0
    assert time.process_time() - cpu < 1.0
    tiers.table.unpin(np.arange(count - 100, count))
    tiers.put(np.array([count]))
    assert tiers.get(np.arange(count + 1)) == np.arange(count + 1).tolist()


def test_a_damaged_row_is_told_by_name_all_others_are_read_and_it_is_whole_once_it_is_loaded_anew_K03() -> None:
    tiers = Tiers()
    tiers.put(np.arange(100))
    whole = tiers.table.read(np.arange(100))
    tiers.table.demote(100)
    for key in (17, 60):
        tiers.file.flip((key * ROW_NBYTES + 100) * 8 + 3)
    for read in (tiers.table.lookup, tiers.table.read, tiers.table.prepare):
        with pytest.raises(CorruptTier, match=r"/disk/0\.tier.*key 17 in slot 17, key 60 in slot 60") as caught:
            read(np.arange(100))
        assert caught.value.keys == (17, 60)
    others = np.setdiff1d(np.arange(100), [17, 60])
    assert tiers.get(others) == others.tolist()
    assert tiers.table.error is not None
    tiers.table.delete(np.array([60]), 2)
    assert not tiers.table.lookup(np.array([60]))[1].any()
    tiers.table.load(whole.take(np.array([16, 17])))
    assert tiers.get(np.array([16, 17])) == [16.0, 17.0]
    assert len(tiers.table) == 99


def test_a_read_that_fails_once_changes_nothing_and_works_again() -> None:
    tiers = Tiers()
    tiers.put(np.arange(10))
    tiers.table.demote(10)
    tiers.file.fail_reads = 1
    with pytest.raises(CorruptTier, match="Input/output error"):
        tiers.put(np.arange(5, 15), -1.0)
    assert len(tiers.table) == 10
    assert tiers.get(np.arange(10)) == np.arange(10).tolist()
    tiers.put(np.arange(5, 15), -1.0)
    assert tiers.get(np.arange(4, 15)) == [4.0] + [-1.0] * 10


# What happens between a look and what follows from it.


def test_readers_bring_rows_up_after_memory_was_given_back_beside_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    tiers = Tiers()
    tiers.put(np.arange(300))
    tiers.table.demote(100)
    begun, goes_on = threading.Event(), threading.Event()
    move_down = vars(Tiering)["_move_down"]

    def pause(moved: Tiering, chosen: Ints, *, may_write: bool) -> int:
        begun.set()
        assert goes_on.wait(WAIT_S)
        left: int = move_down(moved, chosen, may_write=may_write)
        return left

    giver = threading.Thread(target=tiers.table.give_back, args=(1 << 16,), name="paramstream-test")

    def give_back_meanwhile() -> None:
        tiers.file.before_read = lambda: None
        giver.start()
        assert begun.wait(WAIT_S)

    tiers.file.before_read = give_back_meanwhile
    with monkeypatch.context() as paused:
        paused.setattr(Tiering, "_move_down", pause)
        tiers.put(np.array([0]))
        goes_on.set()
        giver.join(WAIT_S)
    assert tiers.get(np.arange(1, 11)) == np.arange(1, 11).tolist()
    assert tiers.counts["promotions"] == 11


def test_a_row_that_is_brought_up_while_its_table_is_altered_has_the_state_of_now() -> None:
    tiers, keys = Tiers(optimizer=ADAGRAD), np.arange(10)
    tiers.table.apply(keys, np.full((10, DIM), 2.0, np.float32), 1, images=False)
    tiers.table.demote(10)
    settings = {"lr": 1.0, "eps": 0.0, "initial_accumulator_value": 9.0}
    with paused_reads(tiers) as read:
        result = in_thread(lambda: tiers.get(keys))
        assert read.wait(WAIT_S)
        tiers.table.alter(RowSpec(DIM, "float32", SGD))
        tiers.table.alter(RowSpec(DIM, "float32", OptimizerSpec("adagrad", settings)))
    assert len(result()) == 10
    assert tiers.counts["promotions"] == 10
    assert (tiers.table.read(keys).state == 9.0).all()


def test_a_row_that_only_the_loading_thread_could_not_read_is_loaded_where_it_is_by_now() -> None:
    tiers, keys = Tiers(), np.arange(10)
    tiers.put(keys)
    tiers.table.demote(10)
    tiers.position = 5

    def read_first() -> None:
        tiers.file.before_read = lambda: None
        tiers.table.pin(keys[:5])
        tiers.file.fail_reads = 1

    tiers.file.before_read = read_first
    tiers.table.load(batch_of(tiers, keys, np.full((10, DIM), 7.0, np.float32)))
    assert tiers.get(keys) == [7.0] * 10
    tiers.table.unpin(keys[:5])
    assert tiers.table.demote(10) == 10
    assert tiers.get(keys) == [7.0] * 10
    assert len(tiers.table) == 10


def test_a_place_taken_for_a_new_row_is_not_given_back_while_another_waits_for_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiers = Tiers()
    tiers.put(np.arange(64))
    tiers.table.demote(64)
    tiers.file.fail_reads = 1
    # Just enough places for what is new, and none for the row that is damaged.
    new = np.arange(100, 164)
    loaded = np.append(new, 0)
    batch = batch_of(tiers, loaded, np.repeat(loaded.astype(np.float32)[:, None], DIM, axis=1))
    make_room = vars(Tiering)["make_room"]
    given: list[int] = []

    def others_need_it_too(moved: Tiering, count: int) -> bool:
        given.append(moved.give_back(1 << 19))
        made: bool = make_room(moved, count)
        return made

    monkeypatch.setattr(Tiering, "make_room", others_need_it_too)
    monkeypatch.setattr(Tiering, "grown", refuse_second(tiers))
    tiers.table.load(batch)
    assert given
    assert sorted(tiers.get(loaded)) == sorted(loaded.tolist())
    tiers.put(np.arange(200, 300))
    assert sorted(tiers.get(loaded)) == sorted(loaded.tolist())


def refuse_second(tiers: Tiers) -> Callable[[Tiering, int], None]:
    """DRAM has no room for what a table takes by itself, the second time that it is asked for any: after places, before more of them."""
    grown, asked = vars(Tiering)["grown"], itertools.count(1)

    def refuse(moved: Tiering, nbytes: int) -> None:
        if nbytes and next(asked) == 2:
            raise tiers.dram.full(nbytes)
        grown(moved, nbytes)

    return refuse


# Small budgets.


class LargeRows:
    """A table of rows of 64 KiB in a small budget."""

    def __init__(self, dram: int) -> None:
        self.dram = Budget(dram)
        self.file = FaultyFile(Budget(64 << 20, "ssd", "/disk"))
        spec = RowSpec(16_384, "float32", SGD)
        self.table = TieredRowTable("emb", spec, self.dram, lambda: self.file, NumpyKernels())
        self.dram.reclaim_with(self.table.give_back)

    def column(self, keys: Ints) -> list[float]:
        return [float(self.table.lookup(keys[at : at + 1])[0][0, 9]) for at in range(len(keys))]


def large_rows(keys: Ints) -> NDArray[np.float32]:
    return np.repeat(keys.astype(np.float32)[:, None], 16_384, axis=1)


def test_a_few_large_rows_find_room_in_a_small_budget() -> None:
    large, keys = LargeRows(1 << 20), np.arange(40)
    for key in keys:
        large.table.prepare(keys[key : key + 1])
        large.table.write(keys[key : key + 1], large_rows(keys[key : key + 1]), int(key) + 1, images=False)
    assert large.column(keys) == keys.tolist()
    assert large.dram.held <= large.dram.limit


def test_large_rows_are_loaded_and_moved_few_at_a_time() -> None:
    large, keys = LargeRows(8 << 20), np.arange(200)
    positions = np.ones(200, np.uint64)
    large.table.load(RowBatch(keys, large_rows(keys), np.empty((200, 0), np.float32), "sgd", positions))
    large.table.demote(200)
    assert sum(nbytes for _, nbytes in large.file.writes) > 200 << 16
    assert max(nbytes for _, nbytes in large.file.writes) <= BATCH_BYTES
    assert large.table.prefetch(keys) > 0
    assert max(nbytes for _, nbytes in large.file.reads) <= BATCH_BYTES
    assert large.column(keys) == keys.tolist()
