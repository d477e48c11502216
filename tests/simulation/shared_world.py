"""A world of several brokers over one log: who owns what moves, and a broker may be the last to hear of it.

The brokers are whole (`process.py`), the log is a Kafka that delays, repeats and loses requests (`shared_log.py`), slots are
shared out by a group (`group.py`), and clients are connected to all brokers of a generation or to none (`fleet.py`).
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import Any, cast

from paramstream.brokers.owned import META
from paramstream.brokers.partition import PartitionCore
from paramstream.consistency.position import MAX_OFFSET, START, epoch_of
from paramstream.consistency.vector import PartitionId
from paramstream.errors import ParamstreamError, ParamstreamTimeout
from paramstream.transport.calls import (
    AwaitDurable,
    Call,
    CreateTopic,
    DescribePartitions,
    ListTopics,
    PartitionRecord,
)
from paramstream.transport.messages import FORMAT, Hello
from reference.one_rule import Truth

from .disk import Disk
from .fleet import SimFleet, Strand
from .group import Group
from .network import Server
from .process import SimProcess, is_durable, simulated_machine
from .shared_log import FAIR, LIMIT, SharedKafka, Weather
from .world import Client, World

SETUP_ROUNDS = 400
SESSION_S = 0.7
"""A broker that is not heard of for so long loses its slots."""


class TrueLog:
    """What stands of one partition."""

    problems: tuple[str, ...] = ()
    """It is the truth."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth

    def records(self) -> list[Any]:
        return self._truth.records

    def events(self) -> list[Any]:
        return [frame for frame in self._truth.records if frame.head.producer]

    def claims(self) -> list[int]:
        return self._truth.claims

    @property
    def reached(self) -> int:
        return self._truth.records[-1].position if self._truth.records else START


class Standing:
    """What stands by the one rule, read independently."""

    def __init__(self, kafka: SharedKafka) -> None:
        self._kafka = kafka
        self._read: dict[PartitionId, tuple[int, TrueLog]] = {}

    @property
    def logs(self) -> dict[PartitionId, TrueLog]:
        return {partition: self.log(partition) for partition in sorted(self._kafka.partitions) if partition != META}

    def log(self, partition: PartitionId) -> TrueLog:
        kafka = self._kafka.partition(partition)
        known = self._read.get(partition)
        if known is None or known[0] != kafka.end:
            known = self._read[partition] = kafka.end, TrueLog(Truth().read(kafka.records()))
        return known[1]


class SharedWorld(World):
    passing = 0.0
    """What stands of such a topic is in no log."""

    kafka: SharedKafka
    group: Group

    # --- its beginning ------------------------------------------------------------------------------------------------------

    def start_broker(self, chance: random.Random) -> None:
        """The first ones, all at once, until they serve."""
        self._machine = ExitStack()
        machine = self.stream("machine")
        # Not much fewer: each new epoch is joined, and each join writes a note in every partition of the broker.
        full = machine.choice([MAX_OFFSET, MAX_OFFSET, 40, 60])
        self._machine.enter_context(simulated_machine(self.clock, machine, full))
        try:
            self._set_up(chance)
        except BaseException:
            self._machine.close()
            raise

    def _set_up(self, chance: random.Random) -> None:
        self.kafka = SharedKafka(self.clock)
        self.group = Group(self.clock)
        self.standing = Standing(self.kafka)
        self.disk = cast("Disk", self.standing)
        self.names = [f"b{number}" for number in range(chance.choice([2, 3]))]
        self.running: dict[str, SimProcess] = {}
        self.fleets: dict[Client, SimFleet] = {}
        self.told: list[tuple[PartitionId, int, bool]] = []
        """(partition, position, whether it is lost) of what brokers have answered."""
        self.every_fleet: list[SimFleet] = []
        self._lives: dict[Client, int] = {}
        self._numbers: dict[Client, int] = {}
        """Of clients, as they first connect."""
        self.telling = self.stream("telling")
        """Who answers a replica that begins."""
        self._starts = 0
        self._greeted = 0
        self.silent_until: dict[SimProcess, float] = {}
        """Until when the group does not hear of it, though it does all else."""
        self._unheard: dict[SimProcess, float] = {}
        """Since when the group has not heard of it."""
        self.lazy = chance.choice([0.1, 0.5, 0.8])
        """How often a thread of a broker does not go on."""
        self.hears = chance.choice([0.1, 0.3, 1.0])
        """How soon a broker hears of its slots."""
        self.weather = Weather(
            lands=chance.choice([0.3, 0.6, 0.9]),
            lost=chance.choice([0.0, 0.0, 0.02]),
            repeated=chance.choice([0.0, 0.05, 0.2]),
            ack_lost=chance.choice([0.0, 0.0, 0.05]),
            strangers=chance.choice([0.0, 0.0, 0.02]),
        )
        self._begin_process("b0")
        self._until_settled(chance)
        meta = self.running["b0"].partitions.meta
        for topic in self.topics:
            create = CreateTopic(topic.name, topic.partitions, topic.persistence, 8, exist_ok=False)
            entry, _ = meta.create_topic(create, topic.id)
            assert entry is not None
            self.running["b0"].loop.write(META, entry.payload, entry.bulk)
        self.running["b0"].loop.owning.reconcile()
        for name in self.names[1:]:
            self._begin_process(name)
        self._until_settled(chance)
        self.kafka.weather = self.weather

    def _until_settled(self, chance: random.Random) -> None:
        for _ in range(SETUP_ROUNDS):
            self.clock.advance(0.01)
            self._go_on(chance, lazy=0.0, hears=1.0)
            if self.group.is_settled() and all(each.loop.owning.is_settled for each in self.running.values()):
                return
        raise AssertionError("the brokers do not come to serve")

    def close(self) -> None:
        super().close()
        self._machine.close()

    # --- brokers ------------------------------------------------------------------------------------------------------------

    def start_one(self, name: str) -> None:
        if name not in self.running:
            self._begin_process(name)

    def kill(self, process: SimProcess, chance: random.Random) -> None:
        """The process ends at once; the group finds out later."""
        self.trace.note(f"{process.name} is killed")
        self._end(process, chance)

    def stop(self, process: SimProcess) -> None:
        """A clean stop begins."""
        self.trace.note(f"{process.name} stops")
        process.leave()

    def _begin_process(self, name: str) -> None:
        self._starts += 1
        process = self.running[name] = SimProcess(name, self._starts, self.kafka, self.clock)
        self.group.join(process)
        self.trace.note(f"{process.member.broker} starts")

    def _end(self, process: SimProcess, chance: random.Random) -> None:
        del self.running[process.name]
        process.log.close()
        self.network.end(process, chance)

    def _is_heard(self, process: SimProcess) -> bool:
        is_running = self.running.get(process.name) is process
        is_silent = self.clock.now < self.silent_until.get(process, 0.0)
        return is_running and not is_silent and self.is_awake(process) and self.kafka.reaches(process.name)

    def _keep_the_group(self, chance: random.Random) -> None:
        """Who is not heard of loses its slots; who is heard of again is a member again."""
        if self.clock.now < self.kafka.frozen_until:
            return
        for process in list(self.group.members):
            if self._is_heard(process):
                self._unheard.pop(process, None)
            elif self.clock.now - self._unheard.setdefault(process, self.clock.now) > SESSION_S:
                self.group.lose(process)
        for process in list(self.running.values()):
            if process.is_leaving:
                self._leave(process, chance)
            elif process not in self.group.members and self._is_heard(process) and chance.random() < self.hears:
                self.group.join(process)

    def _leave(self, process: SimProcess, chance: random.Random) -> None:
        process.loop.syncer.sync_dirty()
        process.router.inbox.clear()
        process.posting.run()
        if process.is_drained:
            self.group.lose(process)
            self._end(process, chance)

    def _go_on(self, chance: random.Random, *, lazy: float, hears: float) -> None:
        self._keep_the_group(chance)
        self.kafka.move(chance)
        if self.clock.now >= self.kafka.frozen_until:
            self.group.step(chance, hears)
        for process in list(self.running.values()):
            if self.is_awake(process):
                process.go_on(chance, lazy=lazy)
        for fleet in list(self.fleets.values()):
            if self.is_awake(fleet.client):
                fleet.tick()

    # --- what the other kind of world does with its one broker ---------------------------------------------------------------

    def _brokers_begin(self, chance: random.Random) -> None:
        for name in self.names:
            if chance.random() < 0.05:
                self.start_one(name)

    def _brokers_go_on(self, chance: random.Random) -> None:
        for process in self.running.values():
            process.log.nbytes = 0 if chance.random() < self.has_room else LIMIT + 1
        for _ in range(chance.choice([0, 1, 4, 8])):
            self._go_on(chance, lazy=self.lazy, hears=self.hears)
            self.network.move(chance)

    def heal_brokers(self, chance: random.Random) -> None:
        self.kafka.weather, self.kafka.frozen_until = FAIR, 0.0
        self.kafka.cut_until.clear()
        self.silent_until.clear()
        for process in self.running.values():
            process.log.nbytes = 0
        for name in self.names:
            self.start_one(name)

    def _brokers_settle(self) -> bool:
        chance = self.stream(f"settle/{self.clock.now}")
        self._go_on(chance, lazy=0.0, hears=1.0)
        return self.kafka.is_busy or any(process.router.inbox for process in self.running.values())

    def _all_is_synced(self, chance: random.Random) -> None:
        self._go_on(chance, lazy=0.0, hears=1.0)

    def end_broker(self, how: str, chance: random.Random) -> None:
        raise AssertionError("which one?")

    def free_pipes(self) -> None:
        """The loops try by themselves."""

    @property
    def processes(self) -> list[object]:
        return [*self.clients, *self.running.values()]

    @property
    def is_served(self) -> bool:
        """By brokers that take themselves for the owners. Some other one may have claimed what they have."""
        return all(map(self._owners_of, self.partitions()))

    def _serving(self) -> list[SimProcess]:
        """All brokers of one generation, where all of it is served."""
        for process in self.running.values():
            owners = process.partitions.ownership.owners
            there = [self.running.get(owner.endpoint) for owner in owners if owner.slots]
            generation = process.partitions.ownership.generation
            serving = [
                each
                for each in there
                if each is not None
                and self.is_awake(each)
                and each.loop.owning.is_settled
                and each.partitions.ownership.generation == generation
            ]
            if there and len(serving) == len(there):
                return serving
        return []

    def owner_of(self, partition: PartitionId) -> PartitionCore | None:
        for process in self._serving():
            owned = process.partitions.owned.get(partition)
            if owned is not None and owned.error is None:
                return owned.core
        return None

    def owner_for(self, client: Client, partition: PartitionId) -> PartitionCore | None:
        fleet = self.fleets.get(client)
        server = None if fleet is None else fleet.server_of(partition)
        if not isinstance(server, SimProcess) or not self.is_awake(server):
            return None
        owned = server.partitions.owned.get(partition)
        return None if owned is None or owned.error is not None else owned.core

    def unsettled(self) -> list[str]:
        left = super().unsettled()
        left += [f"{name} does not run" for name in self.names if name not in self.running]
        return left + [
            f"{process.name} has something to sync in {partition}"
            for process in self.running.values()
            for partition, owned in process.partitions.owned.items()
            if owned.error is None and not is_durable(owned)
        ]

    # --- clients ------------------------------------------------------------------------------------------------------------

    def is_awake(self, process: object) -> bool:
        return super().is_awake(process.fleet.client if isinstance(process, Strand) else process)

    def connect(self, client: Client) -> None:
        fleet = self.fleets.get(client)
        if not client.is_running or (fleet is not None and not fleet.is_over):
            return
        self._greeted += 1
        chance = self.stream(f"fleet/{self._greeted}")
        number = self._numbers.setdefault(client, len(self._numbers))
        link = f"{number}/{self._lives.get(client, 0)}".encode()
        hello = Hello(FORMAT, link=link, turn=self._greeted)
        fleet = SimFleet(client, hello, self.network, self.clock, chance, self._process_at)
        self.fleets[client] = fleet
        self.every_fleet.append(fleet)
        fleet.greet(self.names[self._greeted % len(self.names)])

    def _process_at(self, name: str) -> Server | None:
        return self.running.get(name)

    def disconnect(self, client: Client, chance: random.Random) -> None:
        """Its process ends: the next one has a link of its own."""
        self._lives[client] = self._lives.get(client, 0) + 1
        fleet = self.fleets.get(client)
        if fleet is not None:
            fleet.end()

    def await_durable(self, client: Client, positions: list[tuple[int, int, int]]) -> None:
        """Whoever has a receipt may ask what became of it; the answer is held against the log in the end."""
        fleet = self.fleets.get(client)

        def done(lost: list[tuple[int, int, int]] | None, error: ParamstreamError | None) -> None:
            if lost is not None:
                self.told += [((topic, number), at, (topic, number, at) in lost) for topic, number, at in positions]

        if fleet is not None:
            fleet.ask(AwaitDurable(tuple(positions)), done)

    def joined_too_late(self) -> list[str]:
        """Joins that were asked for when another claim stood, and yet answered."""
        claims = [(at, frame.partition_id, epoch_of(frame.position)) for at, frame in self.kafka.claims]
        return [
            f"a join of epoch {joined.epoch:x} of {partition} was answered, asked for after {epoch:x} was claimed"
            for fleet in self.every_fleet
            for asked_at, answer in fleet.joins
            for joined in answer.partitions
            for at, partition, epoch in claims
            if (joined.topic, joined.partition) == partition and at < asked_at and epoch > joined.epoch
        ]

    def wrongly_told(self) -> list[str]:
        """What was said to be lost, and stands; or was said to be durable, and does not."""
        stands = {
            (partition, record.position) for partition, log in self.standing.logs.items() for record in log.records()
        }
        return [
            f"{at:x} of {partition} was said to be {'lost' if is_lost else 'durable'}"
            for partition, at, is_lost in self.told
            if is_lost == ((partition, at) in stands)
        ]

    def _open_name(self, name: str) -> int:
        """The client asks the owner of `__meta`."""
        return 0

    def ask(self, call: Call, kind: object, timeout: float) -> list[Any]:
        match call:
            case ListTopics():
                return [topic.record for topic in self.topics]
            case DescribePartitions():
                return [self._describe((call.topic, number), proved=call.proved) for number in call.partitions or ()]
            case _:
                raise AssertionError(call)

    def _describe(self, partition: PartitionId, *, proved: bool) -> PartitionRecord:
        """Whoever takes itself for the owner tells it; `proved`: only who is."""
        owners = self._owners_of(partition)
        if proved:
            owners = [core for core in owners if core.epoch == self.standing.log(partition).claims()[-1]]
        if not owners:
            raise ParamstreamTimeout("no record counts that was written since")
        return self.telling.choice(owners).describe(0, self.clock.now_ns)

    def _owners_of(self, partition: PartitionId) -> list[PartitionCore]:
        """More than one, where some do not know yet that they were taken over."""
        owned = [each.partitions.owned.get(partition) for each in self.running.values() if self.is_awake(each)]
        return [each.core for each in owned if each is not None and each.error is None]
