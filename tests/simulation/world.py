"""The real cores in a hostile world from one seed: sessions, brokers that die and come back, consumers that observe each other.

A world holds its parts and lets things move on; what is done to it are the acts (`acts.py`), in the order that a scenario
says (`scenario.py`). All time comes from `clock`. Whatever a world is by itself (topics, who follows what, its climate) comes
from its seed, each thing from a stream of its own, so that one more question does not change the answers to the others.
"""

from __future__ import annotations

import random
from typing import Any

from paramstream.brokers.partition import PartitionCore, Persistence
from paramstream.consistency.gate import Ordering
from paramstream.consistency.vector import PartitionId
from paramstream.transport.calls import Call, DescribePartitions, ListTopics

from .broker import SimBroker
from .changelogs import SimChangelogs
from .clock import Clock
from .consumer import SimConsumer
from .disk import ALL_BYTES, Disk
from .network import Connection, Network
from .producer import SimProducer
from .recorded import History
from .states import States
from .topics import SimTopic
from .trace import Trace

HEAL_ROUNDS = 300
HEALING_STEPS = 20
"""Of a snapshot on its way, in each round of healing."""

Client = SimProducer | SimConsumer


PERSISTENCES: list[Persistence] = ["write_back", "write_back", "write_through"]


class World:
    passing = 0.25
    """How many worlds have a topic with persistence "none"."""

    def __init__(self, seed: int, *, producers: int = 3, consumers: int = 3) -> None:
        self.seed = seed
        self.clock = Clock()
        self.trace = Trace(self.clock)
        self.topics = self._topics(self.stream("topics"))
        self.disk = Disk(self.stream("limit").choice([ALL_BYTES, ALL_BYTES, 60_000, 36_000]))
        self.power_fails_next = False
        """When the broker's process is killed amidst something."""
        self.incarnations: dict[str, int] = {}
        self.broker: SimBroker | None = None
        self.network = Network(self.clock, self.is_awake, self.stream("leftovers").choice([0.02, 0.2, 1.0]))
        self.asleep: dict[object, float] = {}
        """Process → until when it does nothing: a client, or a broker."""
        self.stalled: dict[tuple[str, PartitionId], float] = {}
        """(consumer, partition) → until when nothing of it comes through."""
        self.states = States()
        self.copying: list[int] = self.stream("copying").choice([[0, 0, 0, 1], [0, 0, 1, 2], [0, 1, 4]])
        """How fast snapshots and flushes go on."""
        self.history = History()
        self.changelogs = SimChangelogs(self.stream("changelogs"))
        self.consumers = [self._consumer(f"c{number}") for number in range(consumers)]
        self.producers: list[SimProducer] = []
        """Processes: two of them may use one name."""
        for number in range(producers):
            self.add_producer(f"p{number}")
        self.fences: dict[tuple[str, int], dict[PartitionId, int]] = {}
        """(producer, incarnation) → where the logs ended when it had joined: behind that nothing of an older one may stand."""
        self._heads: dict[PartitionId, tuple[int, int]] = {}
        reading = self.stream("reading")
        self.reads = {producer.name: reading.choice(self.consumers) for producer in self.producers}
        """Whom a producer observes."""
        self.has_room = self.stream("room").choice([0.9, 0.98, 1.0])
        """How often the log has room for an event."""
        self.versions = 0
        """Published so far."""
        self.healing = False
        self.start_broker(self.stream("start"))
        for consumer in self.consumers:
            consumer.start("earliest", self.ask, self.changelogs)

    def _topics(self, chance: random.Random) -> list[SimTopic]:
        one, two = chance.sample(PERSISTENCES, 2)
        if chance.random() < self.passing:
            two = "none"
        return [SimTopic(1, "one", 2, one), SimTopic(2, "two", 1, two)]

    def stream(self, purpose: str) -> random.Random:
        """Chance for one purpose alone, the same in every run and under any hash seed."""
        return random.Random(f"{self.seed}/{purpose}")

    @property
    def clients(self) -> list[Client]:
        return [*self.producers, *self.consumers]

    def is_awake(self, process: object) -> bool:
        return self.asleep.get(process, 0.0) <= self.clock.now

    # --- movement ---------------------------------------------------------------------------------------------------------

    def move(self, chance: random.Random) -> None:
        """A little time passes, and everything under way moves on a little, or does not."""
        self.clock.advance(chance.uniform(0.0, 0.1))
        self._brokers_begin(chance)
        for client in self.clients:
            if chance.random() < 0.4 and self.is_awake(client):
                self.connect(client)
            if chance.random() < 0.3 and self.is_awake(client):
                self._tick(client)
        self._brokers_go_on(chance)
        self.network.move(chance)
        for consumer in self.consumers:
            for partition in consumer.follows:
                most = chance.choice([0, 1, 4, 100])
                if self.stalled.get((consumer.name, partition), 0.0) < self.clock.now and self.is_awake(consumer):
                    consumer.take(partition, most)
            if self.is_awake(consumer):
                consumer.go_on(chance.choice(self.copying))
        self._look()

    def _look(self) -> None:
        """What is to be seen from outside, where it has changed."""
        for partition in self.partitions():
            core = self.owner_of(partition)
            heads = (core.accepted, core.durable) if core is not None else (0, 0)
            if self._heads.get(partition) != heads:
                self._heads[partition] = heads
                self.trace.note(f"{partition} is accepted to {heads[0]:x}, durable to {heads[1]:x}")
        for producer in self.producers:
            session = producer.name, producer.incarnation
            if producer.core is not None and session not in self.fences:
                self.fences[session] = {partition: log.reached for partition, log in self.disk.logs.items()}

    def heal(self) -> bool:
        """No more faults: True once everybody has everything."""
        self.healing = True
        self.asleep.clear()
        self.stalled.clear()
        chance = self.stream("heal")
        for producer in self.producers:
            producer.pipe_is_full = False
        for consumer in self.consumers:
            consumer.free_store()
        if not self._heals(chance):
            return False
        self._begin_anew(chance)
        return self._heals(chance)

    def _heals(self, chance: random.Random) -> bool:
        for _ in range(HEAL_ROUNDS):
            self.clock.advance(0.3)
            self.heal_brokers(chance)
            for consumer in self.consumers:
                self.start_consumer(consumer, chance)
            for client in self.clients:
                self.connect(client)
            self.network.mend()
            self._settle()
            self._all_is_synced(chance)
            self._settle()
            for client in self.clients:
                self._tick(client)
            for consumer in self.consumers:
                consumer.go_on(HEALING_STEPS)
            self._settle()
            self._look()
            if not self.unsettled():
                return True
        return False

    def unsettled(self) -> list[str]:
        """What is not as it must be once everything has arrived."""
        left = [
            f"{p.name} has not joined"
            for p in self.producers
            if not p.fenced and (p.core is None or not p.core.is_joined)
        ]
        left += [
            f"{made.write} is {made.call.outcome()}"
            for producer in self.producers for made in producer.live if not made.call.final
        ]  # fmt: skip
        owned = {p: core for p in self.partitions() if (core := self.owner_of(p)) is not None}
        left += [f"nobody owns {partition}" for partition in self.partitions() if partition not in owned]
        left += [
            f"{consumer.name} stands at {consumer.position(partition):x} of {partition} {owned[partition].accepted:x}"
            for consumer in self.consumers for partition in consumer.follows
            if partition in owned and consumer.position(partition) != owned[partition].accepted
        ]  # fmt: skip
        left += [f"{consumer.name} is not there" for consumer in self.consumers if not consumer.is_ready]
        left += [f"a snapshot of {consumer.name} is on its way" for consumer in self.consumers if consumer.is_copying]
        return left + [
            f"{partition} is durable to {core.durable:x} of {core.accepted:x}"
            for partition, core in owned.items()
            if core.durable != core.accepted
        ]

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close()

    def _settle(self) -> None:
        """Everything under way arrives."""
        moved = True
        while moved:
            moved = self._brokers_settle()
            moved = self.network.settle() or moved
            for consumer in self.consumers:
                for partition in consumer.follows:
                    moved = consumer.take(partition, 1 << 30) or moved

    def _tick(self, client: Client) -> None:
        if isinstance(client, SimProducer):
            client.tick()
        else:
            client.tick(self.clock.now)

    # --- clients ------------------------------------------------------------------------------------------------------------

    def connect(self, client: Client) -> None:
        if self.broker is None or not client.is_running:
            return
        connection = self.network.connect(client, self.broker)
        if connection is not None:
            self.trace.note(f"{client.name} connects as {connection.serial}")

    def disconnect(self, client: Client, chance: random.Random) -> None:
        """All that it is connected to is gone."""
        for connection in self.network.of(client):
            self.lose(connection, chance)

    def lose(self, connection: Connection, chance: random.Random) -> None:
        self.trace.note(f"{connection.client.name} loses {connection.serial}")
        self.network.lose(connection, chance)

    def _consumer(self, name: str) -> SimConsumer:
        chance = self.stream(name)
        topics = chance.sample(self.topics, chance.choice([1, 2, 2, 2]))
        follows = {
            topic: sorted(chance.sample(range(topic.partitions), chance.randint(0, topic.partitions)))
            for topic in topics
        }
        lasts = all(topic.persistence != "none" for topic in topics)
        ordering, durable_only = chance.choice(list(Ordering)), lasts and chance.random() < 0.4
        return SimConsumer(
            name, ordering, follows, self.states, self.trace.note, self.history, durable_only=durable_only
        )

    def add_producer(self, name: str) -> None:
        """A process that uses `name`, as another one may do too."""
        self.producers.append(SimProducer(name, self._open_name, self.trace.note, self.history, self.topics))

    def crash_consumer(self, consumer: SimConsumer, chance: random.Random) -> None:
        self.trace.note(f"{consumer.name} crashes")
        self.disconnect(consumer, chance)
        consumer.crash()

    def _begin_anew(self, chance: random.Random) -> None:
        """Whatever is left of snapshots and changelogs leads to the same: who can begin with one does."""
        self.trace.note(f"changelogs hold {self.changelogs.digest()}")
        for consumer in self.consumers:
            copies = self._copies_for(consumer)
            if copies:
                self.crash_consumer(consumer, chance)
                self._start(consumer, chance.choice(copies))

    def _copies_for(self, consumer: SimConsumer) -> list[str]:
        """As beginnings."""
        others = [other for other in self.consumers if other is not consumer and other.has_snapshots_for(consumer)]
        resumes = consumer.snapshots and all(topic.persistence != "none" for topic in consumer.topics)
        found = [*(["resume"] if resumes else []), *(f"snapshot:{other.folder}" for other in others)]
        return [*found, "changelogs"] if any(map(self.changelogs.has, consumer.follows)) else found

    def start_consumer(self, consumer: SimConsumer, chance: random.Random) -> None:
        """From whatever there is to begin with; where that leads nowhere, from the head."""
        if not self.is_served or consumer.is_running:
            return
        self._start(consumer, chance.choice(["latest", "earliest", *2 * self._copies_for(consumer)]))

    def _start(self, consumer: SimConsumer, start: str) -> None:
        if not consumer.start(start, self.ask, self.changelogs):
            consumer.start("latest", self.ask, self.changelogs)
        self.trace.note(f"{consumer.name} begins: {consumer.starts[-1]}")

    def _open_name(self, name: str) -> int:
        self.incarnations[name] = max(self.incarnations.values(), default=0) + 1
        return self.incarnations[name]

    def ask(self, call: Call, kind: object, timeout: float) -> list[Any]:
        """What brokers answer a replica that begins."""
        assert self.broker is not None
        match call:
            case ListTopics():
                return [topic.record for topic in self.topics]
            case DescribePartitions():
                return self.broker.describe(call)
            case _:
                raise AssertionError(call)

    # --- the broker -----------------------------------------------------------------------------------------------------------

    def start_broker(self, chance: random.Random) -> None:
        if self.broker is not None:
            return
        nonces = (chance.getrandbits(32) for _ in range(1 << 10))
        self.broker = SimBroker(self.disk, self.topics, self.incarnations)
        self.broker.start(self.clock.now, self.clock.wall_s, nonces)
        self.trace.note("the broker starts")
        if self.broker.is_dead:
            self.end_broker("power" if self.power_fails_next else "kill", chance)

    def end_broker(self, how: str, chance: random.Random) -> None:
        """`how`: "kill" (the log stays), "power" (what was not synced is cut) or "stop" (all is synced)."""
        if self.broker is None:
            return
        self.trace.note(f"the broker ends: {how}")
        if how == "stop":
            self.broker.stop()
        if how == "power":
            self.disk.fail_power(chance)
        else:
            self.disk.kill(chance)
        broker, self.broker = self.broker, None
        self.network.end(broker, chance)

    @property
    def processes(self) -> list[object]:
        """All that may pause."""
        return [*self.clients, *([self.broker] if self.broker is not None else [])]

    @property
    def is_served(self) -> bool:
        """There is somebody to ask."""
        return self.broker is not None and not self.broker.is_sick

    def partitions(self) -> list[PartitionId]:
        return [partition for topic in self.topics for partition in (*topic.state, topic.weights)]

    def owner_of(self, partition: PartitionId) -> PartitionCore | None:
        """The core of whoever owns the partition now."""
        return self.broker.core(partition) if self.broker is not None else None

    def owner_for(self, client: Client, partition: PartitionId) -> PartitionCore | None:
        """The core of whoever the client takes for its owner."""
        return self.owner_of(partition)

    def check_logs(self) -> None:
        """Whoever reads them is given what stands: each log notes what is not so."""
        if self.broker is not None:
            self.broker.check()

    def heal_brokers(self, chance: random.Random) -> None:
        """All of them are there, and nothing keeps them from anything."""
        self.disk.mend()
        if self.broker is not None and self.broker.is_sick:
            self.end_broker("kill", chance)
        self.start_broker(chance)

    def free_pipes(self) -> None:
        """What did not go for a full pipe is tried again."""
        if self.broker is not None:
            self.broker.retry()

    def _brokers_begin(self, chance: random.Random) -> None:
        if self.broker is not None and self.broker.is_dead:
            self.end_broker("power" if self.power_fails_next else "kill", chance)
        if chance.random() < 0.3:
            self.start_broker(chance)

    def _brokers_go_on(self, chance: random.Random) -> None:
        if self.broker is not None:
            self.broker.now = self.clock.now
            self.broker.log_has_room = chance.random() < self.has_room

    def _brokers_settle(self) -> bool:
        """They have done all that they can do now. False where there was nothing."""
        if self.broker is not None:
            self.broker.now, self.broker.log_has_room = self.clock.now, True
        return False

    def _all_is_synced(self, chance: random.Random) -> None:
        assert self.broker is not None
        for partition in self.broker.owned:
            self.broker.sync(partition)
        self.broker.retry()
        self.broker.beat()
