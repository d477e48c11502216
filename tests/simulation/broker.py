"""A broker of the simulation: the real partition and fan-out cores over a simulated disk, and the little that a shell adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from paramstream.brokers.checks import Role
from paramstream.brokers.effects import Answer, Append, Effect, FanOut, Origin
from paramstream.brokers.fanout import FanOutCore, Send
from paramstream.brokers.partition import PartitionCore, PartitionSettings
from paramstream.consistency.vector import PartitionId
from paramstream.errors import OutcomeUnknown
from paramstream.events.codec import decode_event
from paramstream.transport.calls import DescribePartitions, Join, Joined, PartitionRecord, Unconfirmed
from paramstream.transport.messages import Credit, Fetch, Fetched, Follow, Heads, Heartbeat, Report, Unfollow
from paramstream.transport.wire import Message

from .disk import Disk, SimLog
from .network import Asked, Connection, FetchedFrames, Item, Told
from .topics import SimTopic

RING_BYTES = 1500
"""Small, so that followers fall out of it."""

BASE_EVERY = 25
"""Records between bases, as a full segment would have it."""


@dataclass
class Owned:
    core: PartitionCore
    fanout: FanOutCore
    log: SimLog
    shown: int = 0
    since_base: int = 0


class SimBroker:
    """From one start to its end. `now` gives seconds that only go forward."""

    def __init__(self, disk: Disk, topics: Iterable[SimTopic], incarnations: Mapping[str, int]) -> None:
        self._disk = disk
        self._topics = list(topics)
        self._incarnations = incarnations
        self.owned: dict[PartitionId, Owned] = {}
        self.connections: dict[bytes, Connection] = {}
        self._waiting: list[tuple[dict[PartitionId, int], Callable[[], None]]] = []
        self.now = 0.0
        self.log_has_room = True

    @property
    def _ns(self) -> int:
        return int(self.now * 1e9)

    def start(self, now: float, clock_s: float, nonces: Iterable[int]) -> None:
        """Take over every partition, as far as there are `nonces` (a start may be cut short)."""
        self.now = now
        partitions = [(topic, number) for topic in self._topics for number in range(topic.partitions + 1)]
        for (topic, number), nonce in zip(partitions, nonces, strict=False):
            role: Role = "weights" if number == topic.partitions else "state"
            self._open((topic.id, number), PartitionSettings(role, topic.persistence, 8, topic.name), clock_s, nonce)

    def _open(self, partition: PartitionId, settings: PartitionSettings, clock_s: float, nonce: int) -> None:
        log = self._disk.log(partition)
        core = PartitionCore(partition, settings)
        core.recover(*log.recovered())
        log.append(core.claim(max(log.claims(), default=0), clock_s, nonce, "owner"))
        for effect in core.open(int(clock_s * 1e9), self._ns, self._disk.boot, 0):
            if isinstance(effect, Append):
                log.append(effect.frame)
        core.synced(log.sync())
        self.owned[partition] = Owned(core, FanOutCore(RING_BYTES), log, core.accepted)

    # --- what comes in ----------------------------------------------------------------------------------------------------

    def received(self, connection: Connection, item: Item) -> None:
        match item:
            case bytes():
                self._event(connection, item)
            case Asked(call=Join() as join):
                self._join(connection, join)
            case Asked(call=DescribePartitions() as call):
                connection.answer(Told(call, self.describe(call)))
            case Follow():
                owned = self.owned[item.topic, item.partition]
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
                pass
            case _:
                raise AssertionError(item)

    def describe(self, call: DescribePartitions) -> list[PartitionRecord]:
        return [self.owned[call.topic, number].core.describe(0, self._ns) for number in call.partitions or ()]

    def fetch(self, connection: Connection, fetch: Fetch, count: int) -> None:
        owned = self.owned[fetch.topic, fetch.partition]
        frames = owned.log.read(fetch.after, owned.shown, count)
        end = frames[-1].position if frames else fetch.after
        answer = Fetched(fetch.id, fetch.topic, fetch.partition, len(frames), end, owned.shown, None)
        connection.fetched.append(FetchedFrames(answer, [memoryview(frame.buffer) for frame in frames]))

    def forget(self, connection: Connection) -> None:
        """All that the connection brought is taken."""
        self.connections.pop(connection.id, None)
        for partition in connection.follows:
            self.owned[partition].fanout.unfollow(connection.id)

    def _event(self, connection: Connection, data: bytes) -> None:
        frame = decode_event(bytearray(data))
        owned = self.owned[frame.partition_id]
        self._perform(
            owned, owned.core.sequence(frame, Origin(connection.id, connection.serial), self._ns, self.log_has_room)
        )

    def _join(self, connection: Connection, join: Join) -> None:
        if join.incarnation != self._incarnations[join.name]:
            connection.answer(Told(join, "Fenced"))
            return
        connection.has_joined = True
        unconfirmed: dict[PartitionId, Unconfirmed] = {(u.topic, u.partition): u for u in join.unconfirmed}
        cores = {partition: owned.core for partition, owned in self.owned.items()}
        try:
            joined = Joined(
                tuple(
                    core.join(join.name, join.incarnation, unconfirmed.get(p), connection.serial)
                    for p, core in cores.items()
                )
            )
        except OutcomeUnknown:
            return  # over a connection that the session has left: nobody takes the answer
        needs = {partition: core.answers_wait_for for partition, core in cores.items()}
        self._waiting.append((needs, lambda: connection.answer(Told(join, joined))))
        self._give_answers()

    # --- what goes on by itself -------------------------------------------------------------------------------------------

    def sync(self, partition: PartitionId) -> None:
        owned = self.owned[partition]
        self._perform(owned, owned.core.synced(owned.log.sync()))
        self._give_answers()

    def beat(self) -> None:
        heads = {partition: owned.core.heads(self._ns) for partition, owned in self.owned.items()}
        for connection in list(self.connections.values()):
            told = [
                self._heads_for(connection, partition, head)
                for partition, head in heads.items()
                if connection.has_joined or partition in connection.follows
            ]
            connection.answer(Heartbeat(tuple(told)))

    def retry(self) -> None:
        for owned in self.owned.values():
            self._send_all(owned, owned.fanout.retry())

    def _heads_for(self, connection: Connection, partition: PartitionId, head: Heads) -> Heads:
        if partition not in connection.follows:
            return head
        return msgspec.structs.replace(head, sent=self.owned[partition].fanout.sent(connection.id))

    # --- what the cores decided ---------------------------------------------------------------------------------------------

    def _perform(self, owned: Owned, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Append():
                    owned.log.append(effect.frame)
                    owned.since_base += 1
                case FanOut():
                    owned.shown = effect.position
                    self._send_all(owned, owned.fanout.accepted(effect.frame, effect.position))
                case Answer():
                    connection = self.connections.get(effect.peer)
                    if connection is not None:
                        connection.answer(effect.message)
        if owned.since_base >= BASE_EVERY:
            owned.since_base = 0
            owned.log.append(owned.core.base())

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
        still: list[tuple[dict[PartitionId, int], Callable[[], None]]] = []
        for needs, give in self._waiting:
            if all(self.owned[partition].core.durable >= at for partition, at in needs.items()):
                give()
            else:
                still.append((needs, give))
        self._waiting = still
