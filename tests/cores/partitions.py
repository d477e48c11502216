"""A partition core over a list for a log, and a session that numbers its events as a real one does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paramstream.brokers.checks import Role
from paramstream.brokers.effects import Answer, Append, Effect, FanOut, Origin
from paramstream.brokers.partition import PartitionCore, PartitionSettings, Persistence
from paramstream.consistency.vector import PartitionId
from paramstream.errors import ParamstreamError
from paramstream.events.codec import EventFrame, Head, decode_event, encode_event
from paramstream.events.digest import tensor_digest, version_digest
from paramstream.events.kinds import Chunk, Commit, Kind, Part, PartRef, Payload, Put, PutItem, Segment, TensorSpec
from paramstream.transport.calls import JoinedPartition, Unconfirmed
from paramstream.transport.messages import Ack, Refused

PARTITION: PartitionId = (77, 3)
CLOCK_S = 1_800_000_000.0
PEER = b"peer-0"


@dataclass
class Log:
    """What a log would hold: frames in order, and how many of them a power failure leaves."""

    frames: list[EventFrame] = field(default_factory=list[EventFrame])

    def do(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Append) and effect.lasting:
                self.frames.append(decode_event(bytes(effect.frame)))

    def recover_into(self, core: PartitionCore) -> int:
        """As the log's `recover` does: the newest base, what counts behind it; returns the greatest claim."""
        bases = [index for index, frame in enumerate(self.frames) if frame.kind is Kind.BASE]
        at = bases[-1] if bases else -1
        core.recover(self.frames[at] if bases else None, self.records(at + 1))
        claims = [frame.payload for frame in self.frames if frame.kind is Kind.CLAIM]
        return max((getattr(claim, "epoch", 0) for claim in claims), default=0)

    def records(self, start: int = 0) -> list[EventFrame]:
        return [frame for frame in self.frames[start:] if frame.kind not in (Kind.CLAIM, Kind.BASE)]


@dataclass
class Machine:
    """What stands around the core: boot id, failed writes, the clocks."""

    boot: str = "boot-0"
    failed_writes: int = 0
    clock_s: float = CLOCK_S
    monotonic_ns: int = 10**12


def start(
    log: Log | None = None,
    role: Role = "state",
    persistence: Persistence = "write_back",
    machine: Machine | None = None,
    partition: PartitionId = PARTITION,
    retain_versions: int = 8,
) -> PartitionCore:
    """A core that has taken over what `log` holds and accepts events; the log is synced."""
    log, machine = log or Log(), machine or Machine()
    core = PartitionCore(partition, PartitionSettings(role, persistence, retain_versions, "models"))
    last_claim = log.recover_into(core)
    log.frames.append(decode_event(core.claim(last_claim, machine.clock_s, nonce=5, owner="broker-0")))
    log.do(core.open(int(machine.clock_s * 1e9), machine.monotonic_ns, machine.boot, machine.failed_writes))
    core.synced(core.sequenced)
    return core


@dataclass
class Session:
    """One producer's session with one partition."""

    core: PartitionCore
    name: str = "trainer-0"
    incarnation: int = 1
    sequence: int = 0
    """The last one given."""
    last: int = 0
    """The last one that stands, as far as the session knows."""
    epoch: int = 0
    serial: int = 1
    """Of the connection."""
    monotonic_ns: int = 10**12
    log: Log = field(default_factory=Log)

    def join(self, unconfirmed: Sequence[int] = (), sent_in: int = 0) -> JoinedPartition:
        topic, number = self.core.partition
        joined = self.core.join(
            self.name,
            self.incarnation,
            Unconfirmed(topic, number, sent_in or self.epoch, tuple(unconfirmed)),
            self.serial,
        )
        self.epoch, self.last = joined.epoch, joined.last_sequence
        self.sequence = max(self.sequence, self.last)
        return joined

    def frame(
        self,
        payload: Payload,
        bulk: Sequence[bytes] = (),
        *,
        sequence: int | None = None,
        previous: int | None = None,
        confirmed: int = 0,
        source: tuple[int, int] | None = None,
    ) -> EventFrame:
        head = Head(
            self.name,
            self.incarnation,
            self.sequence + 1 if sequence is None else sequence,
            self.last if previous is None else previous,
            self.epoch,
            confirmed,
            source=source,
        )
        return decode_event(encode_event(self.core.partition, head, payload, bulk))

    def send(self, frame: EventFrame, log_has_room: bool = True) -> list[Effect]:
        self.monotonic_ns += 1_000
        effects = self.core.sequence(frame, Origin(PEER, self.serial), self.monotonic_ns, log_has_room)
        self.log.do(effects)
        if any(isinstance(effect, Append) for effect in effects):
            self.sequence = self.last = frame.head.sequence
        return effects

    def write(self, payload: Payload, bulk: Sequence[bytes] = ()) -> int:
        """Send an event that must be accepted; returns its sequence."""
        effects = self.send(self.frame(payload, bulk))
        refusals = [e.message for e in effects if isinstance(e, Answer) and isinstance(e.message, Refused)]
        assert not refusals, refusals
        assert self.last == self.sequence
        return self.sequence

    def refusal(self, payload: Payload, bulk: Sequence[bytes] = ()) -> ParamstreamError:
        """Send an event that must be refused; returns the error."""
        return refused(self.send(self.frame(payload, bulk))).error.raised()


def refused(effects: Sequence[Effect]) -> Refused:
    (effect,) = effects
    assert isinstance(effect, Answer) and isinstance(effect.message, Refused), effect
    return effect.message


def acked(effects: Sequence[Effect]) -> list[tuple[int, int]]:
    """(sequence, position) of all acks."""
    return [
        answer
        for effect in effects
        if isinstance(effect, Answer) and isinstance(effect.message, Ack)
        for answer in effect.message.answers
    ]


def fanned_out(effects: Sequence[Effect]) -> list[int]:
    return [effect.position for effect in effects if isinstance(effect, FanOut)]


def put(key: bytes = b"k", value: bytes = b"v") -> tuple[Put, list[bytes]]:
    return Put(items=(PutItem(key, len(value)),)), [value]


@dataclass
class Weights:
    """Publishes versions of float32 tensors of one row each through a session."""

    session: Session

    def publish(
        self,
        version: int,
        tensors: dict[str, bytes],
        *,
        ties: dict[str, str] | None = None,
        schema: str = "same",
        rewind: bool = False,
    ) -> list[Effect]:
        specs, ref = self.stage(version, tensors, ties)
        return self.session.send(self.session.frame(self.commit(version, [ref], specs, schema, rewind)))

    def stage(
        self, version: int, tensors: dict[str, bytes], ties: dict[str, str] | None = None
    ) -> tuple[list[TensorSpec], PartRef]:
        """Chunks and a part; a tied tensor names another one of `tensors`."""
        specs: list[TensorSpec] = []
        for name, data in tensors.items():
            chunk = self.session.write(Chunk(version, (Segment(name, 0, len(data)),)), [data]) if data else 0
            specs.append(spec(name, data, chunk))
        for name, target in (ties or {}).items():
            specs.append(spec(name, tensors[target], 0, tied_to=target))
        sequence = self.session.write(Part(version, tuple(specs)))
        return specs, PartRef(self.session.name, self.session.incarnation, sequence)

    def commit(
        self, version: int, parts: list[PartRef], specs: list[TensorSpec], schema: str = "same", rewind: bool = False
    ) -> Commit:
        return Commit(version, tuple(parts), version_digest(specs), schema, rewind)


def spec(name: str, data: bytes, chunk: int, tied_to: str = "") -> TensorSpec:
    return TensorSpec(name, "float32", (len(data) // 4,), tensor_digest(data), len(data), chunk, chunk, tied_to)
