"""Four processors in processes of their own, over any log: each input must count once, whatever is killed.

A trainer in this process gives gradients of 1. What each processor does stands in `processor.py`.
"""

from __future__ import annotations

import faulthandler
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

import paramstream as ps
from paramstream.consumers.events import Event

from .child import Child
from .family import Family
from .patience import patiently
from .processor import EVERY, MODEL, ONE, ONES, SOURCE, SUMS, TABLE, TOTALS, weights_of
from .world import Home, free_port

PARTITIONS = {SOURCE: 2, SUMS: 1, ONES: 2, TOTALS: 1, MODEL: 1}
PROCESSORS = ("adder", "relay", "collector", "maker")
START_S, END_S = 60.0, 90.0

MakeHome = Callable[[Path, random.Random], Home]
Counts = dict[int, int]
"""By partition."""


class Counting(Family):
    """All of it."""

    def __init__(self, folder: Path, home: Home, chance: random.Random) -> None:
        super().__init__(START_S)
        self.folder = folder
        self.home = home
        self.chance = chance
        self.endpoints = {name: f"tcp://127.0.0.1:{free_port()}" for name in home.brokers}
        self.given = 0

    @property
    def victims(self) -> tuple[str, ...]:
        """What may be killed; brokers and the log itself twice as likely."""
        return (*self.home.brokers, *self.home.others) * 2 + PROCESSORS

    # --- life and death ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        for name in self.home.brokers:
            self.spawn(name)
        self.await_all_up()
        self.client = client = ps.connect(list(self.endpoints.values()), timeout=START_S)
        for topic in PARTITIONS:
            self._create(client, topic)
        self.trainer = patiently(lambda: client.publisher(SOURCE, producer="trainer"))
        for name in PROCESSORS:
            self.spawn(name)

    def _create(self, client: ps.Client, topic: str) -> None:
        """While brokers find each other, any call may go without an answer."""
        patiently(lambda: client.create_topic(topic, PARTITIONS[topic], retain_versions=10_000, exist_ok=True))
        patiently(lambda: client.create_table(topic, TABLE, dim=1, optimizer=ps.SGD(1.0), exist_ok=True))

    def spawn(self, name: str) -> None:
        errors = self.folder / f"{name}.stderr"
        if name in self.home.brokers:
            self.children[name] = self.home.start_broker(name, self.endpoints[name], errors)
        else:
            endpoints = ",".join(self.endpoints.values())
            self.children[name] = Child("processor", endpoints, name, self.folder / name, errors=errors)
        self.starting.add(name)

    def kill(self, name: str) -> None:
        """SIGKILL; of what is none of our children, what its home does to it."""
        if name in self.home.others:
            self.home.harm(name)
            return
        child = self.children.pop(name)
        if name in self.home.brokers:
            self.home.kill_broker(child, is_up=name not in self.starting)
        else:
            child.kill()
        self.starting.discard(name)

    # --- what goes in -----------------------------------------------------------------------------------------------------

    def give(self, count: int) -> None:
        """Gradients of 1, over both partitions, as long as there is room for them."""
        for _ in range(count):
            self.given += 1
            try:
                self.trainer.publish_gradients(TABLE, [self.given], ONE, timeout=0.1)
            except ps.BackpressureTimeout:
                return

    def settle(self) -> None:
        """Every gradient has its outcome; one that was lost, or had no room, does not count."""
        deadline = time.monotonic() + END_S
        while True:
            try:
                self.trainer.flush(max(0.1, deadline - time.monotonic()))
            except (ps.EventLost, ps.StorageFull):
                continue
            return

    # --- what comes out ---------------------------------------------------------------------------------------------------

    @property
    def running(self) -> ps.Client:
        assert self.client is not None
        return self.client

    def gradients(self, topic: str) -> list[Event]:
        """All of them that stand in the topic's log by now."""
        with patiently(lambda: self.running.publisher(topic, producer="marker")) as marker:
            left = dict(marker.put_many({f"marker/{n}": b"" for n in range(64)}).positions)
        assert len(left) == PARTITIONS[topic]
        found: list[Event] = []
        with patiently(lambda: self.running.subscribe(topic, start="earliest")) as events:
            while left:
                event = events.next(END_S)
                found.append(event)
                if event.position >= left.get((topic, event.partition), event.position + 1):
                    del left[topic, event.partition]
        return [event for event in found if event.kind == "gradients"]

    def sums(self, topic: str) -> Counts:
        """What stands in the topic of an adder, by partition of its source."""
        with patiently(lambda: self.running.replica(topic, arrays="numpy")) as replica:
            return {n: int(replica.get(f"sum/{n}") or b"0") for n in range(2)}

    def relayed(self) -> Counts:
        """How many ones the relay gave, by partition of its source."""
        by_task = Counter(event.producer for event in self.gradients(ONES))
        return {n: by_task[f"relay/{n}"] for n in range(2)}

    def await_counts(self, look: Callable[[], Counts], expected: Counts, who: str) -> None:
        deadline = time.monotonic() + END_S
        while (found := look()) != expected:
            for name in PROCESSORS:
                self.children[name].check()
            assert all(found[n] <= expected[n] for n in expected), f"{who} counts twice: {found}, not {expected}"
            assert time.monotonic() < deadline, f"{who} stays at {found}, not {expected}; {self.statuses()}"
            time.sleep(0.05)

    def statuses(self) -> str:
        return "\n".join(self.children[name].ask("status", START_S)["text"] for name in PROCESSORS)


def run_counting(folder: Path, make_home: MakeHome, seed: int, rounds: int) -> None:
    """Kill something `rounds` times, start it again, and count at the end."""
    # Each wait in here is bounded and there are many: the time that one test may take is not for this one.
    faulthandler.cancel_dump_traceback_later()
    chance = random.Random(seed)
    with Counting(folder, make_home(folder, chance), chance) as world:
        world.start()
        for number in range(rounds):
            world.give(chance.randrange(100))
            if chance.random() < 0.7:  # Else the next kill comes while this one is still being mended.
                world.await_all_up()
            time.sleep(chance.uniform(0.0, 0.3))  # The random moment; nothing is waited for here.
            victim = chance.choice(world.victims)
            print(f"seed {seed}, round {number}: {victim}")
            world.kill(victim)
            world.give(chance.randrange(50))
            if victim not in world.home.others:
                world.spawn(victim)
        world.await_all_up()
        world.give(50)
        world.settle()
        check_counts(world)


def check_counts(world: Counting) -> None:
    by_partition = Counter(event.partition for event in world.gradients(SOURCE))
    inputs = {n: by_partition[n] for n in range(2)}
    print(f"{by_partition.total()} of {world.given} gradients stand")
    world.await_counts(lambda: world.sums(SUMS), inputs, "the adder")
    world.await_counts(world.relayed, inputs, "the relay")
    ones = world.gradients(ONES)
    # Of each partition of its source the relay gives the keys 1, 2, 3, …, and they go to both partitions of its sink.
    keys = Counter((event.producer, int(event.keys[0])) for event in ones if event.keys is not None)
    assert keys == {(f"relay/{n}", key): 1 for n in range(2) for key in range(1, inputs[n] + 1)}
    by_partition = Counter(event.partition for event in ones)
    world.await_counts(lambda: world.sums(TOTALS), {n: by_partition[n] for n in range(2)}, "the collector")
    check_versions(world, inputs[0] // EVERY * EVERY)


def check_versions(world: Counting, last: int) -> None:
    """Each version once, and the last one with its bits."""
    expected = list(range(EVERY, last + 1, EVERY))
    deadline = time.monotonic() + END_S
    while (found := [info.version for info in world.running.versions(MODEL)]) != expected:
        assert time.monotonic() < deadline, f"{found} were made, not {expected}; {world.statuses()}"
        time.sleep(0.05)
    with patiently(lambda: world.running.replica(MODEL, arrays="numpy")) as replica:
        weights = replica.weights()
        assert weights.version == last
        for name, values in weights_of(last).items():
            assert np.asarray(weights[name]).tobytes() == values.tobytes()
