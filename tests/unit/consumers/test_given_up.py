"""Versions that only a loss could bring back go when memory is short; should it bring one back, what is served says that it is old."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from feeding.fakes import FakeBroker
from paramstream.consumers.replica import Replica
from paramstream.consumers.status import Served
from paramstream.tiers.store import TieredStore


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def replica(broker: FakeBroker) -> Iterator[Replica]:
    """It has room for four versions."""
    link = {"directory": broker.directory, "make_link": broker.make_link}
    with (
        TieredStore(dram="4MiB") as store,
        Replica(["model"], store=store, arrays="numpy", keep_versions=1, **link) as replica,  # type: ignore[arg-type]
    ):
        yield replica


def write(broker: FakeBroker, number: int) -> int:
    """A version of one MiB; the position of its commit."""
    broker.weights.version(number, {"t": np.full(1 << 18, float(number), np.float32)}, chunk_bytes=100_000)
    broker.settle()
    return broker.weights.position


def settle(broker: FakeBroker, durable: int) -> None:
    broker.durable[broker.weights.partition] = durable
    broker.beat()


def lose_above(broker: FakeBroker, end: int) -> None:
    broker.weights.open_epoch(end=end)
    broker.settle()


def served(replica: Replica) -> tuple[int, bool]:
    model: Served = replica.status().served["model"]
    return model.version, model.stale


def test_what_a_loss_brings_back_and_was_given_up_is_missed_until_the_next_commit(
    broker: FakeBroker, replica: Replica
) -> None:
    settle(broker, write(broker, 6))
    ends = [write(broker, number) for number in (7, 8, 9, 10)]
    assert served(replica) == (10, False)
    lose_above(broker, ends[1])
    assert served(replica) == (6, True)
    write(broker, 9)
    assert served(replica) == (9, False)


def test_what_is_served_is_right_again_where_a_second_loss_takes_the_given_up_version_too(
    broker: FakeBroker, replica: Replica
) -> None:
    durable = write(broker, 6)
    settle(broker, durable)
    ends = [write(broker, number) for number in (7, 8, 9, 10)]
    lose_above(broker, ends[1])
    assert served(replica) == (6, True)
    lose_above(broker, durable)
    assert served(replica) == (6, False)
