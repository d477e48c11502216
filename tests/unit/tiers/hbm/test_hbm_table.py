"""Tests of rows in the HBM tier: the same bits as below, never an older value, and nothing that is in use moves."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hbm.lanes import ThreadLane
from hbm.truth import Truth
from paramstream.errors import CorruptLog, ParamstreamError
from paramstream.tiers.budget import Budget
from paramstream.tiers.hbm import Hbm

DIM = 16
ROW_BYTES = 4 * DIM
WAIT_SECONDS = 10.0


def keys_of(*keys: int) -> NDArray[np.int64]:
    return np.array(keys, np.int64)


class Setup:
    """A tier of a few rows over a truth of 100."""

    def __init__(self, rows: int, dim: int = DIM, dtype: str = "float32", **lanes: ThreadLane) -> None:
        self.dram = Budget(1 << 30, "dram")
        self.truth = Truth(dim, dtype)
        self.truth.fill(range(100))
        self.tier = Hbm(rows * dim * self.truth.dtype.itemsize, self.dram, torch.device("cpu"), **lanes)
        self.table = self.tier.table((1, "users"), dim, dtype, self.truth.read)
        self.truth.above = self.table

    def resident(self, keys: NDArray[np.int64]) -> bool:
        """Whether a look-up of `keys` reads nothing from below."""
        before = self.truth.reads
        self.table.lookup(keys)
        return self.truth.reads == before


@pytest.fixture
def small() -> Iterator[Setup]:
    """Eight rows."""
    setup = Setup(8)
    yield setup
    setup.tier.close()


def same(rows: torch.Tensor, expected: NDArray[np.float32]) -> bool:
    return bool(np.array_equal(rows.numpy().view(np.uint8), expected.view(np.uint8)))


def test_a_lookup_gives_the_bits_of_the_lookup_below_in_the_order_asked(small: Setup) -> None:
    asked = keys_of(3, 1, 99, 3, 7, 500, 1)
    for _ in range(3):
        rows, found = small.table.lookup(asked)
        below, found_below = small.truth.read(asked)
        assert same(rows, below)
        assert found.tolist() == found_below.tolist() == [True] * 5 + [False, True]
        small.tier.settle()
    assert small.table.counters().hits > 0


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_a_table_of_any_dtype_keeps_its_bits(dtype: str) -> None:
    setup = Setup(64, dim=3, dtype=dtype)
    try:
        asked = np.arange(40, dtype=np.int64)
        assert setup.tier.prefetch(setup.table, asked) > 0
        rows, _ = setup.table.lookup(asked)
        assert rows.dtype == getattr(torch, dtype)
        assert np.array_equal(rows.numpy(), setup.truth.read(asked)[0])
    finally:
        setup.tier.close()


def test_a_batch_without_keys_is_a_batch_without_rows(small: Setup) -> None:
    rows, found = small.table.lookup(keys_of())
    assert rows.shape == (0, DIM)
    assert len(found) == 0
    with small.table.hold(keys_of()) as held:
        assert held.index.shape == (0,)


def test_every_int64_is_a_key(small: Setup) -> None:
    odd = keys_of(-1, 2**63 - 1, -(2**63), 0)
    small.truth.write(odd, 0.5)
    assert small.tier.prefetch(small.table, odd) == 4
    assert small.resident(odd)
    assert same(small.table.lookup(odd)[0], small.truth.read(odd)[0])


def test_a_key_without_a_row_is_never_brought_in(small: Setup) -> None:
    assert small.tier.prefetch(small.table, keys_of(500, 501)) == 0
    assert len(small.table) == 0
    small.truth.write(keys_of(500), 0.0)
    rows, found = small.table.lookup(keys_of(500))
    assert found.all()
    assert same(rows, small.truth.read(keys_of(500))[0])


def test_a_change_below_is_seen_by_the_next_lookup_and_the_row_comes_again(small: Setup) -> None:
    assert small.tier.prefetch(small.table, keys_of(1, 2)) == 2
    assert small.resident(keys_of(1, 2))
    small.truth.write(keys_of(1), 0.25)
    assert same(small.table.lookup(keys_of(1, 2))[0], small.truth.read(keys_of(1, 2))[0])
    small.tier.settle()
    assert small.resident(keys_of(1, 2))
    assert small.table.counters().refreshed == 1


def test_a_row_that_changes_comes_again_once_and_then_only_if_it_is_read(small: Setup) -> None:
    small.table.lookup(keys_of(1))
    small.tier.settle()
    for change, comes_again in enumerate((True, False), 1):
        small.truth.write(keys_of(1), change / 4)
        small.tier.settle()
        assert len(small.table) == comes_again
    small.table.lookup(keys_of(1))
    small.tier.settle()
    for change in range(3, 8):
        small.truth.write(keys_of(1), change / 4)
        small.tier.settle()
        assert small.resident(keys_of(1)), "read after each change, as in training"
    assert small.table.counters().dropped == 7


def test_a_row_that_was_used_before_it_changed_outlives_rows_that_nobody_asked_for(small: Setup) -> None:
    hot = keys_of(1)
    small.tier.prefetch(small.table, hot)
    small.table.lookup(hot)
    small.truth.write(hot, 0.25)
    small.tier.settle()
    for cold in range(20, 60):
        small.tier.prefetch(small.table, keys_of(cold))
    assert small.resident(hot)
    assert not small.resident(keys_of(20))


def test_a_change_while_a_row_is_on_its_way_in_leaves_no_old_value(small: Setup) -> None:
    changes = iter([lambda: small.truth.write(keys_of(1), 0.75)])
    # After the writer has read the old row, and before it shows it.
    small.truth.after_read = lambda: next(changes, lambda: None)()
    small.tier.prefetch(small.table, keys_of(1))
    assert same(small.table.lookup(keys_of(1))[0], small.truth.read(keys_of(1))[0])
    small.tier.settle()
    assert same(small.table.lookup(keys_of(1))[0], small.truth.read(keys_of(1))[0])


def test_an_event_between_the_two_reads_of_a_lookup_is_seen_whole(small: Setup) -> None:
    assert small.tier.prefetch(small.table, keys_of(1)) == 1
    changes = iter([lambda: small.truth.write(keys_of(1, 50), 0.5)])
    # The pinned row 1 is of before the event; row 50 is read below after it.
    small.truth.before_read = lambda: next(changes, lambda: None)()
    rows, _ = small.table.lookup(keys_of(1, 50))
    assert same(rows, np.array([small.truth.row(1, 0.5), small.truth.row(50, 0.5)]))


def test_held_rows_stay_while_others_are_prefetched_M05(small: Setup) -> None:
    first, second = np.arange(8, dtype=np.int64), np.arange(8, 16, dtype=np.int64)
    assert small.tier.prefetch(small.table, first) == 8
    with small.table.hold(first) as held:
        assert held.values.data_ptr() == small.tier.slab.rows(torch.float32, DIM).data_ptr(), "a copy was made"
        assert small.tier.prefetch(small.table, second) == 0
        assert small.table.counters().passed == 8
        # What is not there is read around the tier, and right.
        assert same(small.table.lookup(second)[0], small.truth.read(second)[0])
        assert same(held.values[held.index], small.truth.read(first)[0])
        small.tier.settle()
        assert small.resident(first)
    assert small.tier.prefetch(small.table, second) == 8
    assert small.resident(second)


def test_held_rows_keep_their_values_while_they_change_below_M05(small: Setup) -> None:
    batch = keys_of(4, 5, 4, 6)
    small.tier.prefetch(small.table, batch)
    before = small.truth.read(batch)[0]
    with small.table.hold(batch) as held:
        small.truth.write(keys_of(4, 5, 6), 0.5)
        assert same(small.table.lookup(batch)[0], small.truth.read(batch)[0])
        small.tier.settle()
        assert small.tier.prefetch(small.table, np.arange(50, 58, dtype=np.int64)) <= 5
        assert same(held.values[held.index], before)
    assert same(small.table.lookup(batch)[0], small.truth.read(batch)[0])


def test_a_batch_of_which_some_rows_are_not_there_is_held_too(small: Setup) -> None:
    small.tier.prefetch(small.table, keys_of(1, 2))
    batch = keys_of(2, 90, 1, 90, 700)
    with small.table.hold(batch) as held:
        assert same(held.values[held.index], small.truth.read(batch)[0])
        assert held.found.tolist() == [True, True, True, True, False]


def test_every_row_is_kept_or_handed_back_and_readable_E09(small: Setup) -> None:
    hot, cold = np.arange(8, dtype=np.int64), np.arange(40, 72, dtype=np.int64)
    came = small.tier.prefetch(small.table, hot)
    for _ in range(7):
        small.table.lookup(hot)
    came += small.tier.prefetch(small.table, cold)
    counters = small.table.counters()
    assert counters.promotions == came
    # Rows in are rows kept and rows that gave way, and those that found no place were said to be passed over.
    assert came == len(small.table) + counters.evictions
    assert 8 + 32 == came + counters.passed
    everything = np.concatenate([hot, cold])
    assert same(small.table.lookup(everything)[0], small.truth.read(everything)[0])


def test_rows_that_cannot_be_read_below_are_told_to_who_asked_and_leave_no_slot_taken(small: Setup) -> None:
    small.truth.fails = CorruptLog("row 3 has another checksum")
    with pytest.raises(CorruptLog, match="another checksum"):
        small.tier.prefetch(small.table, keys_of(3))
    with pytest.raises(CorruptLog, match="another checksum"):
        small.table.lookup(keys_of(3))
    small.truth.fails = None
    assert small.tier.prefetch(small.table, np.arange(8, dtype=np.int64)) == 8


def test_a_failed_lookup_leaves_nothing_pinned(small: Setup) -> None:
    small.tier.prefetch(small.table, np.arange(8, dtype=np.int64))
    small.truth.fails = CorruptLog("unreadable")
    with pytest.raises(CorruptLog), small.table.hold(keys_of(0, 50)):
        raise AssertionError("not reached")
    small.truth.fails = None
    assert small.tier.prefetch(small.table, np.arange(20, 28, dtype=np.int64)) == 8


def test_two_tables_share_the_slab_and_the_second_gets_its_share() -> None:
    dram, truth, other = Budget(1 << 30), Truth(DIM), Truth(5, "float64")
    truth.fill(range(8_000))
    other.fill(range(8_000))
    tier = Hbm(1 << 18, dram, torch.device("cpu"))
    try:
        first = tier.table((1, "first"), DIM, "float32", truth.read)
        asked = np.arange(8_000, dtype=np.int64)
        tier.prefetch(first, asked)
        assert first.pages == tier.slab.pages
        assert len(first) == (1 << 18) // ROW_BYTES
        second = tier.table((1, "second"), 5, "float64", other.read)
        tier.prefetch(second, asked)
        assert second.pages == first.pages == tier.slab.pages // 2
        for table, below in ((first, truth), (second, other)):
            assert np.array_equal(table.lookup(asked)[0].numpy(), below.read(asked)[0])
    finally:
        tier.close()
    assert dram.held == 0


def test_what_the_host_keeps_is_charged_to_dram_and_refused_without_harm() -> None:
    truth = Truth(DIM)
    truth.fill(range(100))
    tight = Hbm(1 << 20, Budget(100), torch.device("cpu"))
    try:
        table = tight.table((1, "users"), DIM, "float32", truth.read)
        assert tight.prefetch(table, keys_of(1, 2)) == 0
        assert same(table.lookup(keys_of(1, 2))[0], truth.read(keys_of(1, 2))[0])
        assert tight.usage().held == 1 << 20
    finally:
        tight.close()


def test_a_row_that_is_longer_than_a_page_is_read_around_the_tier() -> None:
    setup = Setup(1, dim=1024)
    wide = setup.tier.table((1, "wide"), 3000, "float32", Truth(3000).read)
    try:
        assert setup.tier.prefetch(wide, keys_of(1)) == 0
        assert wide.lookup(keys_of(1))[0].shape == (1, 3000)
    finally:
        setup.tier.close()


def test_a_slot_that_a_lane_still_reads_is_not_used_again_N07() -> None:
    with ThreadLane() as readers:
        setup = Setup(8, callers=readers)
        try:
            first = np.arange(8, dtype=np.int64)
            for round_number in range(250):
                setup.tier.prefetch(setup.table, first)
                before = setup.truth.read(first)[0]
                readers.pause()
                rows, _ = setup.table.lookup(first)
                # The rows are freed, and their memory is asked for, with NaN for whoever would get it.
                setup.truth.write(first, float("nan"))
                setup.tier.prefetch(setup.table, first)
                readers.go_on()
                readers.run(lambda: None).wait()
                assert same(rows, before), f"round {round_number}"
                setup.truth.write(first, float(round_number))
                setup.tier.settle()
        finally:
            setup.tier.close()


def test_readers_beside_changes_never_see_an_older_value_or_half_an_event() -> None:
    setup = Setup(24)
    keys, stop = np.arange(32, dtype=np.int64), threading.Event()
    wrong: list[str] = []
    written = [0]

    def read() -> None:
        while not stop.is_set():
            least = written[0]
            rows = setup.table.lookup(keys)[0][:, 0].numpy() - keys
            if rows.min() != rows.max() or rows[0] < least:
                wrong.append(f"{rows.tolist()} after {least}")

    readers = [threading.Thread(target=read) for _ in range(2)]
    try:
        for reader in readers:
            reader.start()
        for number in range(1, 200):
            setup.truth.write(keys, float(number))
            written[0] = number
    finally:
        stop.set()
        for reader in readers:
            reader.join(WAIT_SECONDS)
        setup.tier.close()
    assert wrong == []


def test_after_close_nothing_is_brought_in_and_all_is_given_back() -> None:
    setup = Setup(8)
    setup.tier.prefetch(setup.table, keys_of(1))
    setup.tier.close()
    setup.tier.close()
    assert setup.dram.held == 0
    with pytest.raises(ParamstreamError, match="closed"):
        setup.tier.prefetch(setup.table, keys_of(2))


def test_a_table_that_is_gone_gives_its_memory_to_others_once_nobody_reads_it(small: Setup) -> None:
    rows, other = keys_of(1, 2, 3), Truth(DIM)
    other.fill(range(20))
    small.tier.prefetch(small.table, rows)
    heir = small.tier.table((2, "heir"), DIM, "float32", other.read)
    with small.table.hold(rows) as held:
        small.tier.forget((1, "users"))
        assert len(small.table) == 0
        assert small.tier.prefetch(small.table, rows) == 0
        assert small.tier.prefetch(heir, np.arange(8, dtype=np.int64)) == 0
        assert same(held.values[held.index], small.truth.read(rows)[0])
    assert small.tier.prefetch(heir, np.arange(8, dtype=np.int64)) == 8
    assert small.tier.table((1, "users"), DIM, "float32", small.truth.read) is not small.table


def test_a_table_that_is_gone_gives_its_memory_back_at_once_whatever_it_has() -> None:
    setup = Setup(64)
    try:
        setup.tier.prefetch(setup.table, np.arange(64, dtype=np.int64))
        assert setup.tier.slab.free_pages == 0
        wide = setup.tier.table((1, "wide"), 5000, "float32", Truth(5000).read)
        assert setup.tier.prefetch(wide, keys_of(1)) == 0
        for name in ("users", "wide", "none"):
            setup.tier.forget((1, name))
        setup.tier.settle()
        assert setup.tier.slab.free_pages == setup.tier.slab.pages
        assert setup.dram.held == setup.tier.usage().host_bytes == 0
    finally:
        setup.tier.close()
    setup.tier.forget((1, "users"))


def test_memory_that_a_lane_still_reads_is_given_back_after_it_has_N07() -> None:
    with ThreadLane() as readers:
        setup = Setup(8, callers=readers)
        first = np.arange(8, dtype=np.int64)
        setup.tier.prefetch(setup.table, first)
        readers.pause()
        rows, _ = setup.table.lookup(first)
        closing = threading.Thread(target=setup.tier.close)
        closing.start()
        closing.join(0.05)
        assert closing.is_alive(), "the slab is gone while it is read"
        readers.go_on()
        closing.join(WAIT_SECONDS)
        assert not closing.is_alive()
        assert same(rows, setup.truth.read(first)[0])


def test_a_batch_that_nobody_lets_go_of_ends_when_it_is_forgotten_even_under_the_lock(small: Setup) -> None:
    first = np.arange(8, dtype=np.int64)
    small.tier.prefetch(small.table, first)
    hold = small.table.hold(first)
    hold.__enter__()
    with small.table._lock:  # pyright: ignore[reportPrivateUsage]
        del hold
        gc.collect()
    assert small.tier.prefetch(small.table, np.arange(20, 28, dtype=np.int64)) == 8
