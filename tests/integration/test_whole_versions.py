"""Whole versions under readers and forwards that spin through 2,000 commits: what is read is always one version, never a mixture.

Readers hash again what they read; forwards compare what they gave with what each whole version gives. Both checks are shown to
find the mixture when memory is used again under its readers, or when the swap does not wait for the forward.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import paramstream as ps
from paramstream.consumers.bound import Bound
from paramstream.events.digest import tensor_digest, version_digest
from paramstream.events.kinds import TensorSpec
from paramstream.tiers.arena import Arena
from paramstream.tiers.segment import Segment

COMMITS = 2_000
LAYERS = 25
TENSORS = 2 * LAYERS
WIDTH = 8
READERS = 3
FORWARDS = 2
AHEAD = 20

F32 = npt.NDArray[np.float32]


class Layers(torch.nn.Module):
    """Fifty tensors. The output has a number of each layer, slowly enough that a swap in between would show."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, 1) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: list[torch.Tensor] = []
        for layer in self.layers:
            outputs.append(layer(x))
            time.sleep(0)
        return torch.cat(outputs)


def tensors_of(version: int) -> dict[str, F32]:
    """All values name their version and their tensor; exact in float32."""
    return {
        name: np.full(tuple(tensor.shape), version * TENSORS + index, np.float32)
        for index, (name, tensor) in enumerate(Layers().state_dict().items())
    }


def output_of(version: int) -> tuple[float, ...]:
    """What a forward over ones gives under a whole version."""
    weights = [version * TENSORS + 2 * layer for layer in range(LAYERS)]
    return tuple(float(WIDTH * weight + weight + 1) for weight in weights)


def digest_of(arrays: dict[str, F32]) -> str:
    return version_digest(
        TensorSpec(name, "float32", array.shape, tensor_digest(array.tobytes()), array.nbytes)
        for name, array in arrays.items()
    ).hex()


class Spinners:
    """Threads that look until they are told to stop, and keep what was wrong."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.seen: list[set[int]] = []
        """The versions that each thread saw."""
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def spin(self, look: Callable[[], tuple[int | None, str]]) -> None:
        """`look` gives (the version seen, what is wrong with it)."""
        seen: set[int] = set()
        self.seen.append(seen)

        def run() -> None:
            while not self._stop.is_set() and len(self.wrong) < 10:
                version, problem = look()
                if problem:
                    self.wrong.append(problem)
                elif version is not None:
                    seen.add(version)

        self._threads.append(threading.Thread(target=run, name=f"spinner-{len(self._threads)}"))

    @contextmanager
    def spinning(self) -> Generator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(30.0)
        assert not any(thread.is_alive() for thread in self._threads)


def reader_of(replica: ps.Replica) -> Callable[[], tuple[int | None, str]]:
    last = -1

    def look() -> tuple[int | None, str]:
        nonlocal last
        held = replica.weights()
        arrays: dict[str, F32] = {}
        for name in held:
            arrays[name] = held[name]
            time.sleep(0)
        version, last = held.version, max(last, held.version)
        values = {float(value) for array in arrays.values() for value in array.ravel()}
        if len(arrays) != TENSORS or values != {float(version * TENSORS + index) for index in range(TENSORS)}:
            return None, f"version {version} was read as {sorted(values)}"
        if digest_of(arrays) != held.digest:
            return None, f"version {version} has not the digest that it says"
        if version < last:
            return None, f"version {version} was served after {last}"
        return version, ""

    return look


def forward_of(module: Layers, outputs: dict[tuple[float, ...], int]) -> Callable[[], tuple[int | None, str]]:
    ones = torch.ones(WIDTH)

    def look() -> tuple[int | None, str]:
        with torch.no_grad():
            output = tuple(float(value) for value in module(ones))
        version = outputs.get(output)
        return version, "" if version is not None else f"a forward gave {output}"

    return look


def publish_all(client: ps.Client, replica: ps.Replica, commits: int, spinners: Spinners) -> None:
    """`commits` versions while the spinners look; the replica is kept within AHEAD of them."""
    publisher = client.publisher("model", producer="trainer")
    with spinners.spinning():
        for version in range(1, commits + 1):
            publisher.publish_weights(tensors_of(version), version=version)
            if version > AHEAD:
                replica.wait_version(version - AHEAD, timeout=30.0)
            if spinners.wrong:
                return
        replica.wait_version(commits, timeout=30.0)


@pytest.fixture
def replica(client: ps.Client) -> Iterator[ps.Replica]:
    client.create_topic("model")
    with client.publisher("model", producer="trainer") as publisher:
        publisher.publish_weights(tensors_of(0), version=0).accepted.result()
        with client.replica("model", name="reader", arrays="numpy") as replica:
            yield replica


def spinners_of(replica: ps.Replica, readers: int, forwards: int, commits: int) -> tuple[Spinners, Bound]:
    outputs = {output_of(version): version for version in range(commits + 1)}
    module = Layers()
    bound = replica.bind(module)
    spinners = Spinners()
    for _ in range(readers):
        spinners.spin(reader_of(replica))
    for _ in range(forwards):
        spinners.spin(forward_of(module, outputs))
    return spinners, bound


@pytest.mark.parametrize("commits", [COMMITS // 4, pytest.param(COMMITS, marks=pytest.mark.slow)])
def test_readers_and_forwards_that_spin_through_many_commits_see_whole_versions_only(
    client: ps.Client, replica: ps.Replica, commits: int
) -> None:
    spinners, bound = spinners_of(replica, READERS, FORWARDS, commits)
    publish_all(client, replica, commits, spinners)
    assert not spinners.wrong, spinners.wrong[0]
    assert replica.weights().version == bound.version == commits
    assert replica.weights().digest == bound.digest == client.versions("model")[-1].digest
    assert replica.status().lag_events == 0
    # Each thread did look while versions went by.
    assert min(len(seen) for seen in spinners.seen) >= 20, [len(seen) for seen in spinners.seen]


def test_readers_find_the_mixture_when_memory_is_used_again_under_them(
    client: ps.Client, replica: ps.Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hand_out(arena: Arena, tenancy: Any, make: Callable[[Segment], Any]) -> Any:
        return make(tenancy.segment)  # and nobody counts it as a view

    monkeypatch.setattr(Arena, "hand_out", hand_out)
    spinners, _ = spinners_of(replica, READERS, 0, COMMITS)
    publish_all(client, replica, COMMITS, spinners)
    assert spinners.wrong and spinners.wrong[0].startswith("version ")


def test_forwards_find_the_mixture_when_the_swap_does_not_wait_for_them(
    client: ps.Client, replica: ps.Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unnoticed(bound: Bound, *args: Any) -> None:
        """The forward is not counted as one that runs."""

    monkeypatch.setattr(Bound, "_enter", unnoticed)
    monkeypatch.setattr(Bound, "_leave", unnoticed)
    spinners, _ = spinners_of(replica, 0, FORWARDS, COMMITS)
    publish_all(client, replica, COMMITS, spinners)
    assert spinners.wrong and spinners.wrong[0].startswith("a forward gave")
