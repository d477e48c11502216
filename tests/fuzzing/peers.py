"""What those who run make of what a peer says: a partition's owner, a producer's session, a replica."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cores.partitions import PEER, start
from fakes.publisher_stage import open_stage
from feeding.fakes import FakeBroker
from fuzzing import sealing
from fuzzing.examples import joined, split
from fuzzing.target import Target
from fuzzing.wire import frames
from paramstream.brokers.checks import Role
from paramstream.brokers.effects import Answer, Append, Origin
from paramstream.brokers.partition import PartitionCore
from paramstream.brokers.state import PartitionState
from paramstream.consumers.replica import Replica
from paramstream.errors import CorruptLog, InvalidEvent, ParamstreamError, UnknownTopic, VersionNotHeld
from paramstream.events.codec import MAX_BASE_BYTES, EventFrame, decode_event, encode_event, stamp_frame
from paramstream.producers.receipt import Receipt
from paramstream.tiers.store import TieredStore
from paramstream.transport.messages import (
    Ack,
    Demoted,
    Fetched,
    Following,
    Heads,
    Heartbeat,
    Moved,
    Refused,
    Response,
    Welcome,
    decode_message,
    encode_message,
)
from paramstream.transport.wire import Message, WireError


def owner(data: bytes) -> None:
    """A partition's owner answers every event, and can write all that it took into a base."""
    role: Role = "weights" if data[:1] == b"w" else "state"
    core = start(role=role)
    core.join("trainer-0", 1, None, 1)
    for number, piece in enumerate(split(data[1:], 8), 1):
        event = decode_event(sealing.frame(piece))
        effects = core.sequence(_as_next(core, event, number), Origin(PEER, 1), 10**12, True)
        for effect in effects:
            if isinstance(effect, Answer):
                encode_message(effect.message)
            elif isinstance(effect, Append):
                decode_event(bytes(effect.frame))
    base = core.state.encode()
    assert PartitionState.decode(base, core.sequenced).encode() == base
    core.versions()
    core.describe(0, 10**12)


def _as_next(core: PartitionCore, event: EventFrame, number: int) -> EventFrame:
    """The event as it would come next, where its head says something that is refused at once."""
    head = event.head
    if head.producer == "trainer-0":
        last = core.state.sessions["trainer-0"].sequence if "trainer-0" in core.state.sessions else 0
        head = msgspec.structs.replace(
            head,
            incarnation=1,
            sequence=max(last + 1, head.sequence),
            previous=last,
            joined_epoch=core.epoch,
            confirmed=0,
        )
    made = encode_event(core.partition, head, event.payload, [event.bulk], limit=MAX_BASE_BYTES)
    return decode_event(made)


def owner_seeds() -> Iterable[bytes]:
    kinds = {decode_event(frame).kind.label: frame for frame in frames()}
    yield b"s" + joined([kinds["put"], kinds["delete"], kinds["rows"]])
    yield b"w" + joined([kinds["chunk"], kinds["part"], kinds["commit"]])


def replica(data: bytes) -> None:
    """A replica to which events come that nobody checked: it serves what is whole, and says of the rest where it stopped. O04"""
    broker = FakeBroker()
    with (
        TieredStore(dram="1MiB") as store,
        Replica(
            ["model"],
            directory=broker.directory,
            make_link=broker.make_link,
            timeout=2.0,
            store=store,
            arrays="numpy",
            start="earliest",
        ) as made,
    ):
        for piece in split(data, 8):
            if piece[:1] == b"m":
                _say(broker, piece[1:])
            else:
                place(broker, piece)
            broker.settle()
            broker.beat()
        made.get(bytes(20))
        try:
            weights = made.weights()
        except VersionNotHeld:
            pass
        else:
            for name in weights:
                weights[name].sum()
        for error in made.status().stopped.values():
            assert isinstance(error, ParamstreamError), error
        made.digest()


def _say(broker: FakeBroker, content: bytes) -> None:
    """As the link hands on what it has decoded."""
    try:
        told = decode_message(b"PC\x01" + content)
    except CorruptLog:
        return
    if isinstance(told, Fetched):
        broker.handler.fetched(told, [])
    elif not isinstance(told, Response | Moved | Welcome):
        broker.handler.message(told)
    broker.handler.drained()


def place(broker: FakeBroker, piece: bytes) -> None:
    """At the next position of the partition where its kind belongs: to the weights, where the first byte says so."""
    writer = broker.weights if piece[:1] == b"w" else broker.state
    made = bytearray(sealing.frame(piece[1:]))
    topic, number = writer.partition
    made[4:16] = number.to_bytes(4, "little") + topic.to_bytes(8, "little")
    stamp_frame(made, position=writer.position + 1, time=writer.time, nonce=1)
    writer.place(made)


def replica_seeds() -> Iterable[bytes]:
    kinds = {decode_event(frame).kind.label: frame for frame in frames()}
    for label, made in kinds.items():
        where = b"w" if label in ("chunk", "part", "commit") else b"s"
        yield joined([where + made])
    yield joined([b"w" + kinds["chunk"], b"w" + kinds["part"], b"w" + kinds["commit"], b"s" + kinds["put"]])
    told: list[Message] = [
        Following(77, 0, 5 << 28, 5 << 28 | 1, 5 << 28, ((4, 4 << 28),), 10**18),
        Demoted(77, 0, 5 << 28, 5 << 28 | 1),
        Demoted(77, 1, 0, 0, WireError.of(UnknownTopic("gone"))),
        Heartbeat((Heads(77, 0, 6 << 28, 5 << 28, 5 << 28, 10**18), Heads(77, 1, 5 << 28, 5 << 28, 0, 10**18))),
        Fetched(1, 77, 0, 0, 5 << 28, 5 << 28 | 1),
        Refused(77, 0, 1, 1, 0, WireError.of(UnknownTopic("gone"))),
        Ack(77, 0, 1, ((1, 5 << 28),)),
    ]
    yield joined([b"s" + kinds["put"], *(b"m" + encode_message(each)[3:] for each in told[:4])])
    yield joined([b"m" + encode_message(each)[3:] for each in told[2:]])


def session(data: bytes) -> None:
    """A producer to which a broker says anything, between its puts: they have outcomes, or wait for them."""
    stage = open_stage()
    stage.link.auto = False
    receipts: list[Receipt] = []
    for piece in split(data, 8):
        receipts.append(stage.publisher.put(b"key%d" % len(receipts), b"value"))
        try:
            told = decode_message(b"PC\x01" + piece)
        except CorruptLog:
            stage.link.deliver(1)
            continue
        if isinstance(told, Ack | Refused):
            stage.session.answered(told)
        elif isinstance(told, Heartbeat):
            stage.session.heartbeat(told)
        elif isinstance(told, Demoted):
            stage.session.deleted(told.topic)
    stage.link.connect()
    stage.link.auto = True
    stage.link.deliver()
    assert {receipt.outcome for receipt in receipts} <= {"pending", "unknown", "accepted", "durable", "lost", "refused"}


def session_seeds() -> Iterable[bytes]:
    said: list[Message] = [
        Ack(7, 0, 1, ((1, 1 << 28 | 1),)),
        Ack(7, 1, 1, ((1, 1 << 28 | 1),)),
        Refused(7, 0, 1, 1, 0, WireError.of(InvalidEvent("wrong", position=3, partition=0))),
        Refused(7, 1, 1, 1, 0, WireError.of(UnknownTopic("gone")), gap=True),
        Refused(7, 0, 1, 1, 0, WireError.of(UnknownTopic("gone")), rejoin=True),
        Heartbeat((Heads(7, 0, 1 << 28 | 2, 1 << 28 | 1, 0, 10**18), Heads(7, 1, 2 << 28, 1 << 28, 0, 10**18))),
        Demoted(7, 0, 0, 0, WireError.of(UnknownTopic("gone"))),
    ]
    yield joined([encode_message(each)[3:] for each in said[:4]])
    yield joined([encode_message(each)[3:] for each in said[2:]])
    yield joined([b"", *(encode_message(each)[3:] for each in said[5:])])


TARGETS = (
    Target("owner", owner, owner_seeds),
    Target("session", session, session_seeds, errors=(), examples=20),
    Target("replica", replica, replica_seeds, errors=(), fixed_bytes=8 << 20),
)
