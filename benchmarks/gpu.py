"""Rows in the HBM tier: checked bit for bit, and swapped between host and device beside a plain pinned copy.

Without CUDA the same code runs on the CPU, where "device" is the host's memory and a stream is the calling thread. On a machine with
CUDA: `make gpu`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from paramstream.tiers.budget import Budget
from paramstream.tiers.hbm import Hbm
from paramstream.tiers.hbm.copying import Copier, staging_bytes
from paramstream.tiers.hbm.lanes import side_lane
from paramstream.tiers.hbm.slab import Slab
from paramstream.tiers.rows import InitSpec, OptimizerSpec, RowSpec, RowTable

Keys = NDArray[np.int64]

DIM = 64
BATCH = 65_536
FAR_ROWS = 70_000_000
"""Of 32 floats: 8.96 GB, past what 32 bits can tell apart."""
STREAM_ROUNDS = 500


def run(quick: bool = False) -> dict[str, object]:
    """Raises `AssertionError` where a bit differs. `_mb_s` are MB of rows a second, `_krows_s` thousand rows a second.

    `swap`: rows brought in by the tier's writer, each batch in the place of another; `pinned_copy`: the same bytes, in one piece, from
    pinned memory into the device; `gather`: a look-up of rows that are there, and of a plain tensor by `index_select`; `around`: look-ups of which
    few rows are, while the writer brings them in.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = 8 * BATCH if not quick else 8 * 1024
    batch = rows // 8
    with_rows = _Tiers(rows, batch, device)
    try:
        checked = with_rows.check_bits(rounds=4 if quick else 40)
        checked += _check_streams(with_rows, 8 if quick else STREAM_ROUNDS)
        results: dict[str, object] = {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "rows_equal_bit_for_bit": checked,
            "far_rows_equal": _check_far_rows(device) if _has_room(device) else 0,
        }
        return results | with_rows.times(rounds=3 if quick else 20)
    finally:
        with_rows.hbm.close()


class _Tiers:
    """A table of `rows` rows in DRAM, of which the device has room for a quarter."""

    def __init__(self, rows: int, batch: int, device: torch.device) -> None:
        spec = RowSpec(DIM, "float32", OptimizerSpec("sgd", {"lr": 0.1}), InitSpec("normal", {"std": 1.0}, seed=1))
        self.dram = Budget(4 * rows * DIM * 4 + (256 << 20), "dram")
        self.rows = RowTable("users", spec, self.dram)
        self.keys: Keys = (np.arange(1, rows + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
        self.position = 0
        self.batch = batch
        self.device = device
        self.random = np.random.default_rng(7)
        self.hbm = Hbm(rows // 4 * DIM * 4 + staging_bytes(device)[0], self.dram, device)
        self.above = self.hbm.table((1, "users"), DIM, "float32", self.rows.lookup)
        self.rows.on_change = self.above.drop
        self.change(self.keys)

    def change(self, keys: Keys) -> None:
        self.position += 1
        self.rows.apply(keys, self.random.standard_normal((len(keys), DIM), np.float32), self.position, images=False)

    def some(self) -> Keys:
        """Keys of a batch, hot ones more often, some twice, one that has no row."""
        ranks = np.minimum(self.random.zipf(1.2, self.batch) - 1, len(self.keys) - 1)
        return np.append(self.keys[ranks], np.int64(-1))

    def check_bits(self, rounds: int) -> int:
        """Look-ups between changes and prefetches, while a batch is held; how many rows were compared."""
        compared = 0
        for _ in range(rounds):
            asked = self.some()
            compared += _compare(self.above.lookup(asked)[0], self.rows.lookup(asked)[0])
            self.hbm.prefetch(self.above, self.some()[:-1])
            before = self.rows.lookup(asked)[0]
            with self.above.hold(asked) as held:
                self.change(np.unique(asked)[: self.batch // 4])
                self.hbm.prefetch(self.above, self.some()[:-1])
                compared += _compare(self.above.lookup(asked)[0], self.rows.lookup(asked)[0])
                compared += _compare(held.values[held.index], before)
        return compared

    def times(self, rounds: int) -> dict[str, object]:
        halves = self.keys[: self.batch], self.keys[self.batch : 2 * self.batch]
        # Twice as many rows as the device has room for: each batch that comes takes the places of another one.
        batches = [self.keys[low : low + self.batch] for low in range(0, len(self.keys), self.batch)]
        began, moved = time.perf_counter(), 0
        for number in range(rounds):
            moved += self.hbm.prefetch(self.above, batches[number % len(batches)])
        swap_s = time.perf_counter() - began
        nbytes = self.batch * DIM * 4
        source = torch.empty(nbytes, dtype=torch.uint8, pin_memory=self.device.type == "cuda").random_(0, 255)
        into = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        copy_s = self._best(lambda: into.copy_(source, non_blocking=True), rounds)
        self.hbm.prefetch(self.above, halves[0])
        self.above.lookup(halves[0])
        gather_s = self._best(lambda: self.above.lookup(halves[0]), rounds)
        plain = torch.empty(len(self.keys) // 4, DIM, device=self.device).normal_()
        order = torch.from_numpy(self.random.integers(0, len(plain), self.batch))
        plain_s = self._best(lambda: plain.index_select(0, order.to(self.device)), rounds)
        began = time.perf_counter()
        for number in range(rounds):
            self.above.lookup(batches[number % len(batches)])
        around_s = (time.perf_counter() - began) / rounds
        counters = self.above.counters()
        return {
            "swap_mb_s": moved * DIM * 4 / swap_s / 1e6,
            "pinned_copy_mb_s": nbytes / copy_s / 1e6,
            "gather_krows_s": self.batch / gather_s / 1e3,
            "plain_gather_krows_s": self.batch / plain_s / 1e3,
            "around_krows_s": self.batch / around_s / 1e3,
            "rows_brought_in": counters.promotions,
            "rows_evicted": counters.evictions,
        }

    def _best(self, work: Callable[[], object], rounds: int) -> float:
        """Seconds of the quickest round, the device's part with it."""
        taken: list[float] = []
        for _ in range(rounds):
            began = time.perf_counter()
            work()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            taken.append(time.perf_counter() - began)
        return min(taken)


def _check_streams(tiers: _Tiers, rounds: int) -> int:
    """Rows are looked up on a stream that is busy, dropped, and others brought in at once: the look-up has what was there."""
    table, compared = tiers.above, 0
    asked = tiers.keys[: min(1024, tiers.batch)]
    busy = torch.randn(1024, 1024, device=tiers.device) if tiers.device.type == "cuda" else None
    for number in range(rounds):
        tiers.hbm.prefetch(table, asked)
        before = tiers.rows.lookup(asked)[0]
        if busy is not None:
            for _ in range(8):
                busy = (busy @ busy).clamp(-1, 1)
        rows = table.lookup(asked)[0]
        tiers.change(asked)
        tiers.hbm.prefetch(table, tiers.keys[(number + 1) * 7 % len(tiers.keys) :][: len(asked)])
        compared += _compare(rows, before)
    return compared


def _has_room(device: torch.device) -> bool:
    """For `FAR_ROWS`; the host's memory is not asked for so much."""
    return device.type == "cuda" and torch.cuda.mem_get_info(device)[0] > 1.1 * FAR_ROWS * 32 * 4


def _check_far_rows(device: torch.device) -> int:
    """The first and the last row of a slab that 32 bits do not reach, and the rows where they would lead."""
    slab = Slab(torch.zeros(FAR_ROWS * 32 * 4, dtype=torch.uint8, device=device))
    rows, last = slab.rows(torch.float32, 32), FAR_ROWS - 1
    values = np.random.default_rng(3).standard_normal((2, 32)).astype(np.float32)
    copier = Copier(device, side_lane(device))
    for copied in copier.scatter(values.view(np.uint8), slab.rows(torch.uint8, 128), np.array([0, last])):
        copied.wait()
    at = torch.tensor([0, last], device=device)
    equal = _compare(rows.index_select(0, at), values)
    for place in (1, last - 1, last * 128 % 2**32 // 128, last * 32 % 2**31 // 32):
        assert not bool(rows[place].any()), f"row {place} was written"
    return equal


def _compare(rows: torch.Tensor, expected: NDArray[np.float32]) -> int:
    """How many rows there are. Raises `AssertionError` where a bit differs."""
    assert np.array_equal(rows.cpu().numpy().view(np.uint32), expected.view(np.uint32)), "the device has other bits"
    return len(expected)
