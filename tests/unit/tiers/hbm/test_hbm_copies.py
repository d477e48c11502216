"""Tests of the slab and of copies into it: 64-bit places, rows that stay inside their page, sources that are nobody's twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hbm.lanes import ThreadLane
from hbm.truth import Truth
from paramstream.errors import InvalidEvent, StorageFull
from paramstream.tiers.budget import Budget
from paramstream.tiers.hbm import Hbm
from paramstream.tiers.hbm.copying import BUFFER_BYTES, Copier
from paramstream.tiers.hbm.lanes import InlineLane
from paramstream.tiers.hbm.slab import Slab, page_bytes_of, rows_per_page

CPU = torch.device("cpu")


def test_a_source_is_the_callers_again_while_the_copy_is_on_its_way_N07() -> None:
    """500 rounds: the copy is queued, its source becomes NaN at once, and new memory full of NaN is asked for."""
    into = torch.zeros(64, 256, dtype=torch.uint8)
    at = np.arange(64, dtype=np.int64)
    with ThreadLane() as lane:
        copier = Copier(CPU, lane)
        for number in range(500):
            source = np.full((64, 64), float(number), np.float32)
            lane.pause()
            copies = copier.scatter(source.view(np.uint8), into, at)
            at[:], source[:] = 0, np.nan
            taken = np.full((64, 64), np.nan, np.float32)
            lane.go_on()
            for copied in copies:
                copied.wait()
            assert bool(torch.all(into.view(torch.float32) == float(number))), f"round {number}"
            del source, taken
            at = np.arange(64, dtype=np.int64)


def test_a_copy_larger_than_the_buffers_goes_in_pieces_and_waits_for_none_that_is_not_done() -> None:
    rows = 3 * BUFFER_BYTES // 1024 + 5
    source = np.random.default_rng(1).integers(0, 255, (rows, 1024)).astype(np.uint8)
    into = torch.zeros(rows, 1024, dtype=torch.uint8)
    backwards = np.arange(rows - 1, -1, -1)
    with ThreadLane() as lane:
        for copied in Copier(CPU, lane).scatter(source, into, backwards):
            copied.wait()
    assert np.array_equal(into.numpy()[::-1], source)


def test_without_streams_a_copy_is_done_when_the_call_returns() -> None:
    into = torch.zeros(4, 8, dtype=torch.uint8)
    copies = Copier(CPU, InlineLane()).scatter(np.ones((2, 8), np.uint8), into, np.array([3, 1]))
    assert all(copied.reached() for copied in copies)
    assert into[:, 0].tolist() == [0, 1, 0, 1]


def test_rows_past_32_bits_are_written_where_they_belong_E06(tmp_path: Path) -> None:
    """70,000,000 rows of 32 values, 8.96 GB on a sparse file: the first and the last row change, and nothing else."""
    count, dim = 70_000_000, 32
    path = tmp_path / "slab"
    with path.open("wb") as file:
        file.truncate(count * dim * 4)
    memory = torch.from_file(str(path), shared=True, size=count * dim * 4, dtype=torch.uint8)
    slab = Slab(memory)
    rows = slab.rows(torch.float32, dim)
    assert len(rows) == count
    truth = Truth(dim)
    truth.fill(range(2))
    last = np.array([0, count - 1], np.int64)
    values = truth.read(np.array([0, 1]))[0]
    Copier(CPU, InlineLane()).scatter(values.view(np.uint8), slab.rows(torch.uint8, 4 * dim), last)
    assert np.array_equal(rows.index_select(0, torch.from_numpy(last)).numpy(), values)
    # Where places of 32 bits would have led, of bytes and of signed values, and the neighbours.
    for wrapped in ((count - 1) * dim * 4 % 2**32 // (dim * 4), (count - 1) * dim % 2**31 // dim):
        assert not rows[wrapped - 1 : wrapped + 2].any()
    assert not rows[count - 2].any()
    assert not rows[1].any()
    assert path.stat().st_blocks * 512 < 1 << 20
    pages = [slab.take() for _ in range(slab.pages)]
    assert pages == list(range(slab.pages))
    assert slab.first_row(slab.pages - 1, 128) * 128 == (slab.pages - 1) * slab.page_bytes


@given(row_bytes=st.integers(1, 900 << 10), slab_bytes=st.integers(1, 1 << 36))
def test_rows_of_a_page_lie_inside_it(row_bytes: int, slab_bytes: int) -> None:
    page_bytes = page_bytes_of(slab_bytes)
    count = rows_per_page(page_bytes, row_bytes)
    assert slab_bytes < 512 << 20 or count >= 1
    for page in (0, 1, 7, slab_bytes // page_bytes - 1):
        first = -(-page * page_bytes // row_bytes)
        assert first * row_bytes >= page * page_bytes
        assert count == 0 or (first + count) * row_bytes <= (page + 1) * page_bytes


def test_pages_are_lent_once_and_come_back() -> None:
    slab = Slab(torch.empty(3 * 4096, dtype=torch.uint8), 4096)
    taken = [slab.take() for _ in range(4)]
    assert taken == [0, 1, 2, None]
    slab.give(1)
    assert slab.free_pages == 1
    assert slab.take() == 1


def test_a_device_that_has_not_so_much_memory_says_so() -> None:
    with pytest.raises(StorageFull, match="the hbm tier cannot hold"):
        Hbm(1 << 60, Budget(1 << 30), CPU)


def test_a_tier_without_room_is_refused() -> None:
    with pytest.raises(InvalidEvent, match="hbm=0"):
        Hbm(0, Budget(1 << 30), CPU)
