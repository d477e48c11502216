"""A random world of producers, partitions and consumers around the real gate: no network, no payloads, one seed.

Producers obey rule 1 and observe a consumer each; consumers follow a random part of the partitions in a random ordering. A
run ends when everything that was written is delivered everywhere it is followed, or when that takes too long (`stuck`).
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from paramstream.consistency.gate import Gate, Ordering
from paramstream.consistency.stamp import Delivery, Stamp
from paramstream.consistency.vector import EMPTY, PartitionId, VersionVector

TOPIC = 1


@dataclass
class Producer:
    name: str
    reader: Consumer
    own: VersionVector[int] = EMPTY
    observed: VersionVector[int] = EMPTY
    sequence: int = 0
    unacked: dict[PartitionId, int] = field(default_factory=dict[PartitionId, int])
    wire: dict[PartitionId, deque[Stamp]] = field(default_factory=dict[PartitionId, deque[Stamp]])
    acks: deque[tuple[PartitionId, int]] = field(default_factory=deque[tuple[PartitionId, int]])


@dataclass
class Consumer:
    ordering: Ordering
    follows: list[PartitionId]
    gate: Gate
    at: dict[PartitionId, int]
    log: list[Delivery] = field(default_factory=list[Delivery])


class World:
    """`gated=False` switches the gate off: the checkers must then find violations."""

    def __init__(
        self, seed: int, *, gated: bool = True, partitions: int = 4, producers: int = 5, consumers: int = 6
    ) -> None:
        self.random = random.Random(seed)
        self.gated = gated
        self.partitions: list[PartitionId] = [(TOPIC, number) for number in range(partitions)]
        self.sequenced: dict[PartitionId, list[Stamp]] = {partition: [] for partition in self.partitions}
        self.consumers = [self._consumer() for _ in range(consumers)]
        self.producers = [Producer(f"p{n}", self.random.choice(self.consumers)) for n in range(producers)]

    def run(self, steps: int = 300, patience: int = 20_000) -> bool:
        """True if everything was delivered."""
        for _ in range(steps):
            self._step(publish=True)
        for _ in range(patience):
            if self._finished():
                return True
            self._step(publish=False)
        return self._finished()

    def _consumer(self) -> Consumer:
        follows = sorted(self.random.sample(self.partitions, self.random.randint(1, len(self.partitions))))
        ordering = self.random.choice(list(Ordering))
        return Consumer(ordering, follows, Gate(ordering, follows), dict.fromkeys(follows, 0))

    def _step(self, *, publish: bool) -> None:
        chance = self.random.random()
        if publish and chance < 0.35:
            self._publish(self.random.choice(self.producers))
        elif chance < 0.6:
            self._sequence(self.random.choice(self.producers), self.random.choice(self.partitions))
        elif chance < 0.8:
            self._acknowledge(self.random.choice(self.producers))
        else:
            self._deliver(self.random.choice(self.consumers))

    def _publish(self, producer: Producer) -> None:
        many = self.random.random() < 0.3
        targets = self.random.sample(self.partitions, self.random.randint(1, len(self.partitions)) if many else 1)
        busy = {partition for partition, count in producer.unacked.items() if count}
        if any(busy - {target} for target in targets):
            return  # rule 1: the call waits for its acks
        producer.observed = producer.observed.merge(producer.reader.gate.vector())
        for target in targets:
            producer.sequence += 1
            stamp = Stamp(producer.name, 1, producer.sequence, producer.own, producer.observed)
            producer.wire.setdefault(target, deque()).append(stamp)
            producer.unacked[target] = producer.unacked.get(target, 0) + 1

    def _sequence(self, producer: Producer, partition: PartitionId) -> None:
        wire = producer.wire.get(partition)
        if wire:
            stamp = wire.popleft()
            log = self.sequenced[partition]
            at = len(log) + 1
            log.append(Stamp(stamp.producer, 1, stamp.sequence, stamp.own, stamp.observed, at))
            producer.acks.append((partition, at))

    def _acknowledge(self, producer: Producer) -> None:
        if producer.acks:
            partition, at = producer.acks.popleft()
            producer.unacked[partition] -= 1
            producer.own = producer.own.merge({partition: at})

    def _deliver(self, consumer: Consumer) -> None:
        partition = self.random.choice(consumer.follows)
        log, at = self.sequenced[partition], consumer.at[partition]
        if at == len(log):
            return
        stamp = log[at]
        if self.gated and consumer.gate.blocked_by(partition, stamp) is not None:
            return
        consumer.gate.applied(partition, stamp)
        consumer.at[partition] = at + 1
        consumer.log.append(Delivery(partition, stamp))

    def _finished(self) -> bool:
        sent = all(not wire for producer in self.producers for wire in producer.wire.values())
        return sent and all(
            at == len(self.sequenced[partition]) for consumer in self.consumers for partition, at in consumer.at.items()
        )
