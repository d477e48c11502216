"""The real cores in a hostile world from one seed: sessions, a broker that dies and comes back, consumers that observe each other.

`run` makes calls while connections break, the broker is killed (the log stays), loses power (what was not synced is cut) or
stops cleanly, producers crash, and everything is delayed; then `heal` lets all of it settle, and `check` compares what
everybody has with the log. The same seed gives the same trace.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

from paramstream.consistency.gate import Ordering
from paramstream.consistency.vector import EMPTY, PartitionId
from paramstream.consumers.effects import Deliver
from paramstream.transport.messages import Fetch

from .broker import SimBroker
from .consumer import SimConsumer
from .disk import Disk
from .network import Connection
from .producer import Made, SimProducer
from .topics import SimTopic
from .writes import Part

WALL_S = 1_800_000_000.0
KEYS = [b"a", b"b", b"c", b"d"]
HEAL_ROUNDS = 300


class CoreWorld:
    def __init__(self, seed: int, *, producers: int = 3, consumers: int = 3) -> None:
        self.random = random.Random(seed)
        persistence = self.random.sample(["write_back", "write_back", "write_through"], 2)
        self.topics = [SimTopic(1, "one", 2, persistence[0]), SimTopic(2, "two", 1, persistence[1])]  # type: ignore[arg-type]
        self.disk = Disk()
        self.now = 1.0
        self.incarnations: dict[str, int] = {}
        self.broker: SimBroker | None = None
        self.connections: list[Connection] = []
        """Those whose client has not noticed a loss."""
        self.leftovers: list[Connection] = []
        """Lost ones, of which frames still lie in the broker's buffers."""
        self.trace: list[str] = []
        self._stalled: dict[tuple[str, PartitionId], float] = {}
        """(consumer, partition) → until when nothing of it comes through."""
        self.crashed: list[Made] = []
        self.consumers = [self._consumer(f"c{number}") for number in range(consumers)]
        self.producers = [SimProducer(f"p{number}", self._open_name) for number in range(producers)]
        self.clients: list[SimProducer | SimConsumer] = [*self.producers, *self.consumers]
        self.reads = {producer.name: self.random.choice(self.consumers) for producer in self.producers}
        self.starts = 0
        self._versions = 0
        self.leftovers_move = self.random.choice([0.02, 0.2, 1.0])
        """How fast a broker's buffers of lost connections empty."""
        self.has_room = self.random.choice([0.9, 0.98, 1.0])
        self.healing = False
        self._ids = count(1)
        self._start_broker()

    # --- phases -----------------------------------------------------------------------------------------------------------

    def run(self, steps: int = 150) -> None:
        """Each step is one act of somebody, or a fault; and then everything under way moves on a little, or does not."""
        acts: list[tuple[Callable[[], None], float]] = [
            (self._call, 60), (self._publish, 6), (self._sync, 8), (self._beat, 8), (self._stall, 8), (self._fill_pipes, 2),
            (self._reset, 2), (self._end_broker, 3), (self._crash_producer, 1), (self._jump, 6),
        ]  # fmt: skip
        # Each world has its own climate: some faults never, some often.
        weights = [weight * self.random.choice([0.0, 0.5, 1.0, 1.0, 4.0]) for _, weight in acts[1:]]
        doing = self.random.choices([do for do, _ in acts], [acts[0][1], *weights], k=steps)
        for do in doing:
            self.now += self.random.uniform(0.0, 0.1)
            if self.random.random() < 0.3:
                self._start_broker()
            do()
            self._move()

    def _move(self) -> None:
        for client in self.clients:
            if self.random.random() < 0.4:
                self._connect_one(client)
            if self.random.random() < 0.3:
                self._tick_one(client)
        for connection in list(self.connections):
            for _ in range(self.random.choice([0, 1, 2, 8])):
                self._arrive_one(connection)
        for connection in list(self.leftovers):
            if self.random.random() < self.leftovers_move:
                self._arrive_one(connection)
        for connection in self.connections:
            self._hand_over(connection)
            self._fetch(connection)
        for consumer in self.consumers:
            for partition in consumer.follows:
                if self._stalled.get((consumer.name, partition), 0.0) < self.now:
                    consumer.take(partition, self.random.choice([0, 1, 4, 100]))

    def heal(self) -> bool:
        """No more faults: True once everybody has everything."""
        self.healing = True
        for producer in self.producers:
            producer.pipe_is_full = False
        for _ in range(HEAL_ROUNDS):
            self.now += 0.3
            self._start_broker()
            for client in self.clients:
                self._connect_one(client)
            for connection in self.connections:
                connection.pipe = 1 << 30
            self._settle()
            assert self.broker is not None
            for partition in self.broker.owned:
                self.broker.sync(partition)
            self.broker.retry()
            self.broker.beat()
            self._settle()
            self._tick_all()
            self._settle()
            if not self.unsettled():
                return True
        return False

    def unsettled(self) -> list[str]:
        """What is not as it must be once everything has arrived."""
        broker = self.broker
        assert broker is not None
        left = [
            f"{p.name} has not joined"
            for p in self.producers
            if not p.fenced and (p.core is None or not p.core.is_joined)
        ]
        left += [
            f"{made.write} is {made.call.outcome()}"
            for producer in self.producers for made in producer.live if not made.call.final
        ]  # fmt: skip
        left += [
            f"{consumer.name} stands at {consumer.core.position(partition):x} of {partition} {broker.owned[partition].core.accepted:x}"
            for consumer in self.consumers for partition in consumer.follows
            if consumer.core.position(partition) != broker.owned[partition].core.accepted
        ]  # fmt: skip
        return left + [
            f"{partition} is durable to {owned.core.durable:x} of {owned.core.accepted:x}"
            for partition, owned in broker.owned.items()
            if owned.core.durable != owned.core.accepted
        ]

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close()

    # --- clients ------------------------------------------------------------------------------------------------------------

    def _consumer(self, name: str) -> SimConsumer:
        everything = [partition for topic in self.topics for partition in (*topic.state, topic.weights)]
        follows = self.random.sample(everything, self.random.randint(2, len(everything)))
        ordering, durable_only = self.random.choice(list(Ordering)), self.random.random() < 0.3
        return SimConsumer(name, ordering, self.topics, follows, durable_only=durable_only)

    def _open_name(self, name: str) -> int:
        self.incarnations[name] = max(self.incarnations.values(), default=0) + 1
        return self.incarnations[name]

    def _call(self) -> None:
        producer = self.random.choice(self.producers)
        topic = self.random.choice(self.topics)
        several = self.random.randint(2, topic.partitions) if topic.partitions > 1 and self.random.random() < 0.3 else 1
        partitions = self.random.sample(topic.state, several)
        ttl = self.random.random() < 0.15
        if not producer.can_call():
            return
        seen, reads = EMPTY, frozenset[Part]()
        if self.random.random() < 0.7:
            seen, reads = self.reads[producer.name].read()
        keys: dict[PartitionId, bytes] = {partition: self.random.choice(KEYS) for partition in partitions}
        producer.put(topic, keys, seen, reads, ttl=ttl)
        self._note(f"{producer.name} puts {keys}")

    def _publish(self) -> None:
        producer, topic = self.random.choice(self.producers), self.random.choice(self.topics)
        if producer.can_call():
            self._versions += 1
            producer.publish(topic, self._versions, *self.reads[producer.name].read())
            self._note(f"{producer.name} publishes the {self._versions}th version")

    def _crash_producer(self) -> None:
        producer = self.random.choice(self.producers)
        if producer.connection is None:
            return
        self._note(f"{producer.name} crashes")
        self._lose(producer.connection)
        producer.crash()

    def _fill_pipes(self) -> None:
        """Of one client to the broker, of the broker to all of its clients; or they are free again."""
        producer = self.random.choice(self.producers)
        producer.pipe_is_full = self.random.random() < 0.3
        for connection in self.connections:
            connection.pipe = self.random.choice([1, 4, 1 << 30, 1 << 30])
        if self.broker is not None:
            self.broker.retry()

    def _tick_all(self) -> None:
        for client in self.clients:
            self._tick_one(client)

    def _tick_one(self, client: SimProducer | SimConsumer) -> None:
        if isinstance(client, SimProducer):
            client.tick()
        else:
            client.tick(self.now)

    # --- the network --------------------------------------------------------------------------------------------------------

    def _connect_one(self, client: SimProducer | SimConsumer) -> None:
        if self.broker is None or any(connection.client is client for connection in self.connections):
            return
        connection = Connection(next(self._ids), client)
        self.connections.append(connection)
        self.broker.connections[connection.id] = connection
        self._note(f"{client.name} connects as {connection.id!r}")
        client.connected(connection)

    def _reset(self) -> None:
        if self.connections:
            connection = self.random.choice(self.connections)
            self._note(f"{connection.client.name} loses {connection.id!r}")
            self._lose(connection)

    def _lose(self, connection: Connection) -> None:
        self.connections.remove(connection)
        self.leftovers.append(connection)
        connection.reset(self.random)

    def _arrive_one(self, connection: Connection) -> None:
        if self.broker is None:
            return
        self.broker.now = self.now
        self.broker.log_has_room = self.healing or self.random.random() < self.has_room
        if connection.up:
            self.broker.received(connection, connection.up.popleft())
        elif connection in self.leftovers:
            self.leftovers.remove(connection)
            self.broker.forget(connection)

    def _hand_over(self, connection: Connection) -> None:
        """A few frames reach the client."""
        for _ in range(self.random.choice([0, 1, 4, 16])):
            if connection.down:
                connection.client.received(connection.down.popleft())

    def _fetch(self, connection: Connection) -> None:
        if connection.fetches and self.random.random() < 0.5:
            self._answer_fetch(connection, connection.fetches.popleft())
        if connection.fetched and self.random.random() < 0.5:
            answer = connection.fetched.popleft()
            # One in twenty is lost: the fetch socket breaks by itself.
            if self.random.random() < 0.95:
                connection.client.received(answer)

    def _stall(self) -> None:
        """One partition reaches one consumer late."""
        consumer = self.random.choice(self.consumers)
        partition = self.random.choice(consumer.follows)
        self._stalled[consumer.name, partition] = self.now + self.random.uniform(0.0, 2.0)

    def _jump(self) -> None:
        """Somebody who is behind the newest version passes what lies between."""
        consumer = self.random.choice(self.consumers)
        for topic in self.topics:
            if self.broker is not None and topic.weights in consumer.follows and consumer.link.connected:
                at = self.broker.owned[topic.weights].core.describe(0, int(self.now * 1e9))
                if consumer.jump(at):
                    self._note(f"{consumer.name} jumps to {at.latest:x} of {topic.weights}")

    def _answer_fetch(self, connection: Connection, fetch: Fetch) -> None:
        assert self.broker is not None
        self.broker.fetch(connection, fetch, self.random.choice([1, 3, 1 << 30]))

    def _settle(self) -> None:
        """Everything under way arrives."""
        moved = True
        while moved:
            moved = False
            for connection in [*self.leftovers, *self.connections]:
                moved = moved or bool(connection.up or connection.fetches or connection.down or connection.fetched)
                while connection.up or connection in self.leftovers:
                    self._arrive_one(connection)
                while connection.fetches:
                    self._answer_fetch(connection, connection.fetches.popleft())
                while connection.down:
                    connection.client.received(connection.down.popleft())
                while connection.fetched:
                    connection.client.received(connection.fetched.popleft())
            for consumer in self.consumers:
                for partition in consumer.follows:
                    moved = consumer.take(partition, 1 << 30) or moved

    # --- the broker -----------------------------------------------------------------------------------------------------------

    def _start_broker(self) -> None:
        if self.broker is not None:
            return
        self.starts += 1
        clock_s = WALL_S + self.now + self.random.choice([0.0, 0.0, 3600.0, -3600.0])
        self.broker = SimBroker(self.disk, self.topics, self.incarnations)
        self.broker.start(self.now, clock_s, (self.random.getrandbits(32) for _ in range(1 << 10)))
        self._note("the broker starts")

    def _end_broker(self) -> None:
        if self.broker is None:
            return
        how = self.random.choice(["kill", "kill", "power", "power", "stop"])
        self._note(f"the broker ends: {how}")
        if how == "stop":
            for partition in self.broker.owned:
                self.broker.sync(partition)
        elif how == "power":
            self.disk.fail_power(self.random)
        self.broker = None
        for connection in self.connections:
            connection.reset(self.random, broker_gone=True)
        self.connections.clear()
        self.leftovers.clear()

    def _sync(self) -> None:
        if self.broker is not None:
            self.broker.now = self.now
            self.broker.sync(self.random.choice(list(self.broker.owned)))

    def _beat(self) -> None:
        if self.broker is not None:
            self.broker.now = self.now
            self.broker.beat()

    def _note(self, line: str) -> None:
        self.trace.append(f"{self.now:.3f} {line}")

    def story(self) -> list[str]:
        """Everything that happened: the trace, and what each consumer was left with."""
        lines = [
            f"{consumer.name} {line.partition} {line.frame.position:x}"
            for consumer in self.consumers for line in consumer.applied if isinstance(line, Deliver)
        ]  # fmt: skip
        outcomes = [f"{m.write} {m.outcomes}" for producer in self.producers for m in producer.made]
        return [*self.trace, *lines, *outcomes]
