"""An owner of partitions in a few lines: it sequences, refuses and answers joins by the protocol's rules, and keeps it all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paramstream.consistency.epochs import EpochEnds
from paramstream.consistency.position import epoch_of, position
from paramstream.consistency.vector import PartitionId
from paramstream.errors import Fenced, InvalidEvent, ParamstreamError
from paramstream.events.codec import EventFrame, decode_event
from paramstream.events.digest import version_digest
from paramstream.events.kinds import Commit, Part, Table, TensorSpec
from paramstream.transport.calls import (
    AwaitDurable,
    Join,
    Joined,
    JoinedPartition,
    LastEvent,
    PrepareCommit,
    PreparedCommit,
    SealedVersion,
    StoppedPartition,
    Unconfirmed,
)
from paramstream.transport.messages import Ack, Heads, Heartbeat, Refused
from paramstream.transport.wire import WireError


@dataclass
class OwnedPartition:
    id: PartitionId
    epoch: int = 1
    offset: int = 0
    durable: int = 0
    resend: bool = False
    """What the join answers of the epoch before."""
    events: list[tuple[int, EventFrame]] = field(default_factory=list[tuple[int, EventFrame]])
    """(position, frame) of what stands, in order."""
    lost: list[tuple[int, EventFrame]] = field(default_factory=list[tuple[int, EventFrame]])
    ends: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    tables: tuple[Table, ...] = ()
    schema: tuple[TensorSpec, ...] | None = None
    sealed: tuple[SealedVersion, ...] = ()

    @property
    def accepted(self) -> int:
        return position(self.epoch, self.offset)


class PartitionOwner:
    """Owns some partitions; `offer` takes an event frame and gives the answer to it."""

    def __init__(self, *partitions: PartitionId) -> None:
        self.partitions = {partition: OwnedPartition(partition) for partition in partitions}
        self.incarnations: dict[str, int] = {}
        self.joined: dict[PartitionId, dict[str, int]] = {partition: {} for partition in partitions}
        self.stopped: dict[PartitionId, ParamstreamError] = {}
        """Of these the log takes nothing more, and a join's answer says why."""
        self.refuse_next: ParamstreamError | None = None
        """The next event that follows on is refused with this."""

    def add(self, *partitions: PartitionId) -> None:
        for partition in partitions:
            self.partitions[partition] = OwnedPartition(partition)
            self.joined[partition] = {}

    def open(self, name: str) -> int:
        self.incarnations[name] = max(self.incarnations.values(), default=0) + 1
        return self.incarnations[name]

    def join(self, call: Join) -> Joined:
        if self.incarnations[call.name] != call.incarnation:
            raise Fenced(f"producer {call.name!r} has a newer session")
        asked = {(u.topic, u.partition): u for u in call.unconfirmed}
        well = [partition for key, partition in self.partitions.items() if key not in self.stopped]
        return Joined(
            tuple(self._join(partition, call, asked) for partition in well),
            tuple(StoppedPartition(*partition, WireError.of(error)) for partition, error in self.stopped.items()),
        )

    def _join(self, partition: OwnedPartition, call: Join, asked: Mapping[PartitionId, Unconfirmed]) -> JoinedPartition:
        self.joined[partition.id][call.name] = call.incarnation
        own = [(at, event) for at, event in partition.events if event.head.producer == call.name]
        mine = [(at, event) for at, event in own if event.head.incarnation == call.incarnation]
        last = None
        if own:
            at, event = own[-1]
            head = event.head
            source = next((event.head.source for _, event in reversed(own) if event.head.source is not None), None)
            last = LastEvent(head.incarnation, head.sequence, at, head.own, head.observed, source)
        sent = asked.get(partition.id)
        wanted = set(sent.sequences) if sent is not None else set[int]()
        return JoinedPartition(
            *partition.id,
            partition.epoch,
            last,
            mine[-1][1].head.sequence if mine else 0,
            tuple((event.head.sequence, at) for at, event in mine if event.head.sequence in wanted),
            partition.resend,
            tuple(partition.ends),
            partition.accepted,
            partition.durable,
            partition.tables,
            partition.schema,
            partition.sealed,
        )

    def offer(self, frame: bytes | bytearray | memoryview) -> Ack | Refused:
        event = decode_event(bytes(frame))
        partition, head = self.partitions[event.partition_id], event.head
        mine = [
            (other.head.sequence, at)
            for at, other in partition.events
            if (other.head.producer, other.head.incarnation) == (head.producer, head.incarnation)
        ]
        last = mine[-1][0] if mine else 0

        def refuse(error: ParamstreamError, **more: object) -> Refused:
            wire = WireError.of(error)
            return Refused(*partition.id, head.incarnation, head.sequence, last, wire, **more)  # type: ignore[arg-type]

        if self.incarnations[head.producer] != head.incarnation:
            return refuse(Fenced("a newer session is served"))
        if head.joined_epoch != partition.epoch:
            return refuse(InvalidEvent("another epoch"), rejoin=True)
        if self.joined[partition.id].get(head.producer) != head.incarnation:
            return refuse(Fenced("it has not joined"))
        repeat = dict(mine).get(head.sequence)
        if repeat is not None:
            return Ack(*partition.id, head.incarnation, ((head.sequence, repeat),))
        if head.previous != last:
            return refuse(InvalidEvent("a gap"), gap=True)
        if self.refuse_next is not None:
            error, self.refuse_next = self.refuse_next, None
            return refuse(error)
        partition.offset += 1
        partition.events.append((partition.accepted, event))
        self._seal(partition, event)
        return Ack(*partition.id, head.incarnation, ((head.sequence, partition.accepted),))

    def _seal(self, partition: OwnedPartition, event: EventFrame) -> None:
        commit = event.payload
        if isinstance(commit, Commit):
            named = {part.sequence for part in commit.parts}
            partition.schema = tuple(
                spec
                for _, other in partition.events
                if isinstance(other.payload, Part) and other.head.sequence in named
                for spec in other.payload.tensors
            )
            sealed = SealedVersion(commit.version, commit.digest, partition.accepted)
            partition.sealed = (*partition.sealed, sealed)

    def prepare(self, call: PrepareCommit) -> PreparedCommit:
        """Of the weight partition that holds the parts, wherever that is; it judges nothing."""
        wanted = {(ref.producer, ref.incarnation, ref.sequence) for ref in call.parts}
        specs = [
            spec
            for partition in self.partitions.values()
            for _, event in partition.events
            if isinstance(event.payload, Part)
            and (event.head.producer, event.head.incarnation, event.head.sequence) in wanted
            for spec in event.payload.tensors
        ]
        return PreparedCommit(version_digest(specs), tuple(specs))

    def await_durable(self, call: AwaitDurable) -> list[tuple[int, int, int]] | None:
        """The lost ones, or None where an answer has to wait."""
        lost: list[tuple[int, int, int]] = []
        for topic, number, at in call.positions:
            partition = self.partitions[topic, number]
            if EpochEnds(partition.ends).is_lost(at):
                lost.append((topic, number, at))
            elif at > partition.durable:
                return None
        return lost

    def sync(self) -> Heartbeat:
        """Everything accepted is durable: the heartbeat that says so."""
        for partition in self.partitions.values():
            partition.durable = partition.accepted
        return self.heartbeat()

    def heartbeat(self) -> Heartbeat:
        return Heartbeat(tuple(Heads(*p.id, p.accepted, p.durable, 0, p.epoch) for p in self.partitions.values()))

    def takeover(self, partition: PartitionId, lose: int = 0, resend: bool = False) -> None:
        """A new epoch; the last `lose` events of the one before are lost, but for durable ones."""
        owned = self.partitions[partition]
        end = max(position(owned.epoch, max(0, owned.offset - lose)), owned.durable)
        owned.lost.extend(entry for entry in owned.events if epoch_of(entry[0]) == owned.epoch and entry[0] > end)
        owned.events = [entry for entry in owned.events if epoch_of(entry[0]) != owned.epoch or entry[0] <= end]
        owned.ends.append((owned.epoch, end))
        owned.epoch, owned.offset, owned.resend = owned.epoch + 1, 0, resend
        owned.durable = owned.accepted
        self.joined[partition] = {}
