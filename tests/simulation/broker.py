"""A broker of the simulation: the real partition and fan-out cores over a simulated disk, and the little that a shell adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Concatenate, ParamSpec

import msgspec

from paramstream.brokers.checks import Role
from paramstream.brokers.effects import Answer, Append, Effect, FanOut, Origin
from paramstream.brokers.fanout import FanOutCore, Send
from paramstream.brokers.partition import PartitionCore, PartitionSettings
from paramstream.brokers.reports import Reports
from paramstream.brokers.retention import LogUse
from paramstream.consistency.vector import PartitionId
from paramstream.errors import BindFailed, CorruptLog, LogTruncated, OutcomeUnknown, ParamstreamError, StorageFull
from paramstream.eventlog.memory import MemoryLog
from paramstream.events.codec import EventFrame, decode_event, position_of
from paramstream.transport.calls import (
    DescribePartitions,
    Join,
    Joined,
    ListTopics,
    PartitionRecord,
    StoppedPartition,
    Unconfirmed,
)
from paramstream.transport.messages import (
    Credit,
    Demoted,
    Fetch,
    Fetched,
    Follow,
    Heads,
    Heartbeat,
    Refused,
    Report,
    Unfollow,
)
from paramstream.transport.wire import Message, WireError

from .disk import Disk, WatchedLog, WatchedPartition
from .files import Killed
from .memory import WatchedMemory
from .network import Asked, Connection, FetchedFrames, Item, Told
from .rows import table_of
from .topics import SimTopic

RING_BYTES = 1500
"""Small, so that followers fall out of it."""

RETAINED = 2
"""Versions that the log keeps, however full it is."""


@dataclass
class Owned:
    core: PartitionCore
    fanout: FanOutCore
    log: WatchedPartition | WatchedMemory
    """Where events are appended and fetched from: under persistence "none" the process's memory."""
    durable: WatchedPartition
    """Where claims and epoch records go: the same log, but for "none"."""
    shown: int = 0
    error: ParamstreamError | None = None
    """Why its log takes nothing more."""

    def append(self, effect: Append) -> None:
        self.log.append(effect.frame)
        if effect.lasting and self.log is not self.durable:
            self.durable.append(effect.frame)


@dataclass(frozen=True)
class Waiting:
    """A join's answer, until all that it needs is durable."""

    connection: Connection
    join: Join
    joined: Joined
    needs: Mapping[PartitionId, int]


P = ParamSpec("P")


def while_alive(method: Callable[Concatenate[SimBroker, P], None]) -> Callable[Concatenate[SimBroker, P], None]:
    """Does nothing once the process was killed, and ends where it is killed amidst it."""

    def guarded(broker: SimBroker, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if not broker.is_dead:
            try:
                method(broker, *args, **kwargs)
            except Killed:
                broker.is_dead = True

    return guarded


class SimBroker:
    """From one start to its end. `now` gives seconds that only go forward."""

    def __init__(self, disk: Disk, topics: Iterable[SimTopic], incarnations: Mapping[str, int]) -> None:
        self.name = f"broker-{disk.starts}"
        self._disk = disk
        self._reports = Reports()
        self._topics = list(topics)
        self._incarnations = incarnations
        self.owned: dict[PartitionId, Owned] = {}
        self.connections: dict[bytes, Connection] = {}
        self._waiting: list[Waiting] = []
        self.now = 0.0
        self.log_has_room = True
        self.is_dead = False
        """The process was killed amidst something, or could not start."""
        self._log: WatchedLog | None = None
        self._memory = MemoryLog()

    @property
    def _ns(self) -> int:
        return int(self.now * 1e9)

    @property
    def is_sick(self) -> bool:
        """Whoever runs it has to start it again."""
        return self.is_dead or any(owned.error is not None for owned in self.owned.values())

    def core(self, partition: PartitionId) -> PartitionCore | None:
        """None where its log takes nothing more."""
        owned = self.owned.get(partition)
        return owned.core if owned is not None and owned.error is None else None

    @while_alive
    def start(self, now: float, clock_s: float, nonces: Iterable[int]) -> None:
        """Take over every partition, as far as there are `nonces` (a start may be cut short)."""
        self.now = now
        try:
            self._log = self._disk.open()
        except (BindFailed, CorruptLog, StorageFull):
            self.is_dead = True
            return
        partitions = [(topic, number) for topic in self._topics for number in range(topic.partitions + 1)]
        for (topic, number), nonce in zip(partitions, nonces, strict=False):
            role: Role = "weights" if number == topic.partitions else "state"
            self._open(
                (topic.id, number), PartitionSettings(role, topic.persistence, RETAINED, topic.name), clock_s, nonce
            )

    def _open(self, partition: PartitionId, settings: PartitionSettings, clock_s: float, nonce: int) -> None:
        assert self._log is not None
        durable = self._log.open(partition)
        lasts = settings.persistence != "none"
        log = durable if lasts else self._disk.memory(self._memory.anew(partition))
        core = PartitionCore(partition, settings)
        owned = self.owned[partition] = Owned(core, FanOutCore(RING_BYTES), log, durable)
        try:
            recovered = durable.recover()
            records = list[EventFrame]()
            if lasts:
                core.recover(recovered.base, recovered.records)
            else:
                records = core.recover_epochs(recovered.records)
            claim = core.claim(recovered.last_claim, clock_s, nonce, "owner")
            core.reread(durable.claim(claim))
            if isinstance(log, WatchedMemory):
                log.replay(records, "owner")
                log.append(claim)
            effects = core.open(int(clock_s * 1e9), self._ns, self._log.boot, self._log.failed_writes)
            for effect in effects + table_of(core, self._ns):
                if isinstance(effect, Append):
                    owned.append(effect)
            durable.sync()
            core.synced(log.sync())
        except (CorruptLog, StorageFull) as error:
            owned.error = error
        owned.shown = core.accepted
        core.trimmed(log.start)

    @while_alive
    def stop(self) -> None:
        """Sync, and give the log back."""
        if self._log is not None:
            with suppress(CorruptLog, StorageFull):
                self._log.close()

    @while_alive
    def check(self) -> None:
        """Once all has settled: what readers are given of the log is what stands."""
        for owned in self.owned.values():
            if owned.error is None:
                owned.log.check()

    # --- what comes in ----------------------------------------------------------------------------------------------------

    @while_alive
    def received(self, connection: Connection, item: Item) -> None:
        match item:
            case bytes():
                self._event(connection, item)
            case Asked(call=Join() as join):
                self._join(connection, join)
            case Asked(call=DescribePartitions() as call):
                connection.answer(Told(call, self.describe(call)))
            case Asked(call=ListTopics() as call):
                connection.answer(Told(call, [topic.record for topic in self._topics]))
            case Follow():
                owned = self.owned[item.topic, item.partition]
                if owned.error is not None:
                    connection.answer(Demoted(item.topic, item.partition, item.after, 0, WireError.of(owned.error)))
                    return
                connection.follows.add((item.topic, item.partition))
                heads, ends = owned.core.heads(self._ns), owned.core.ends
                self._send_all(owned, owned.fanout.follow(connection.id, item, heads, ends))
            case Unfollow():
                connection.follows.discard((item.topic, item.partition))
                self.owned[item.topic, item.partition].fanout.unfollow(connection.id)
            case Credit():
                owned = self.owned[item.topic, item.partition]
                self._send_all(owned, owned.fanout.credit(connection.id, item.consumed_bytes))
            case Report():
                self._reports.take(item)
            case _:
                raise AssertionError(item)

    def describe(self, call: DescribePartitions) -> list[PartitionRecord]:
        """Of those that are well."""
        numbers = [number for topic, number in self.owned if topic == call.topic]
        asked = [self.owned[call.topic, number] for number in (numbers if call.partitions is None else call.partitions)]
        return [owned.core.describe(owned.log.start, self._ns) for owned in asked if owned.error is None]

    @while_alive
    def fetch(self, connection: Connection, fetch: Fetch, count: int) -> None:
        owned = self.owned[fetch.topic, fetch.partition]
        frames, wire = list[memoryview](), None
        try:
            batch = owned.log.read(fetch.after, fetch.max_bytes)
            frames = [frame for frame in batch.frames if position_of(frame) <= owned.shown][:count]
        except (LogTruncated, CorruptLog) as error:
            wire = WireError.of(error)
        end = position_of(frames[-1]) if frames else fetch.after
        answer = Fetched(fetch.id, fetch.topic, fetch.partition, len(frames), end, owned.shown, wire)
        connection.fetched.append(FetchedFrames(answer, frames))

    def forget(self, connection: Connection) -> None:
        """All that the connection brought is taken."""
        self.connections.pop(connection.id, None)
        for partition in connection.follows:
            self.owned[partition].fanout.unfollow(connection.id)

    def _event(self, connection: Connection, data: bytes) -> None:
        frame = decode_event(bytearray(data))
        owned = self.owned[frame.partition_id]
        if owned.error is None:
            room = self.log_has_room and self._has_room(frame.nbytes)
            origin = Origin(connection.id, connection.serial)
            if self._perform(owned, owned.core.sequence(frame, origin, self._ns, room)):
                return
        assert owned.error is not None
        head = frame.head
        connection.answer(
            Refused(*frame.partition_id, head.incarnation, head.sequence, head.previous, WireError.of(owned.error))
        )

    def _join(self, connection: Connection, join: Join) -> None:
        if join.incarnation != self._incarnations[join.name]:
            connection.answer(Told(join, "Fenced"))
            return
        connection.has_joined = True
        unconfirmed: dict[PartitionId, Unconfirmed] = {(u.topic, u.partition): u for u in join.unconfirmed}
        cores = {partition: owned.core for partition, owned in self.owned.items() if owned.error is None}
        stopped = [
            StoppedPartition(*partition, WireError.of(owned.error))
            for partition, owned in self.owned.items()
            if owned.error is not None
        ]
        try:
            joined = Joined(
                tuple(
                    core.join(join.name, join.incarnation, unconfirmed.get(p), connection.serial)
                    for p, core in cores.items()
                ),
                tuple(stopped),
            )
        except OutcomeUnknown:
            return  # over a connection that the session has left: nobody takes the answer
        needs = {partition: core.answers_wait_for for partition, core in cores.items()}
        self._waiting.append(Waiting(connection, join, joined, needs))
        self._give_answers()

    # --- what goes on by itself -------------------------------------------------------------------------------------------

    @while_alive
    def sync(self, partition: PartitionId) -> None:
        owned = self.owned[partition]
        if owned.error is not None:
            return
        try:
            durable = owned.durable.sync()
        except (CorruptLog, StorageFull) as error:
            owned.error = error
        else:
            self._perform(owned, owned.core.synced(durable))
        self._give_answers()

    @while_alive
    def trim(self) -> None:
        """What nobody needs leaves the log, as `brokers.trimming` has it."""
        assert self._log is not None
        use = LogUse(self._log.nbytes, self._log.limit)
        for partition, owned in self.owned.items():
            if owned.error is not None:
                continue
            floor = owned.core.trim_floor(self._reports.leases(partition), use, self._ns)
            if floor > owned.log.start:
                with suppress(CorruptLog, StorageFull):
                    owned.core.trimmed(owned.log.cut(floor))

    def _has_room(self, nbytes: int) -> bool:
        assert self._log is not None
        if self._log.nbytes + nbytes > self._log.limit:
            for partition in self.owned:
                self.sync(partition)
            self.trim()
        return self._log.nbytes + nbytes <= self._log.limit

    @while_alive
    def beat(self) -> None:
        heads = {partition: owned.core.heads(self._ns) for partition, owned in self.owned.items()}
        for connection in list(self.connections.values()):
            told = [
                self._heads_for(connection, partition, head)
                for partition, head in heads.items()
                if connection.has_joined or partition in connection.follows
            ]
            connection.answer(Heartbeat(tuple(told)))

    @while_alive
    def retry(self) -> None:
        for owned in self.owned.values():
            self._send_all(owned, owned.fanout.retry())

    def _heads_for(self, connection: Connection, partition: PartitionId, head: Heads) -> Heads:
        if partition not in connection.follows:
            return head
        return msgspec.structs.replace(head, sent=self.owned[partition].fanout.sent(connection.id))

    # --- what the cores decided ---------------------------------------------------------------------------------------------

    def _perform(self, owned: Owned, effects: Iterable[Effect]) -> bool:
        """False where the log does not take what was to be appended: that is neither answered nor fanned out."""
        for effect in effects:
            match effect:
                case Append():
                    if not self._append(owned, effect):
                        return False
                case FanOut():
                    owned.shown = effect.position
                    self._send_all(owned, owned.fanout.accepted(effect.frame, effect.position))
                case Answer():
                    connection = self.connections.get(effect.peer)
                    if connection is not None:
                        connection.answer(effect.message)
        if owned.log.wants_base and owned.core.durable == owned.core.sequenced:
            self._append(owned, Append(owned.core.base(), owned.core.sequenced, lasting=False))
        return True

    def _append(self, owned: Owned, effect: Append) -> bool:
        try:
            owned.append(effect)
        except (CorruptLog, StorageFull) as error:
            owned.error = error
        return owned.error is None

    def _send_all(self, owned: Owned, sends: Iterable[Send]) -> None:
        for send in sends:
            connection = self.connections.get(send.peer)
            if connection is None:
                continue
            if isinstance(send.content, Message):
                connection.answer(send.content)
            elif len(connection.down) >= connection.pipe:
                owned.fanout.blocked(send.peer, send.position)
            else:
                connection.answer(bytes(send.content))

    def _give_answers(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if any(self.owned[partition].error is not None for partition in each.needs):
                # It is never given: the session asks again, in ten seconds.
                self._join(each.connection, each.join)
            elif all(self.owned[partition].core.durable >= at for partition, at in each.needs.items()):
                each.connection.answer(Told(each.join, each.joined))
            else:
                self._waiting.append(each)
