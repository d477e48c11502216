"""A row table against a plain dict: random changes, repeated keys, replays, undo, loads and alters, in compiled kernels and in numpy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.typing import NDArray

from paramstream.tiers.budget import Budget
from paramstream.tiers.rows import InitSpec, OptimizerSpec, RowBatch, RowSpec, RowTable
from paramstream.tiers.rows.kernels import NumpyKernels, kernels
from paramstream.tiers.rows.optimizers import step

DIM = 3
INIT = InitSpec("uniform", {"lo": -1.0, "hi": 1.0}, 11)
OPTIMIZERS = [
    None,
    OptimizerSpec("sgd", {"lr": 0.5}),
    OptimizerSpec("adagrad", {"lr": 0.1, "eps": 1e-10, "initial_accumulator_value": 0.1}),
    OptimizerSpec("adagrad", {"lr": 0.7, "eps": 1e-10, "initial_accumulator_value": 0.3}),
    OptimizerSpec("rowwise_adagrad", {"lr": 0.1, "eps": 1e-8, "initial_accumulator_value": 0.0}),
    OptimizerSpec("adam", {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}),
]
KEYS = st.sampled_from([0, -1, 1, 2, 3, 2**63 - 1, -(2**63), 5, 5 + 2**32])
BATCHES = st.lists(st.tuples(KEYS, st.integers(-8, 8)), max_size=12)
STEPS = st.integers(-1, 1)
"""How the next event's position lies to the last one: a replay, the same one, or the next."""


@dataclass(frozen=True)
class Row:
    """A row of the model."""

    values: NDArray[np.float32]
    state: NDArray[np.float32]
    position: int

    @property
    def bits(self) -> tuple[bytes, bytes, int]:
        return self.values.tobytes(), self.state.tobytes(), self.position


@dataclass
class Moment:
    """A state of the model, and what leads the tables back to it."""

    rows: dict[int, Row]
    images: list[RowBatch | None]


class RowTableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.budgets = [Budget(1 << 26) for _ in range(2)]
        self.spec = RowSpec(DIM, "float32", OPTIMIZERS[1], INIT)
        both = (NumpyKernels(), kernels())
        self.tables = [
            RowTable("emb", self.spec, budget, each) for budget, each in zip(self.budgets, both, strict=True)
        ]
        self.model: dict[int, Row] = {}
        self.past: list[Moment] = []
        self.position = 5
        self.noted: set[int] | None = None

    # Changes.

    @rule(batch=BATCHES)
    def prepare(self, batch: list[tuple[int, int]]) -> None:
        for table in self.tables:
            table.prepare(_keys(batch))

    @rule(batch=BATCHES, by=STEPS, is_prepared=st.booleans())
    def write(self, batch: list[tuple[int, int]], by: int, is_prepared: bool) -> None:
        self._begin(by)
        if is_prepared:
            self.prepare(batch)
        images = [table.write(_keys(batch), _rows(batch), self.position, images=True) for table in self.tables]
        last = {key: row for (key, _), row in zip(batch, _rows(batch), strict=True)}
        for key in self._older(last):
            self.model[key] = Row(last[key], self._held(key).state, self.position)
        self._end(images)

    @rule(batch=BATCHES, by=STEPS, is_prepared=st.booleans())
    def apply(self, batch: list[tuple[int, int]], by: int, is_prepared: bool) -> None:
        if self.spec.optimizer is None:
            return
        self._begin(by)
        if is_prepared:
            self.prepare(batch)
        images = [table.apply(_keys(batch), _rows(batch), self.position, images=True) for table in self.tables]
        sums: dict[int, NDArray[np.float32]] = {}
        for (key, _), row in zip(batch, _rows(batch), strict=True):
            sums[key] = sums[key] + row if key in sums else row
        for key in self._older(sums):
            held = self._held(key)
            values, state = held.values[None].copy(), held.state[None].copy()
            step(self.spec.optimizer, values, state, sums[key][None])
            self.model[key] = Row(values[0], state[0], self.position)
        self._end(images)

    @rule(batch=BATCHES, by=STEPS, up_to=st.none() | st.integers(0, 40))
    def delete(self, batch: list[tuple[int, int]], by: int, up_to: int | None) -> None:
        self._begin(by)
        images = [table.delete(_keys(batch), self.position, up_to, images=True) for table in self.tables]
        for key in self._older(dict(batch)):
            if up_to is None or self._held(key).position <= up_to:
                self.model.pop(key, None)
        self._end(images)

    @rule(depth=st.integers(1, 5))
    def undo(self, depth: int) -> None:
        for _ in range(min(depth, len(self.past))):
            moment = self.past.pop()
            for table, before in zip(self.tables, moment.images, strict=True):
                assert before is not None
                table.restore(before)
            self._note(self.model, moment.rows)
            self.model = moment.rows

    @rule(
        batch=st.lists(
            st.tuples(KEYS, st.integers(-8, 8), st.integers(0, 40)),
            max_size=8,
            # Of one key and one position there is one row only.
            unique_by=lambda row: (row[0], row[2]),
        )
    )
    def load(self, batch: list[tuple[int, int, int]]) -> None:
        rows = _rows([(key, number) for key, number, _ in batch])
        width = self.spec.state_width
        loaded = RowBatch(
            _keys([(key, number) for key, number, _ in batch]),
            rows,
            np.repeat(rows[:, :1], width, axis=1),
            self.spec.kind,
            np.array([position for _, _, position in batch], np.uint64),
        )
        before = dict(self.model)
        for table in self.tables:
            table.load(loaded)
        for at, (key, _, position) in enumerate(batch):
            if position > self._held(key).position:
                self.model[key] = Row(loaded.values[at], loaded.state[at], position)
        self._note(before, self.model)
        self.past.clear()

    @rule(optimizer=st.sampled_from(OPTIMIZERS))
    def alter(self, optimizer: OptimizerSpec | None) -> None:
        kind, self.spec = self.spec.kind, RowSpec(DIM, "float32", optimizer, INIT)
        for table in self.tables:
            table.alter(self.spec)
        if self.spec.kind != kind:
            fresh = np.full(self.spec.state_width, self.spec.initial_state, np.float32)
            self.model = {key: Row(row.values, fresh, row.position) for key, row in self.model.items()}
            self.past.clear()

    @rule()
    def clear(self) -> None:
        for table in self.tables:
            table.clear()
        self._note(self.model, {})
        self.model, self.past = {}, []
        for budget in self.budgets:
            assert budget.held == 0

    @rule()
    def take_what_changed(self) -> None:
        for table in self.tables:
            changed = set(table.changed().tolist())
            # An undo tells of what it puts back, changed or not.
            assert changed >= (self.noted or set())
        self.noted = set()

    # What readers see.

    @rule(keys=st.lists(KEYS, max_size=12))
    def look_up(self, keys: list[int]) -> None:
        asked = np.array(keys, np.int64)
        for table in self.tables:
            values, found = table.lookup(asked)
            assert found.tolist() == [key in self.model for key in keys]
            assert values.tobytes() == b"".join(self._held(key).values.tobytes() for key in keys)

    @invariant()
    def the_tables_hold_what_the_model_holds(self) -> None:
        for table in self.tables:
            held: dict[int, tuple[bytes, bytes, int]] = {}
            for batch in table.scan(rows=4):
                for at, key in enumerate(batch.keys.tolist()):
                    row = Row(batch.values[at], batch.state[at], int(batch.positions[at]))
                    held[key] = row.bits
            assert held == {key: row.bits for key, row in self.model.items()}
            assert len(table) == len(self.model)
            assert sorted(table.keys().tolist()) == sorted(self.model)

    @invariant()
    def what_is_charged_is_what_is_said(self) -> None:
        for table, budget in zip(self.tables, self.budgets, strict=True):
            assert table.nbytes == budget.held

    # Inside.

    @initialize()
    def start_noting(self) -> None:
        for table in self.tables:
            assert table.changed().tolist() == []
        self.noted = set()

    def _begin(self, by: int) -> None:
        self.position = max(1, self.position + by)
        self.past.append(Moment(dict(self.model), []))

    def _end(self, images: list[RowBatch | None]) -> None:
        self.past[-1].images.extend(images)
        before = self.past[-1].rows
        for each in images:
            assert each is not None
            told = {key: int(position) for key, position in zip(each.keys.tolist(), each.positions, strict=True)}
            assert told == {key: before[key].position if key in before else 0 for key in told}
            assert set(told) == {key for key in {*before, *self.model} if before.get(key) is not self.model.get(key)}
        self._note(before, self.model)

    def _note(self, before: dict[int, Row], after: dict[int, Row]) -> None:
        if self.noted is not None:
            self.noted |= {key for key in {*before, *after} if before.get(key) is not after.get(key)}

    def _held(self, key: int) -> Row:
        """The row under `key`, or what one would begin with."""
        first = NumpyKernels().initial_rows(self.spec, np.array([key], np.int64))[0]
        fresh = np.full(self.spec.state_width, self.spec.initial_state, np.float32)
        return self.model.get(key, Row(first, fresh, 0))

    def _older(self, keys: Iterable[int]) -> list[int]:
        return [key for key in keys if self._held(key).position < self.position]


def _keys(batch: list[tuple[int, int]]) -> NDArray[np.int64]:
    return np.array([key for key, _ in batch], np.int64)


def _rows(batch: list[tuple[int, int]]) -> NDArray[np.float32]:
    """A row for each number, of which no two columns are alike."""
    numbers = np.array([number for _, number in batch], np.float32).reshape(-1, 1)
    return np.divide(numbers, np.array([1, 3, 7], np.float32), dtype=np.float32)


TestRowTable = RowTableMachine.TestCase
TestRowTable.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
