"""Rows that were not written for a time are deleted by events that spare what was written meanwhile, by the time of the stream alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from feeding.rows import delete_rows, table_of, write_rows
from feeding.world import World
from paramstream.consumers.expiring import Expiring
from paramstream.consumers.replica import Replica
from paramstream.errors import StorageFull
from paramstream.events.kinds import Table
from paramstream.tiers.store import TieredStore

SECOND = 10**9
AFTER_S = 100


class Keeper:
    """A keeper's replica over a broker without a network, whose time the test moves."""

    def __init__(self, root: Path) -> None:
        self.world = World(root)
        definition = table_of("users", "sgd")
        self.table = Table(
            "users", definition.dim, definition.dtype, definition.optimizer, expire_after_ns=AFTER_S * SECOND
        )
        self.state = self.world.broker.state
        self.state.write(self.table)
        self.world.broker.durable = {p: writer.position for p, writer in self.world.broker.writers.items()}
        self.store = TieredStore("16MiB")
        self.replica: Replica = self.world.replica(store=self.store)
        self.refused = False
        self.told: list[tuple[list[int], int]] = []
        self.expiring = self.begun()

    def begun(self) -> Expiring:
        return self.replica.expiring(self.world.root, self.delete)

    def delete(self, topic: str, table: str, keys: npt.NDArray[np.int64], up_to: int) -> None:
        if self.refused:
            raise StorageFull("the log is full")
        self.told.append((sorted(keys.tolist()), up_to))
        delete_rows(self.state, self.table, keys.tolist(), up_to)

    def passes(self, seconds: int, steps: int = 50) -> None:
        """So much time of the stream, in which the keeper looks now and then."""
        for _ in range(steps):
            for writer in self.world.broker.writers.values():
                writer.time += seconds * SECOND // steps
            self.world.settle()
            self.expiring.step([self.state.partition], lambda: 0.0)
            self.world.settle()

    def keys(self) -> list[int]:
        return sorted(self.store.row_tables(self.state.partition)["users"].keys().tolist())

    def close(self) -> None:
        self.replica.close()
        self.store.close()


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    made = Keeper(tmp_path)
    yield made
    made.close()


def test_rows_that_are_not_written_go_and_rewritten_ones_stay(keeper: Keeper) -> None:
    write_rows(keeper.state, keeper.table, [1, 2, 3], 1)
    keeper.passes(80)
    write_rows(keeper.state, keeper.table, [2], 2)
    assert keeper.keys() == [1, 2, 3] and not keeper.told
    keeper.passes(30)
    assert keeper.keys() == [2]
    keeper.passes(100)
    assert keeper.keys() == [] and [keys for keys, _ in keeper.told] == [[1, 3], [2]]


def test_a_row_that_is_written_before_the_deletion_is_sequenced_stays(keeper: Keeper) -> None:
    write_rows(keeper.state, keeper.table, [1, 2], 1)
    keeper.passes(90)
    own_delete = keeper.delete

    def delete_late(topic: str, table: str, keys: npt.NDArray[np.int64], up_to: int) -> None:
        write_rows(keeper.state, keeper.table, [2], 5)
        own_delete(topic, table, keys, up_to)

    keeper.delete = delete_late  # type: ignore[method-assign]
    keeper.expiring = keeper.begun()
    keeper.passes(130)
    assert keeper.told[0][0] == [1, 2] and keeper.keys() == [2]


def test_a_clock_that_is_set_forward_at_the_keeper_expires_nothing(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(keeper.state, keeper.table, [1], 1)
    keeper.passes(10)
    import time

    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + 3600 * SECOND)
    monkeypatch.setattr(time, "time", lambda: now / SECOND + 3600)
    keeper.passes(80)
    assert keeper.keys() == [1]
    keeper.passes(40)
    assert keeper.keys() == []


def test_what_a_keeper_knew_of_time_outlives_it_and_what_is_lost_of_it_expires_later(keeper: Keeper) -> None:
    write_rows(keeper.state, keeper.table, [1], 1)
    keeper.passes(60)
    keeper.expiring.close()
    keeper.expiring = keeper.begun()
    keeper.passes(60)
    assert keeper.keys() == []
    write_rows(keeper.state, keeper.table, [2], 1)
    keeper.passes(60)
    keeper.expiring.close()
    (path,) = keeper.world.root.glob("*/times")
    path.write_bytes(path.read_bytes()[:-1])
    keeper.expiring = keeper.begun()
    keeper.passes(60)
    assert keeper.keys() == [2]
    keeper.passes(60)
    assert keeper.keys() == []


def test_a_deletion_that_failed_is_made_by_a_later_look(keeper: Keeper) -> None:
    write_rows(keeper.state, keeper.table, [1], 1)
    keeper.passes(90)
    keeper.refused = True
    with pytest.raises(StorageFull):
        keeper.passes(50)
    assert keeper.keys() == [1]
    keeper.refused = False
    keeper.passes(1, steps=2)
    assert keeper.keys() == []
