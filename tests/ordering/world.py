"""A world of writers that rest on what they read, and of followers with delivery logs that can be checked.

Five producers observe replicas, four state partitions, delays of each partition by itself. Each replica follows some of the
partitions in PRAM or causal order.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

import paramstream as ps
from paramstream.consistency.delivery import check_deliveries
from paramstream.consistency.gate import Ordering
from paramstream.consistency.stamp import Delivery, Stamp
from paramstream.consumers.effects import Deliver, EpochBegan, Step
from paramstream.consumers.replica import Replica
from paramstream.events.digest import partition_of
from paramstream.events.kinds import Commit, Put
from paramstream.events.validate import put_values
from paramstream.transport.directory import Directory
from paramstream.transport.link import Link
from paramstream.transport.messages import FORMAT, Hello

from .delays import delaying_links
from .truth import Line, Reads, Truth, Write, decode_value, encode_value, violations

TOPIC = "model"
PARTITIONS = 4
PRODUCERS = [f"producer-{number}" for number in range(5)]
WEIGHTS_WRITER = PRODUCERS[0]
"""Versions go up, so one producer publishes them."""
FOLLOWED: list[tuple[Ordering, list[int]]] = [
    (Ordering.CAUSAL, [0, 1, 2, 3]),
    (Ordering.CAUSAL, [0, 2]),
    (Ordering.CAUSAL, [1, 3]),
    (Ordering.PRAM, [0, 1, 2, 3]),
    (Ordering.PRAM, [1, 2]),
    (Ordering.PRAM, [3]),
]
CALLS = 80


def key_of(writer: str, partition: int) -> bytes:
    """A key that only `writer` writes, in `partition`."""
    numbered = (f"{writer}/{number}".encode() for number in range(1_000))
    return next(key for key in numbered if partition_of(key, PARTITIONS) == partition)


@dataclass
class Follower:
    """A replica and its delivery log."""

    ordering: Ordering
    partitions: list[int]
    log: list[Deliver | EpochBegan] = field(default_factory=list[Deliver | EpochBegan])
    replica: Replica = field(init=False)

    def record(self, step: Step) -> None:
        assert isinstance(step, Deliver | EpochBegan)  # nothing is lost here, or passed over
        self.log.append(step)

    def read(self) -> Reads:
        """Everything that its user can see now."""
        seen: Reads = {}
        for writer in PRODUCERS:
            for partition in self.partitions:
                value = self.replica.get(key_of(writer, partition))
                if value is not None:
                    seen[writer, partition] = decode_value(value)[1]
        try:
            seen[WEIGHTS_WRITER, PARTITIONS] = self.replica.weights().version
        except ps.VersionNotHeld:
            pass
        return seen

    def writes(self) -> Iterator[Write]:
        for step in self.log:
            if isinstance(step, EpochBegan):
                continue
            number, payload = step.partition[1], step.frame.payload
            if isinstance(payload, Commit):
                yield Write(WEIGHTS_WRITER, payload.version, number)
            elif isinstance(payload, Put):
                # Puts that shared an event are applied in their order.
                for _, value in put_values(payload, step.frame.bulk):
                    yield Write(*decode_value(bytes(value)), number)

    def stamp_violations(self) -> int:
        follows = {step.partition for step in self.log}
        assert {number for _, number in follows} == {*self.partitions, PARTITIONS}
        return len(check_deliveries(map(_line, self.log), self.ordering, follows))

    def true_violations(self, truth: Truth) -> list[str]:
        follows = [*self.partitions, PARTITIONS]
        return violations(truth, self.writes(), follows, causal=self.ordering is Ordering.CAUSAL)


def _line(step: Deliver | EpochBegan) -> Delivery:
    return Delivery(
        step.partition, step.stamp if isinstance(step, Deliver) else Stamp("", 0, 0, position=step.position)
    )


class Producing(threading.Thread):
    """Reads all that its follower shows, writes what rests on that, and again."""

    def __init__(self, name: str, endpoint: str, follower: Follower, truth: Truth, seed: int) -> None:
        super().__init__(name=f"writer-{name}")
        self.producer, self.endpoint, self.follower, self.truth = name, endpoint, follower, truth
        self.random = random.Random(seed)
        self.accepted = ps.VersionVector[str]()
        self.receipts: list[ps.Receipt] = []

    def run(self) -> None:
        with ps.connect(self.endpoint) as client:
            publisher = client.publisher(TOPIC, producer=self.producer, observes=self.follower.replica)
            for _ in range(CALLS):
                self._call(publisher)
            for receipt in self.receipts:
                self.accepted = self.accepted.merge(receipt.accepted.result(30.0))

    def _call(self, publisher: ps.Publisher) -> None:
        reads: dict[Line, int] = self.follower.read()
        chance = self.random.random()
        if self.producer == WEIGHTS_WRITER and chance < 0.1:
            number = self.truth.called(self.producer, [PARTITIONS], reads)
            weights = {"w": np.full(4, number, np.float32)}
            self.receipts.append(publisher.publish_weights(weights, version=number))
            return
        targets = self._targets(1 if chance < 0.8 else self.random.randint(2, PARTITIONS))
        number = self.truth.called(self.producer, targets, reads)
        value = encode_value(self.producer, number)
        if len(targets) == 1:
            self.receipts.append(publisher.put(key_of(self.producer, targets[0]), value))
        else:
            self.receipts.append(publisher.put_many({key_of(self.producer, n): value for n in targets}))

    def _targets(self, count: int) -> Sequence[int]:
        return self.random.sample(range(PARTITIONS), count)


@dataclass
class World:
    followers: list[Follower]
    truth: Truth
    accepted: ps.VersionVector[str]

    def wait_until_all_is_applied(self) -> None:
        for follower in self.followers:
            follower.replica.wait(self.accepted, timeout=30.0)
            assert follower.replica.status().lag_events == 0

    def check_orders(self) -> None:
        """By the stamps, and by what the writers really read before they wrote."""
        for follower in self.followers:
            assert follower.stamp_violations() == 0
            assert not (wrong := follower.true_violations(self.truth)), wrong[:3]
            assert follower.replica.status().lost_dependencies == 0


def run_world(
    endpoint: str,
    client: ps.Client,
    stack: ExitStack,
    seed: int,
    meanwhile: Callable[[list[Follower]], None] = lambda followers: None,
) -> World:
    """Everything written, by threads that have ended. `meanwhile` is called once they have begun."""
    client.create_topic(TOPIC, partitions=PARTITIONS)
    control = Link([endpoint], NoHandler(), lambda: Hello(FORMAT), "control")
    control.start(5.0)
    stack.callback(control.close, 5.0)
    followers = [Follower(ordering, partitions) for ordering, partitions in FOLLOWED]
    for index, follower in enumerate(followers):
        follower.replica = stack.enter_context(
            Replica(
                [TOPIC],
                directory=Directory(control.request),
                make_link=delaying_links([endpoint], seed * 100 + index),
                name=f"replica-{index}",
                # A version that is passed over because a newer one is there would be in no delivery log.
                catch_up="all",
                ordering=follower.ordering,
                partitions=follower.partitions,
                on_applied=follower.record,
            )
        )
    truth, chooser = Truth(), random.Random(seed)
    threads: list[Producing] = []
    for index, name in enumerate(PRODUCERS):
        truth.add_writer(name)
        threads.append(Producing(name, endpoint, chooser.choice(followers), truth, seed * 100 + index))
    for thread in threads:
        thread.start()
    meanwhile(followers)
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive(), f"{thread.name} is stuck"
    return World(followers, truth, merged(thread.accepted for thread in threads))


def merged(vectors: Iterable[ps.VersionVector[str]]) -> ps.VersionVector[str]:
    whole = ps.VersionVector[str]()
    for vector in vectors:
        whole = whole.merge(vector)
    return whole


class NoHandler:
    """Of a link that only asks."""

    def connected(self, welcome: object) -> None: ...
    def lost(self, error: object) -> None: ...
    def message(self, message: object) -> None: ...
    def event(self, frame: object) -> None: ...
    def fetched(self, answer: object, frames: object) -> None: ...
    def drained(self) -> None: ...
    def tick(self, now: float) -> None: ...
