"""Processors count each input once, whatever is killed: the processes that run them, and the broker, at random moments.

pytest tests/integration/test_processor_kills.py                        a few rounds
pytest tests/integration/test_processor_kills.py -m slow                fifty
pytest tests/integration/test_processor_kills.py --rounds 200 --seed 7  as long as you like, with the victims of that seed
"""

from __future__ import annotations

import faulthandler
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pytest

import paramstream as ps
from paramstream.consumers.events import Event
from processes.child import Child
from processes.local_home import LocalHome
from processes.patience import patiently
from processes.processor import EVERY, MODEL, ONE, ONES, SOURCE, SUMS, TABLE, TOTALS, weights_of

PARTITIONS = {SOURCE: 2, SUMS: 1, ONES: 2, TOTALS: 1, MODEL: 1}
PROCESSORS = ("adder", "relay", "collector", "maker")
VICTIMS = ("broker", "broker", *PROCESSORS)
START_S, END_S = 60.0, 90.0


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    given: int = request.config.option.seed
    return given


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int | None:
    given: int | None = request.config.option.rounds
    return given


class Counting:
    """A broker and four processors in processes of their own, and a trainer here that gives gradients of 1."""

    def __init__(self, folder: Path, seed: int, *, power: bool) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.home = LocalHome(folder, self.chance, power=power)
        self.endpoint = f"ipc://{folder / 'broker'}"
        self.children: dict[str, Child] = {}
        self.starting: set[str] = set()
        self.given = 0

    def start(self) -> None:
        self.spawn("broker")
        self.await_up("broker")
        self.client = client = ps.connect(self.endpoint, timeout=START_S)
        for topic, partitions in PARTITIONS.items():
            client.create_topic(topic, partitions, retain_versions=10_000)
            client.create_table(topic, TABLE, dim=1)
        self.trainer = client.publisher(SOURCE, producer="trainer")
        for name in PROCESSORS:
            self.spawn(name)

    def spawn(self, name: str) -> None:
        errors = self.folder / f"{name}.stderr"
        if name == "broker":
            self.children[name] = self.home.start_broker(name, self.endpoint, errors)
        else:
            self.children[name] = Child("processor", self.endpoint, name, self.folder / name, errors=errors)
        self.starting.add(name)

    def kill(self, name: str) -> None:
        child = self.children.pop(name)
        if name == "broker":
            self.home.kill_broker(child, is_up=name not in self.starting)
        else:
            child.kill()
        self.starting.discard(name)

    def await_up(self, name: str) -> None:
        if name in self.starting:
            self.children[name].read(START_S)
            self.starting.discard(name)

    def give(self, count: int) -> None:
        """Gradients of 1, over both partitions, as long as there is room for them."""
        for _ in range(count):
            self.given += 1
            try:
                self.trainer.publish_gradients(TABLE, [self.given], ONE, timeout=0.1)
            except ps.BackpressureTimeout:
                return

    def settle(self) -> None:
        """Every gradient has its outcome. Those that a power failure took are gone."""
        deadline = time.monotonic() + END_S
        while True:
            try:
                self.trainer.flush(max(0.1, deadline - time.monotonic()))
            except ps.ParamstreamTimeout:
                raise
            except (ps.EventLost, ps.StorageFull):
                continue
            return

    def events(self, topic: str) -> list[Event]:
        """All that stands in the topic's log by now."""
        with patiently(lambda: self.client.publisher(topic, producer="marker")) as marker:
            left = dict(marker.put_many({f"marker/{n}": b"" for n in range(64)}).positions)
        assert len(left) == PARTITIONS[topic]
        found: list[Event] = []
        with patiently(lambda: self.client.subscribe(topic, start="earliest")) as events:
            while left:
                event = events.next(END_S)
                found.append(event)
                if event.position >= left.get((topic, event.partition), event.position + 1):
                    del left[topic, event.partition]
        return [event for event in found if event.producer != "marker"]

    def totals(self, topic: str) -> dict[int, int]:
        """The sums that stand in an adder's topic, by partition of its source."""
        with patiently(lambda: self.client.replica(topic, arrays="numpy")) as replica:
            return {n: int(replica.get(f"sum/{n}") or b"0") for n in range(2)}

    def await_count(self, look: Callable[[], dict[int, int]], expected: dict[int, int], what: str) -> None:
        deadline = time.monotonic() + END_S
        while (found := look()) != expected:
            for name in PROCESSORS:
                self.children[name].check()
            too_many = [n for n in expected if found[n] > expected[n]]
            assert not too_many, f"{what} counted inputs twice: {found}, and {expected} were given"
            assert time.monotonic() < deadline, f"{what} does not come to {expected}: {found}; {self.statuses()}"
            time.sleep(0.05)

    def statuses(self) -> str:
        return "\n".join(self.children[name].ask("status", START_S)["text"] for name in PROCESSORS)

    def close(self) -> None:
        for child in self.children.values():
            child.kill()
        if hasattr(self, "client"):
            self.client.close(timeout=5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def run_kills(world: Counting, rounds: int) -> None:
    faulthandler.cancel_dump_traceback_later()
    world.start()
    for round_number in range(rounds):
        world.give(world.chance.randrange(100))
        if world.chance.random() < 0.7:  # Else the next kill comes while this one is still being mended.
            for name in list(world.starting):
                world.await_up(name)
        time.sleep(world.chance.uniform(0.0, 0.3))  # The random moment; nothing is waited for here.
        victim = world.chance.choice(VICTIMS)
        print(f"round {round_number}: {victim} is killed")
        world.kill(victim)
        world.give(world.chance.randrange(50))
        world.spawn(victim)
    for name in list(world.starting):
        world.await_up(name)
    world.give(50)
    world.settle()
    check_counts(world)


def check_counts(world: Counting) -> None:
    inputs = [event for event in world.events(SOURCE) if event.kind == "gradients"]
    by_partition = Counter(event.partition for event in inputs)
    print(f"{len(inputs)} of {world.given} gradients stand")
    world.await_count(lambda: world.totals(SUMS), {n: by_partition[n] for n in range(2)}, "the adder")

    # The relay gives key 1, 2, 3, … of each partition of its source, and each goes to a partition of its own.
    def ones() -> dict[int, int]:
        given = [event for event in world.events(ONES) if event.kind == "gradients"]
        return dict(Counter(int(event.producer.split("/")[1]) for event in given))

    world.await_count(ones, dict(by_partition), "the relay")
    relayed = [event for event in world.events(ONES) if event.keys is not None]
    keys = Counter((event.producer, int(event.keys[0])) for event in relayed if event.keys is not None)
    assert keys == {(f"relay/{n}", key): 1 for n in range(2) for key in range(1, by_partition[n] + 1)}
    by_ones = Counter(event.partition for event in relayed)
    world.await_count(lambda: world.totals(TOTALS), {n: by_ones[n] for n in range(2)}, "the collector")
    check_versions(world, by_partition)


def check_versions(world: Counting, by_partition: Counter[int]) -> None:
    """Each version once, and the last one with its bits."""
    last = by_partition[0] // EVERY * EVERY
    expected = list(range(EVERY, last + 1, EVERY))
    deadline = time.monotonic() + END_S
    while (found := [info.version for info in world.client.versions(MODEL)]) != expected:
        assert time.monotonic() < deadline, f"{found} were made, not {expected}; {world.statuses()}"
        time.sleep(0.05)
    with world.client.replica(MODEL, arrays="numpy") as replica:
        weights = replica.weights()
        for name, values in weights_of(last).items():
            assert np.array_equal(np.asarray(weights[name]), values)


DEATHS = pytest.mark.parametrize("power", [pytest.param(False, id="kills"), pytest.param(True, id="power failures")])


@DEATHS
def test_each_input_counts_once_after_a_few_kills(tmp_path: Path, seed: int, rounds: int | None, power: bool) -> None:
    with Counting(tmp_path, seed, power=power) as world:
        run_kills(world, 4 if rounds is None else rounds)


@pytest.mark.slow
@DEATHS
def test_each_input_counts_once_after_fifty_kills(tmp_path: Path, seed: int, rounds: int | None, power: bool) -> None:
    with Counting(tmp_path, seed, power=power) as world:
        run_kills(world, 50 if rounds is None else rounds)
