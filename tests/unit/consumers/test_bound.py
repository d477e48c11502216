"""A bound module: swapped in place, between forwards and never inside one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pytest
import torch

from feeding.fakes import FakeBroker
from paramstream.consumers.replica import Replica
from paramstream.errors import SchemaMismatch

LAYERS = 6


class Chain(torch.nn.Module):
    """Adds up one value of each layer, slowly enough that a swap in between would show."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(LAYERS))
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor) -> list[float]:
        seen: list[float] = []
        for layer in self.layers:
            assert isinstance(layer, torch.nn.Linear)
            seen += [layer.weight.detach().item(), layer.bias.detach().item()]
            time.sleep(0)
        return [*seen, self.get_buffer("scale").item()]


def filled(value: float) -> dict[str, npt.NDArray[np.float32]]:
    return {name: np.full(tuple(t.shape), value, np.float32) for name, t in Chain().state_dict().items()}


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def replica(broker: FakeBroker) -> Iterator[Replica]:
    with Replica(["model"], directory=broker.directory, make_link=broker.make_link, timeout=2.0) as replica:
        yield replica


def publish(broker: FakeBroker, number: int, arrays: Mapping[str, npt.NDArray[np.float32]]) -> None:
    broker.weights.version(number, arrays)
    broker.settle()


def test_a_version_served_is_in_the_module_when_bind_returns(broker: FakeBroker, replica: Replica) -> None:
    publish(broker, 3, filled(3.0))
    module = Chain()
    addresses = [tensor.data_ptr() for tensor in module.state_dict().values()]
    bound = replica.bind(module)
    assert bound.version == 3
    assert set(module(torch.ones(1))) == {3.0}
    publish(broker, 4, filled(4.0))
    assert bound.version == 4 and set(module(torch.ones(1))) == {4.0}
    assert [tensor.data_ptr() for tensor in module.state_dict().values()] == addresses


def test_forwards_that_spin_through_500_swaps_are_never_torn(broker: FakeBroker, replica: Replica) -> None:
    publish(broker, 0, filled(0.0))
    module = Chain()
    bound = replica.bind(module)
    done = threading.Event()
    torn: list[list[float]] = []
    counts = [0, 0, 0]

    def spin(index: int) -> None:
        while not done.is_set():
            seen = module(torch.ones(1))
            counts[index] += 1
            if len(set(seen)) != 1:
                torn.append(seen)

    threads = [threading.Thread(target=spin, args=(index,)) for index in range(len(counts))]
    for thread in threads:
        thread.start()
    versions: set[int | None] = set()
    try:
        for number in range(1, 501):
            publish(broker, number, filled(float(number)))
            versions.add(bound.version)
    finally:
        done.set()
        for thread in threads:
            thread.join(10.0)
    assert not torn and all(counts)
    assert set(module(torch.ones(1))) == {500.0} and bound.version == 500
    # Spinning forwards do not put the swap off for ever.
    assert len(versions) > 50


def test_a_swap_waits_for_the_forward_that_runs_and_the_apply_thread_does_not(
    broker: FakeBroker, replica: Replica
) -> None:
    publish(broker, 1, filled(1.0))
    entered, leave = threading.Event(), threading.Event()

    class Slow(Chain):
        def forward(self, x: torch.Tensor) -> list[float]:
            entered.set()
            assert leave.wait(10.0)
            return super().forward(x)

    module = Slow()
    bound = replica.bind(module)
    seen: list[list[float]] = []
    thread = threading.Thread(target=lambda: seen.append(module(torch.ones(1))))
    thread.start()
    try:
        assert entered.wait(10.0)
        publish(broker, 2, filled(2.0))
        assert replica.weights().version == 2 and bound.version == 1
    finally:
        leave.set()
        thread.join(10.0)
    assert set(seen[0]) == {1.0}
    assert bound.version == 2


def test_a_forward_that_raises_leaves_the_module_free_to_swap(broker: FakeBroker, replica: Replica) -> None:
    publish(broker, 1, filled(1.0))
    module = Chain()
    bound = replica.bind(module)
    with pytest.raises(TypeError):
        module()
    publish(broker, 2, filled(2.0))
    assert bound.version == 2


def test_what_does_not_match_is_listed(broker: FakeBroker, replica: Replica) -> None:
    arrays = filled(1.0)
    del arrays["scale"]
    arrays["extra"] = np.zeros(1, np.float32)
    arrays["layers.0.bias"] = np.zeros(2, np.float32)
    publish(broker, 1, arrays)
    with pytest.raises(SchemaMismatch) as caught:
        replica.bind(Chain())
    text = str(caught.value)
    assert "scale" in text and "extra" in text and "layers.0.bias: (1,) here, (2,) there" in text
    module = Chain()
    assert replica.bind(module, strict=False).version == 1
    assert float(module.state_dict()["layers.1.bias"]) == 1.0


def test_a_first_version_that_does_not_match_fails_the_forward_and_shows_in_the_status(
    broker: FakeBroker, replica: Replica
) -> None:
    module = Chain()
    bound = replica.bind(module)
    publish(broker, 1, {"other": np.zeros(1, np.float32)})
    assert bound.version is None
    with pytest.raises(SchemaMismatch):
        module(torch.ones(1))
    assert "other" in replica.status().last_error
