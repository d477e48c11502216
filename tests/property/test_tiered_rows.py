"""Rows over a small DRAM and a disk that fails: whatever happens, they are those of a table that has all its rows in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from fakes.tier_files import FaultyFile
from paramstream.errors import CorruptTier, StorageFull
from paramstream.tiers import TieredStore
from paramstream.tiers.budget import Budget
from paramstream.tiers.rows import OptimizerSpec, RowBatch, RowSpec, RowTable
from paramstream.tiers.rows.kernels import NumpyKernels
from paramstream.tiers.rows.tiered import TieredRowTable

DIM = 3
KEYS = 400
"""Of which DRAM holds at most half, beside the index of all and the notes about slots on SSD."""
DRAM_NBYTES = {"numpy": 150_000, "chosen": 90_000}
"""By kernels: the compiled index takes less."""
SSD_NBYTES = 16 << 20
OPTIMIZERS = (
    OptimizerSpec("sgd", {"lr": 0.5}),
    OptimizerSpec("adagrad", {"lr": 0.5, "eps": 1e-8, "initial_accumulator_value": 0.25}),
    OptimizerSpec("adagrad", {"lr": 0.1, "eps": 1e-8, "initial_accumulator_value": 0.75}),
    OptimizerSpec("adam", {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}),
)


class World:
    """A table under test beside its reference, and random steps for both."""

    def __init__(self, seed: int, kernels: Literal["numpy", "chosen"] = "numpy") -> None:
        self.random = np.random.default_rng(seed)
        self.spec = RowSpec(DIM, "float32", OPTIMIZERS[0])
        loops = NumpyKernels() if kernels == "numpy" else None
        self.reference = RowTable("emb", self.spec, Budget(1 << 26), loops)
        self.budget = Budget(DRAM_NBYTES[kernels])
        self.ssd = Budget(SSD_NBYTES, "ssd", "/disk")
        self.files: list[FaultyFile] = []
        self.table = TieredRowTable("emb", self.spec, self.budget, self.create, loops)
        self.budget.reclaim_with(self.table.give_back)
        self.position = 0
        self.refused = self.damaged = 0
        self.undo: list[tuple[RowBatch, RowBatch]] = []
        self.pinned: list[NDArray[np.int64]] = []
        self.is_full = False

    def create(self) -> FaultyFile:
        self.files.append(FaultyFile(self.ssd, f"{len(self.files)}.tier"))
        self.files[-1].is_full = self.is_full
        return self.files[-1]

    def keys(self, most: int = 40) -> NDArray[np.int64]:
        return self.random.zipf(1.3, self.random.integers(0, most)) % KEYS - 7

    def rows(self, count: int) -> NDArray[np.float32]:
        return self.random.normal(size=(count, DIM)).astype(np.float32)

    # Steps. Each is done by both, or by neither.

    def change(self, act: Callable[[RowTable], RowBatch | None]) -> None:
        """`act` gives the rows before it, if it was asked for them."""
        before = act(self.table)
        expected = act(self.reference)
        if before is not None and expected is not None:
            self.undo.append((before, expected))
            assert_same(before, expected)
        else:
            self.undo.clear()

    def write(self) -> None:
        keys, images = self.keys(), bool(self.random.integers(2))
        rows, self.position = self.rows(len(keys)), self.position + 1
        if self.random.integers(2):
            self.table.prepare(keys)
        self.change(lambda table: table.write(keys, rows, self.position, images))

    def apply(self) -> None:
        keys, images = self.keys(), bool(self.random.integers(2))
        gradients, self.position = self.rows(len(keys)), self.position + 1
        if self.random.integers(2):
            self.table.prepare(keys)
        self.change(lambda table: table.apply(keys, gradients, self.position, images))

    def delete(self) -> None:
        keys, images = self.keys(), bool(self.random.integers(2))
        up_to = max(0, self.position - 20) if self.random.integers(2) else None
        self.position += 1
        self.change(lambda table: table.delete(keys, self.position, up_to, images))

    def restore(self) -> None:
        if self.undo:
            ours, theirs = self.undo.pop()
            self.table.restore(ours)
            self.reference.restore(theirs)

    def load(self) -> None:
        keys = np.unique(self.keys(most=120))
        batch = self.reference.read(keys)
        positions = np.where(batch.positions == 0, np.uint64(self.position), batch.positions)
        values = np.where(batch.positions[:, None] == 0, self.rows(len(keys)), batch.values)
        state = np.where(batch.positions[:, None] == 0, np.float32(0.5), batch.state)
        batch = RowBatch(keys, values, state, batch.kind, positions)
        if self.position:
            self.reference.load(batch)
            self.undo.clear()
            self.load_at_last(batch)

    def alter(self) -> None:
        spec = RowSpec(DIM, "float32", OPTIMIZERS[self.random.integers(len(OPTIMIZERS))])
        self.table.alter(spec)
        self.reference.alter(spec)
        self.undo.clear()

    def lookup(self) -> None:
        keys = self.keys(most=100)
        values, found = self.table.lookup(keys)
        expected, is_there = self.reference.lookup(keys)
        assert found.tolist() == is_there.tolist()
        assert values.tobytes() == expected.tobytes()

    def scan(self) -> None:
        keys = self.keys(most=100)
        assert_same(self.table.read(keys), self.reference.read(keys))
        assert sorted(self.table.keys().tolist()) == sorted(self.reference.keys().tolist())
        assert len(self.table) == len(self.reference)

    def move(self) -> None:
        match int(self.random.integers(6)):
            case 0:
                self.table.demote(int(self.random.integers(60)))
            case 1:
                self.table.give_back(int(self.random.integers(20_000)))
            case 2 | 3:
                self.table.prefetch(self.keys())
            case 4 if len(self.pinned) < 2:
                self.pinned.append(self.table.pin(self.keys(most=10)))
            case _ if self.pinned:
                self.table.unpin(self.pinned.pop())
            case _:
                pass

    def break_disk(self) -> None:
        if self.files:
            file = self.files[-1]
            match int(self.random.integers(5)):
                case 0:
                    file.fail_writes = int(self.random.integers(1, 4))
                case 1:
                    file.fail_reads = 1
                case 2 | 3:
                    self.is_full = not self.is_full
                    for each in self.files:
                        each.is_full = self.is_full
                case _:
                    # Somewhere in what is written.
                    end = max((offset + nbytes for offset, nbytes in file.writes), default=0)
                    if end and not file.is_closed:
                        file.flip(int(self.random.integers(end * 8)))

    def run(self, steps: int) -> None:
        acts = [
            self.write,
            self.apply,
            self.delete,
            self.restore,
            self.load,
            self.lookup,
            self.lookup,
            self.scan,
            self.move,
        ]
        for _ in range(steps):
            act = acts[self.random.integers(len(acts))]
            if self.random.integers(25) == 0:
                act = self.alter
            if self.random.integers(8) == 0:
                self.break_disk()
            try:
                act()
            except StorageFull as error:
                self.refused += 1
                assert self.is_full or "dram" in str(error) or "Input/output" in str(error)
            except CorruptTier as error:
                self.mend(error)
            assert self.budget.held == self.table.nbytes

    def mend(self, error: CorruptTier) -> None:
        """What cannot be read is had again from elsewhere, as from a snapshot."""
        self.damaged += 1
        assert error.keys and str(self.files[0].path.parent) in str(error)
        known = self.reference.read(np.array(error.keys))
        assert (known.positions > 0).all()
        self.load_at_last(known)

    def load_at_last(self, batch: RowBatch) -> None:
        """A load that is refused may have put some rows in: it is repeated once that works."""
        try:
            self.table.load(batch)
        except StorageFull:
            self.refused += 1
            self.make_well()
            self.table.load(batch)

    def make_well(self) -> None:
        self.is_full = False
        for file in self.files:
            file.is_full, file.fail_reads, file.fail_writes = False, 0, 0
        while self.pinned:
            self.table.unpin(self.pinned.pop())

    def settle(self) -> None:
        """The disk is well again."""
        self.make_well()
        keys = self.reference.keys()
        for start in range(0, len(keys), 50):
            while True:
                try:
                    assert_same(
                        self.table.read(keys[start : start + 50]), self.reference.read(keys[start : start + 50])
                    )
                except CorruptTier as error:
                    self.mend(error)
                else:
                    break


def assert_same(ours: RowBatch, theirs: RowBatch) -> None:
    """The same rows bit for bit, in any order. What is not there has no content."""

    def rows(batch: RowBatch) -> dict[int, tuple[int, bytes, bytes]]:
        return {
            key: (position, batch.values[row].tobytes(), batch.state[row].tobytes()) if position else (0, b"", b"")
            for row, (key, position) in enumerate(zip(batch.keys.tolist(), batch.positions.tolist(), strict=True))
        }

    assert rows(ours) == rows(theirs)
    assert ours.kind == theirs.kind


@pytest.mark.parametrize("kernels", ["numpy", "chosen"])
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 100))])
def test_rows_over_a_disk_that_fails_are_those_of_a_table_in_memory_E09(
    seed: int, kernels: Literal["numpy", "chosen"]
) -> None:
    world = World(seed, kernels)
    world.run(300)
    world.settle()
    counts = world.table.counters().tiers
    assert min(counts.demotions, counts.promotions, counts.ssd_hits) > 0
    assert seed > 2 or min(counts.failed_writes, world.damaged) > 0, "these seeds meet every fault"
    world.table.clear()
    assert world.budget.held == world.ssd.held == 0


class Side:
    """A table whose rows are the position that wrote them, throughout, and what threads do to it at the same time."""

    DIM = 32
    KEYS = 20_000

    def __init__(self, folder: Path) -> None:
        self.store = TieredStore(dram="3MiB", ssd=f"{folder}:64MiB")
        table = self.store.rows((1, 0), "emb", RowSpec(self.DIM, "float32", OPTIMIZERS[0]))
        assert isinstance(table, TieredRowTable)
        self.table = table
        self.positions: dict[int, int] = {}
        self.position = 0
        self.before: RowBatch | None = None

    def keys(self, random: np.random.Generator) -> NDArray[np.int64]:
        return random.zipf(1.2, random.integers(1, 300)) % self.KEYS

    def check(self, batch: RowBatch) -> None:
        there = batch.positions > 0
        assert (batch.values[there] == batch.positions[there].astype(np.float32)[:, None]).all(), "bytes of two writes"

    def look_up(self, random: np.random.Generator) -> None:
        values, _ = self.table.lookup(self.keys(random))
        assert (values == values[:, :1]).all(), "bytes of two writes"

    def read(self, random: np.random.Generator) -> None:
        self.check(self.table.read(self.keys(random)))
        if random.integers(20) == 0:
            for batch in self.table.scan(5_000):
                self.check(batch)

    def move(self, random: np.random.Generator) -> None:
        keys = self.keys(random)
        match int(random.integers(4)):
            case 0:
                self.store.make_room()
            case 1:
                self.table.demote(int(random.integers(500)))
            case 2:
                self.table.give_back(int(random.integers(200_000)))
            case _:
                pinned = self.table.pin(keys[:50])
                self.table.prefetch(keys)
                self.table.unpin(pinned)

    def apply(self, random: np.random.Generator) -> None:
        keys = np.unique(self.keys(random))
        self.position += 1
        match int(random.integers(10)):
            case 0:
                self.before = None
                self.table.delete(keys, self.position)
                for key in keys.tolist():
                    self.positions.pop(key, None)
            case 1 if self.before is not None:
                self.table.restore(self.before)
                known = zip(self.before.keys.tolist(), self.before.positions.tolist(), strict=True)
                self.positions |= (restored := dict(known))
                self.positions = {key: at for key, at in self.positions.items() if restored.get(key, 1)}
                self.before = None
            case 2:
                self.store.allocate(int(random.integers(1, 600_000))).release()
            case 3:
                self.table.alter(RowSpec(self.DIM, "float32", OPTIMIZERS[random.integers(len(OPTIMIZERS))]))
                self.before = None
            case _:
                rows = np.full((len(keys), self.DIM), self.position, np.float32)
                self.table.prepare(keys)
                self.before = self.table.write(keys, rows, self.position, images=bool(random.integers(2)))
                self.positions |= dict.fromkeys(keys.tolist(), self.position)


@pytest.mark.parametrize("seconds", [0.5, pytest.param(60.0, marks=pytest.mark.slow)])
def test_readers_movers_and_one_applier_side_by_side_see_whole_rows_and_lose_none(
    tmp_path: Path, seconds: float
) -> None:
    side, ended = Side(tmp_path), threading.Event()
    problems: list[BaseException] = []

    def repeat(act: Callable[[np.random.Generator], None], seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            while not ended.is_set():
                act(random)
        except BaseException as problem:  # noqa: BLE001  it is raised below, in the test's thread
            problems.append(problem)
            ended.set()

    acts = [side.look_up, side.look_up, side.read, side.move, side.apply]
    threads = [
        threading.Thread(target=repeat, args=(act, seed), name=f"paramstream-test-{seed}")
        for seed, act in enumerate(acts)
    ]
    with side.store:
        for thread in threads:
            thread.start()
        ended.wait(seconds)
        ended.set()
        for thread in threads:
            thread.join(30.0)
        assert not problems, problems[0]
        keys = np.array(sorted(side.positions))
        batch = side.table.read(keys)
        side.check(batch)
        assert batch.positions.tolist() == [side.positions[key] for key in keys.tolist()]
        assert len(side.table) == len(side.table.keys()) == len(keys)
        usage = side.store.usage()
        assert usage.held == usage.rows_bytes + usage.dense_bytes + usage.free_bytes
