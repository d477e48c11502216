"""Trainers and a parameter server in processes of their own, over a local log, of which anything is killed at random moments.

A trainer is `python -m processes.training ENDPOINT NAME`: it says `up`, and then for each step sends its gradients and waits for the
version; once it is back from a death it goes on behind the newest version, and so may send a step a second time. The server is the
one of `processor.py`. Gradients rest on trainer and step alone, so the weights of each version are known.
"""

from __future__ import annotations

import faulthandler
import random
import sys
import time
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

import paramstream as ps
from reference.parameter_server import Model, Tensors, summed

from .child import Child
from .lines import Lines, say
from .local_home import LocalHome
from .patience import patiently
from .world import free_port

GRADS, MODEL, SERVER = "grads", "model", "server"
TRAINERS = ("trainer-0", "trainer-1")
OPTIMIZER = ps.Adam(lr=0.01)
SHAPES = {"large": (300_000,), "small": (3, 5), "scalar": ()}
"""The large one is cut into two events."""
START_S, END_S, STEP_S = 60.0, 90.0, 30.0


def initial() -> Tensors:
    return {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}


def gradients_of(trainer: str, step: int) -> Tensors:
    seed = TRAINERS.index(trainer), step
    return {
        name: np.random.default_rng(seed).random(shape, np.float32) - np.float32(0.4) for name, shape in SHAPES.items()
    }


SERVED = ps.parameter_server(GRADS, MODEL, optimizer=OPTIMIZER, initial=initial, trainers=TRAINERS)


# --- a trainer ----------------------------------------------------------------------------------------------------------------


def train(pub: ps.Publisher, replica: ps.Replica, lines: Lines) -> None:
    """One step after the other, until standard input ends: `EOFError`."""
    while True:
        step = (replica.status().version or 0) + 1
        gradients = gradients_of(pub.producer, step)
        patiently(partial(pub.publish_dense_gradients, gradients, step=step))
        deadline = time.monotonic() + STEP_S
        while time.monotonic() < deadline:
            try:
                replica.wait_version(step, timeout=0.2)
                break
            except ps.ParamstreamTimeout:
                pass
            try:
                pub.flush(0.1)
            except ps.ParamstreamTimeout:
                pass
            except (ps.EventLost, ps.StorageFull):
                break  # It is sent again, as another event.
        while (line := lines.next(0)) is not None:
            assert line == {"ask": "status"}, line
            say(text=f"{pub.producer} at step {step}: {replica.status()}")


def main(endpoint: str, name: str) -> None:
    with ps.connect(endpoint, timeout=START_S) as client:
        pub = patiently(lambda: client.publisher(GRADS, producer=name))
        replica = patiently(lambda: client.replica(MODEL, arrays="numpy"))
        say(up=True)
        try:
            train(pub, replica, Lines(0))
        except EOFError:
            pub.flush(END_S)


# --- all of it ----------------------------------------------------------------------------------------------------------------


class Training:
    """Whatever happens, `close` kills every child by its own pid."""

    def __init__(self, folder: Path, home: LocalHome) -> None:
        self._folder, self._home = folder, home
        self._endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.children: dict[str, Child] = {}
        self._starting: set[str] = set()

    @property
    def victims(self) -> tuple[str, ...]:
        return ("broker", "broker", SERVER, SERVER, *TRAINERS)

    def start(self) -> None:
        self.spawn("broker")
        self.await_all_up()
        with ps.connect(self._endpoint, timeout=START_S) as client:
            for topic in (GRADS, MODEL):
                patiently(partial(client.create_topic, topic, retain_versions=10_000, exist_ok=True))
        for name in (SERVER, *TRAINERS):
            self.spawn(name)

    def spawn(self, name: str) -> None:
        errors = self._folder / f"{name}.stderr"
        if name == "broker":
            self.children[name] = self._home.start_broker(name, self._endpoint, errors)
        elif name == SERVER:
            self.children[name] = Child("processor", self._endpoint, SERVER, self._folder / SERVER, errors=errors)
        else:
            self.children[name] = Child("training", self._endpoint, name, errors=errors)
        self._starting.add(name)

    def kill(self, name: str) -> None:
        child = self.children.pop(name)
        if name == "broker":
            self._home.kill_broker(child, is_up=name not in self._starting)
        else:
            child.kill()
        self._starting.discard(name)

    def await_all_up(self) -> None:
        for name in list(self._starting):
            self.children[name].read(START_S)
            self._starting.discard(name)

    def check(self) -> None:
        """Training goes on from here: at least two more steps. Then each version stands once, with the bits of the reference."""
        with ps.connect(self._endpoint, timeout=START_S) as client:
            versions = patiently(lambda: client.versions(MODEL))
            wanted = (versions[-1].version if versions else 0) + 2
            with patiently(lambda: client.replica(MODEL, arrays="numpy")) as replica:
                self._await(replica, wanted)
                for name in TRAINERS:
                    self.children[name].kill()
                weights = replica.weights()
                last = weights.version
                model = Model(initial(), OPTIMIZER)
                for step in range(1, last + 1):
                    model.apply(summed([(name, gradients_of(name, step)) for name in TRAINERS]))
                for name, value in model.weights.items():
                    assert np.asarray(weights[name]).tobytes() == value.tobytes(), f"{name} of version {last} differs"
            found = [info.version for info in client.versions(MODEL)]
            assert found == list(range(found[-1] + 1)), "each step makes one version"
            print(f"{last} steps")

    def _await(self, replica: ps.Replica, version: int) -> None:
        deadline = time.monotonic() + END_S
        while True:
            try:
                replica.wait_version(version, timeout=1.0)
                return
            except ps.ParamstreamTimeout:
                for child in self.children.values():
                    child.check()
                assert time.monotonic() < deadline, self._statuses()

    def _statuses(self) -> str:
        return "\n".join(self.children[name].ask("status", START_S)["text"] for name in (SERVER, *TRAINERS))

    def close(self) -> None:
        for child in self.children.values():
            child.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def run_training(folder: Path, seed: int, rounds: int, *, power: bool) -> None:
    """Kill something `rounds` times, start it again, and look at what was trained."""
    # Each wait in here is bounded and there are many: the time that one test may take is not for this one.
    faulthandler.cancel_dump_traceback_later()
    chance = random.Random(seed)
    with Training(folder, LocalHome(folder, chance, power=power)) as world:
        world.start()
        for number in range(rounds):
            if chance.random() < 0.7:  # Else the next kill comes while this one is still being mended.
                world.await_all_up()
            time.sleep(chance.uniform(0.0, 0.3))  # The random moment; nothing is waited for here.
            victim = chance.choice(world.victims)
            print(f"seed {seed}, round {number}: {victim}")
            world.kill(victim)
            world.spawn(victim)
        world.await_all_up()
        world.check()


if __name__ == "__main__":
    main(*sys.argv[1:])
