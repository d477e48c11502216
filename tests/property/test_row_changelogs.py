"""Changelogs of rows under writers that come, go and fall behind, while rows learn, tables change their optimizers, and rows go."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Any, cast

import numpy as np
import pytest

from fakes.changelogs import FakeChangelogs, Stored
from paramstream.consistency.vector import EMPTY, VersionVector
from paramstream.consumers.changelog.core import ChangelogCore
from paramstream.consumers.changelog.seeding import seed_of
from paramstream.consumers.changelog.writing import WriteBack
from paramstream.consumers.rows import Tables
from paramstream.errors import CorruptLog
from paramstream.events.kinds import Initializer, Optimizer, Table
from paramstream.tiers.entries import Entry
from paramstream.tiers.store import TieredStore
from paramstream.transport.calls import TopicRecord

RECORD = TopicRecord("model", 7, 1, "write_back", 8)
PARTITION = (7, 0)
DIM = 3
OPTIMIZERS = {
    "sgd": {"lr": 0.5},
    "adagrad": {"lr": 0.5, "eps": 1e-8, "initial_accumulator_value": 0.1},
    "adam": {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8},
}
NAMES = ("users", "ads")

Op = Table | tuple[str, Any, Any]
"""A definition; ("put", key, value or None); ("write" or "apply", table, keys) with rows made from its place; ("delete", table, keys)."""


def table_of(name: str, kind: str) -> Table:
    return Table(name, DIM, "float32", Optimizer(kind, OPTIMIZERS[kind]), Initializer("constant", {"value": 1.0}))


@dataclass
class State:
    """A replica's state as of a position; a log of operations, one a position, is applied to it."""

    log: list[Op]
    store: TieredStore = field(default_factory=lambda: TieredStore("1GiB"))
    position: int = 0

    def __post_init__(self) -> None:
        self.tables = Tables(self.store)

    def apply(self, until: int) -> None:
        for at in range(self.position + 1, min(until, len(self.log)) + 1):
            self._apply(self.log[at - 1], at)
            self.position = at

    def _apply(self, op: Op, at: int) -> None:
        if isinstance(op, Table):
            self.tables.define(PARTITION, op, at)
            return
        what, target, argument = op
        if what == "put":
            entries = self.store.entries(PARTITION)
            if argument is None:
                entries.delete(target, at)
            else:
                entries.put(target, Entry(argument, at))
            return
        table, keys = self.store.row_tables(PARTITION)[target], np.array(argument, np.int64)
        values = np.full((len(keys), DIM), at, np.float32)
        match what:
            case "write":
                table.write(keys, values, at, images=False)
            case "apply":
                table.apply(keys, values, at, images=False)
            case _:
                table.delete(keys, at, up_to=at - 3 if at % 2 else None)

    def shown(self) -> tuple[object, ...]:
        entries = [(key, entry.value) for key, entry in self.store.entries(PARTITION).items()]
        return entries, dict(self.tables.of(PARTITION)), {name: self._rows(name) for name in self.tables.of(PARTITION)}

    def _rows(self, name: str) -> list[tuple[bytes, ...]]:
        (batch, *_) = [*self.store.row_tables(PARTITION)[name].scan(), None]
        if batch is None:
            return []
        order = np.argsort(batch.keys)
        columns = (batch.keys, batch.values, batch.state, batch.positions)
        return [tuple(column[at].tobytes() for column in columns) for at in order]


class Moving:
    """A replica whose state moves on whenever its lock is taken, as far as its log goes."""

    durable_only = True

    def __init__(self, log: list[Op], random: Random, changelogs: FakeChangelogs) -> None:
        self.state = State(log)
        self.random = random
        self.changed = self
        this = cast(Any, self)
        self.writing = WriteBack(
            this, this, this, self.state.store, RECORD, [0], changelogs, batch_keys=random.randint(1, 6)
        )

    def __enter__(self) -> None:
        self.state.apply(self.state.position + self.random.choice([0, 0, 1, 3]))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held."""

    def partitions(self) -> list[tuple[int, int]]:
        return [PARTITION]

    def position(self, partition: tuple[int, int]) -> int:
        return self.state.position

    def vector(self) -> VersionVector[int]:
        return EMPTY

    def tables(self, partition: tuple[int, int]) -> Any:
        return self.state.tables.of(partition)

    def close(self) -> None:
        for writer in self.writing._writers:  # pyright: ignore[reportPrivateUsage]
            writer.close()


def next_op(random: Random, log: list[Op]) -> Op:
    known = {op.table for op in log if isinstance(op, Table)}
    name = random.choice(NAMES)
    if name not in known or random.random() < 0.06:
        return table_of(name, random.choice(list(OPTIMIZERS)))
    what = random.choice(["put", "write", "apply", "apply", "apply", "delete"])
    if what == "put":
        return "put", b"k%d" % random.randrange(4), random.choice([None, b"%d" % len(log)])
    return what, name, [random.choice([-1, 2**63 - 1, *range(8)]) for _ in range(random.randint(1, 4))]


def check_restores(changelogs: FakeChangelogs, log: list[Op]) -> None:
    """Restored from the changelog and the log behind its floor, at every position from its ceiling on."""
    for state in seed_of(changelogs, RECORD, [0]).state:
        restored, reference = State(log, position=state.floor), State(log)
        for key, entry in state.entries():
            restored.store.entries(PARTITION).put(key, entry)
        restored.tables.begin_with(PARTITION, state.tables, state.rows())
        for position in range(state.ceiling, len(log) + 1):
            restored.apply(position)
            reference.apply(position)
            assert restored.shown() == reference.shown(), position


def play(seed: int, steps: int = 60) -> None:
    random = Random(seed)
    log: list[Op] = []
    changelogs = FakeChangelogs(lambda: random.choice([None, None, None, None, True, False]))
    stored = changelogs.stored.setdefault(PARTITION, Stored())
    replicas = [Moving(log, random, changelogs) for _ in range(2)]
    for _ in range(steps):
        log += [next_op(random, log) for _ in range(random.randrange(5))]
        at = random.randrange(len(replicas))
        match random.randrange(6):
            case 0:
                replicas[at].close()
                replicas[at] = Moving(log, random, changelogs)
            case 1:
                stored.compact(tombstones=random.random() < 0.5)
            case _:
                replicas[at].writing.turn()
        if random.random() < 0.3:
            check_restores(changelogs, log)
    check_restores(changelogs, log)


@pytest.mark.parametrize("seed", range(6))
def test_rows_from_changelogs_are_those_of_the_log(seed: int) -> None:
    play(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_rows_from_many_changelogs_are_those_of_the_log(seed: int) -> None:
    play(seed, 120)


def test_rows_of_two_kinds_in_one_flush_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_any_kind(*_: object) -> bool:
        return True

    monkeypatch.setattr(ChangelogCore, "is_of", of_any_kind)
    with pytest.raises((AssertionError, CorruptLog)):
        # Of these worlds, one is enough.
        for seed in (33, 4, 9, 38):
            play(seed)
