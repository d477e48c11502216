"""A replica over a link without a network: what it serves, and when."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from feeding.fakes import FakeBroker
from paramstream.consistency.vector import VersionVector
from paramstream.consumers.replica import Replica
from paramstream.errors import EventLost, VersionNotHeld


def tensors(value: float, count: int = 3) -> dict[str, npt.NDArray[np.float32]]:
    return {f"t{i}": np.full((4, i + 1), value, np.float32) for i in range(count)}


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


def follow(broker: FakeBroker, **options: object) -> Replica:
    options.setdefault("arrays", "numpy")
    return Replica(["model"], directory=broker.directory, make_link=broker.make_link, timeout=2.0, **options)  # type: ignore[arg-type]


@pytest.fixture
def replica(broker: FakeBroker) -> Iterator[Replica]:
    with follow(broker) as replica:
        yield replica


def test_a_whole_version_is_served_by_its_commit(broker: FakeBroker, replica: Replica) -> None:
    with pytest.raises(VersionNotHeld):
        replica.weights()
    broker.weights.version(6, tensors(6.0))
    broker.settle()
    replica.wait_version(6, timeout=1.0)
    served = replica.weights()
    assert (served.version, len(served)) == (6, 3)
    assert all((served[name] == 6.0).all() for name in served)
    with pytest.raises(ValueError):
        served["t0"][...] = 1.0


def test_puts_are_read_after_a_wait(broker: FakeBroker, replica: Replica) -> None:
    broker.state.put(b"k", b"1")
    broker.state.put(b"k", b"2")
    broker.settle()
    replica.wait(VersionVector({("model", 0): broker.state.position}), timeout=1.0)
    assert replica.get("k") == b"2"
    broker.state.delete(b"k")
    broker.settle()
    assert replica.get(b"k") is None


def test_what_is_above_the_end_of_an_epoch_is_taken_back(broker: FakeBroker, replica: Replica) -> None:
    broker.state.put(b"k", b"1")
    kept = broker.state.position
    broker.state.put(b"k", b"2")
    broker.state.put(b"new", b"x")
    lost = broker.state.position
    broker.settle()
    assert replica.get("k") == b"2"
    broker.state.open_epoch(end=kept)
    broker.settle()
    assert (replica.get("k"), replica.get("new")) == (b"1", None)
    with pytest.raises(EventLost):
        replica.wait(VersionVector({("model", 0): lost}), timeout=1.0)


def test_a_lost_commit_brings_back_the_version_before(broker: FakeBroker, replica: Replica) -> None:
    weights = broker.weights
    weights.version(6, tensors(6.0))
    kept = weights.position
    broker.durable[weights.partition] = kept
    broker.settle()
    broker.beat()
    for number in (7, 8, 9):
        weights.version(number, tensors(float(number)))
    broker.settle()
    assert replica.weights().version == 9
    weights.open_epoch(end=kept)
    broker.settle()
    assert replica.weights().version == 6
    weights.version(7, tensors(7.5))
    broker.settle()
    assert (replica.weights()["t0"] == 7.5).all()
