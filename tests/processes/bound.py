"""Bound modules that are run all the time: `python -m processes.bound ENDPOINT TOPIC COUNT NAME`.

It binds one module to each of COUNT replicas, switched by hand, says `up`, and forwards through each in a thread of its own.
Every element of a version is the version's number, so that a forward sees whether its weights are of one version.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping

import numpy as np
import torch

import paramstream as ps
from paramstream.consumers.bound import Bound

from .lines import Line, Lines, say

LAYERS = 8
WIDTH = 256
KEPT = 4


class Tower(torch.nn.Module):
    """Its output is one value of each layer, read slowly enough that a swap in between would show."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(WIDTH)) for _ in range(LAYERS))

    def forward(self) -> list[float]:
        seen: list[float] = []
        for layer in self.layers:
            values = layer.detach()
            seen += [float(values[0]), float(values[-1])]
            time.sleep(0)
        return seen


def tower_of(version: int) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float32]]]:
    return {f"layers.{n}": np.full(WIDTH, version, np.float32) for n in range(LAYERS)}


class Spinning:
    """One module's forwards, until it is told to stop."""

    def __init__(self, replica: ps.Replica) -> None:
        self.module = Tower()
        self.bound: Bound = replica.bind(self.module, follow=False)
        self.forwards = 0
        self.torn: list[list[float]] = []
        self.seen = set[float]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spinning")
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(30.0)

    def _run(self) -> None:
        while not self._over.is_set():
            seen = self.module()
            self.forwards += 1
            if len(set(seen)) > 1:
                self.torn.append(seen)
            self.seen.add(seen[0])
            time.sleep(0.001)


def answer(spinning: list[Spinning], request: Mapping[str, int]) -> Line:
    """`switch` to a version, where one is asked for; then what was seen since the last question."""
    version = request.get("version")
    if version is not None:
        for each in spinning:
            each.bound.switch(version, timeout=20.0)
    seen = [sorted(each.seen) for each in spinning]
    for each in spinning:
        each.seen = set()
    return {
        "versions": [each.bound.version for each in spinning],
        "seen": seen,
        "torn": sum(len(each.torn) for each in spinning),
        "forwards": [each.forwards for each in spinning],
    }


def main(endpoint: str, topic: str, count: int, name: str) -> None:
    torch.set_num_threads(1)
    client = ps.connect(endpoint, timeout=30)
    replicas = [client.replica(topic, name=f"{name}-{n}", keep_versions=KEPT) for n in range(count)]
    spinning = [Spinning(replica) for replica in replicas]
    say(up=True)
    lines = Lines(0)
    try:
        while True:
            request = lines.next(60.0)
            if request is not None:
                say(**answer(spinning, request))
    except EOFError:
        pass
    finally:
        for each in spinning:
            each.close()
        client.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
