"""Any sequence of changes, look-ups, held batches and prefetches over three tiers: the device gives the bits of the tiers below."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from paramstream.tiers.hbm import Hbm, HbmTable
from paramstream.tiers.hbm.table import Held
from paramstream.tiers.rows import InitSpec, OptimizerSpec, RowBatch, RowSpec, RowTable
from paramstream.tiers.store import TieredStore

DIM = 6
keys = st.lists(st.integers(-2, 30), min_size=1, max_size=12).map(lambda some: np.array(some, np.int64))


class DeviceSteps(RuleBasedStateMachine):
    """A store whose device has room for ten rows, of thirty."""

    @initialize(kind=st.sampled_from(["sgd", "adam"]), ssd=st.booleans())
    def begin(self, kind: str, ssd: bool) -> None:
        adam = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}
        optimizer = OptimizerSpec(kind, {"lr": 0.1} if kind == "sgd" else adam)
        self.folder = tempfile.mkdtemp()
        self.store = TieredStore("16MiB", hbm=10 * DIM * 4, ssd=f"{self.folder}:16MiB" if ssd else None)
        spec = RowSpec(DIM, "float32", optimizer, InitSpec("normal", {"std": 1.0}, seed=5))
        self.rows: RowTable = self.store.rows((1, 0), "t", spec)
        assert self.store.hbm is not None
        self.hbm: Hbm = self.store.hbm
        self.table: HbmTable = self.hbm.table((1, "t"), DIM, "float32", self.rows.lookup)
        self.position = 0
        self.undo: list[RowBatch] = []
        self.holding: list[tuple[ExitStack, Held, NDArray[np.float32]]] = []

    @rule(some=keys, kind=st.sampled_from(["write", "apply", "delete"]), value=st.floats(-2, 2, width=32))
    def change(self, some: NDArray[np.int64], kind: str, value: float) -> None:
        self.position += 1
        values = np.full((len(some), DIM), value, np.float32)
        self.rows.prepare(some)
        if kind == "delete":
            before = self.rows.delete(some, self.position, images=True)
        elif kind == "write":
            before = self.rows.write(some, values, self.position, images=True)
        else:
            before = self.rows.apply(some, values, self.position, images=True)
        assert before is not None
        self.undo.append(before)

    @precondition(lambda self: self.undo)
    @rule()
    def take_back(self) -> None:
        self.rows.restore(self.undo.pop())

    @rule(some=keys)
    def look_up(self, some: NDArray[np.int64]) -> None:
        values, found = self.rows.lookup(some)
        rows, there = self.table.lookup(some)
        assert np.array_equal(rows.numpy().view(np.uint32), values.view(np.uint32))
        assert there.tolist() == found.tolist()

    @rule(some=keys)
    def prefetch(self, some: NDArray[np.int64]) -> None:
        self.hbm.prefetch(self.table, some)

    @rule()
    def settle(self) -> None:
        self.hbm.settle()

    @precondition(lambda self: len(self.holding) < 3)
    @rule(some=keys)
    def hold(self, some: NDArray[np.int64]) -> None:
        block = ExitStack()
        held = block.enter_context(self.table.hold(some))
        self.holding.append((block, held, self.rows.lookup(some)[0]))

    @precondition(lambda self: self.holding)
    @rule()
    def let_go(self) -> None:
        block, *_ = self.holding.pop(0)
        block.close()

    @invariant()
    def what_is_held_stays(self) -> None:
        for _, held, values in getattr(self, "holding", []):
            assert torch.equal(held.values[held.index], torch.from_numpy(values))

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        try:
            self.look_up(np.arange(-2, 31))
            for block, *_ in self.holding:
                block.close()
            self.hbm.settle()
            counters = self.table.counters()
            assert counters.promotions == len(self.table) + counters.evictions + counters.dropped
        finally:
            self.store.close()
            shutil.rmtree(self.folder)
        assert self.store.usage().held == 0


DeviceSteps.TestCase.settings = settings(max_examples=15, stateful_step_count=20)
test_the_device_gives_the_bits_of_the_tiers_below = DeviceSteps.TestCase
