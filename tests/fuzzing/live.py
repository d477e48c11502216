"""A running broker to which a peer says anything: it goes on to answer, whatever came before.

The broker is kept from input to input, as a real one is, and begun anew now and then, because what it was told grows.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

import msgspec

import paramstream as ps
from fuzzing import sealing, wire
from fuzzing.examples import examples_of, joined, split
from fuzzing.target import Target
from paramstream.consistency.vector import PartitionId
from paramstream.events.codec import decode_event
from paramstream.events.kinds import PartRef, Table
from paramstream.transport.calls import (
    AnnouncedSnapshot,
    AnnounceSnapshots,
    AwaitDurable,
    Call,
    CreateTable,
    CreateTopic,
    DeleteTopic,
    DescribeBroker,
    DescribePartitions,
    DescribeStorage,
    Join,
    ListReplicas,
    ListTopics,
    ListVersions,
    OpenProducer,
    OpenReplica,
    PrepareCommit,
    TopicRecord,
    Unconfirmed,
)
from paramstream.transport.messages import (
    FORMAT,
    Credit,
    Fetch,
    Fetched,
    FetchFile,
    Follow,
    Hello,
    Report,
    Request,
    Unfollow,
    Welcome,
    encode_message,
)
from paramstream.transport.wire import Message
from wire.peer import Peer, Writer

KEPT_FOR = 300
"""Inputs."""

MAX_PARTITIONS = 4
"""A topic of a thousand is right, and takes seconds."""


TOPIC = 1 << 40
"""Stands in messages for the id of the broker's topic, which is another one each time."""

_ENCODED = msgspec.msgpack.encode(TOPIC)


class World:
    """One broker with one topic, and the addresses where it listens."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        self.broker = self._opened.enter_context(ps.Broker(bind="tcp://127.0.0.1:0", log="memory:"))
        with Peer(self.broker.endpoint) as peer:
            self.welcome = peer.hello()
            peer.request(CreateTopic("model", 1, "write_back", 8, True), TopicRecord)
            (topic,) = peer.request(ListTopics(), list[TopicRecord])
        self.topic: int = topic.id
        self.inputs = 0

    def close(self) -> None:
        self._opened.close()


_worlds: list[World] = []


def world() -> World:
    if _worlds and _worlds[0].inputs >= KEPT_FOR:
        close()
    if not _worlds:
        _worlds.append(World())
    _worlds[0].inputs += 1
    return _worlds[0]


def close() -> None:
    while _worlds:
        _worlds.pop().close()


def broker(data: bytes) -> None:
    """Pieces, each a message: the first byte says what it is (m: control, f: for the fetch thread, s and w: an event, else as it is)."""
    at = world()
    with Peer(at.broker.endpoint) as peer, Peer(at.welcome.fetch_address.replace("*", "127.0.0.1")) as fetcher:
        peer.hello()
        writer = peer.join("trainer-0")
        for piece in split(data, 8):
            _say(at, peer, fetcher, writer, piece[:1], piece[1:])
        peer.say(Hello(FORMAT))
        peer.hear(Welcome, 20.0)
        topics = peer.request(ListTopics(), list[TopicRecord])
        assert isinstance(topics, list)
        peer.request(DescribeBroker(), msgspec.Raw)
        fetcher.say(Fetch(77, at.topic, 0, 0, 1 << 20))
        while fetcher.hear(Fetched, 20.0).id != 77:
            pass


def _say(at: World, peer: Peer, fetcher: Peer, writer: Writer, where: bytes, content: bytes) -> None:
    match where:
        case b"m":
            peer.send(_bounded(b"PC\x01" + content.replace(_ENCODED, msgspec.msgpack.encode(at.topic))))
        case b"f":
            fetcher.send(b"PC\x01" + content.replace(_ENCODED, msgspec.msgpack.encode(at.topic)))
        case b"s" | b"w":
            _send_event(writer, (at.topic, int(where == b"w")), content)
        case _:
            peer.send(content)


def _bounded(message: bytes) -> bytes:
    """A request for a topic of very many partitions is not made."""
    try:
        tag, number, call = msgspec.msgpack.decode(message[3:])
        if tag == "Request" and call[0] == "CreateTopic" and call[2] > MAX_PARTITIONS:
            return b"PC\x01" + msgspec.msgpack.encode([tag, number, [*call[:2], MAX_PARTITIONS, *call[3:]]])
    except (msgspec.DecodeError, RecursionError, ValueError, TypeError, LookupError):
        pass
    return message


def _send_event(writer: Writer, partition: PartitionId, content: bytes) -> None:
    """The session's next event, with the payload of the content, or the content as it is."""
    made = sealing.frame(content)
    try:
        event = decode_event(made)
    except ps.CorruptLog:
        writer.peer.send(made)
        return
    if event.head.producer == writer.producer and partition in writer.epochs:
        writer.send(partition, event.payload, [event.bulk])
    else:
        writer.peer.send(made[:4] + partition[1].to_bytes(4, "little") + partition[0].to_bytes(8, "little") + made[16:])


def conversations() -> Iterable[bytes]:
    said: list[Message] = [
        Follow(TOPIC, 0, 0, 1 << 20),
        Follow(TOPIC, 1, 5 << 28, 1),
        Credit(TOPIC, 0, 100),
        Unfollow(TOPIC, 1),
        Hello(FORMAT, "replica", 1),
        Report("r", (TOPIC,), ((TOPIC, 7, 5 << 28, "00"),), wire.VECTOR, 3, ((TOPIC, 0, 5),), fetching=((TOPIC, 9),)),
    ]
    calls: list[Call] = [
        CreateTopic("other", 1, "none", 8, True),
        DeleteTopic("other"),
        ListTopics(),
        CreateTable(TOPIC, examples_of(Table)[0], True),
        OpenProducer("trainer-1"),
        OpenReplica("replica"),
        Join("trainer-1", 1, (Unconfirmed(TOPIC, 0, 5, (1, 2)),)),
        ListVersions(TOPIC, 5),
        ListReplicas(TOPIC),
        DescribePartitions(TOPIC, (0, 1)),
        PrepareCommit(TOPIC, 7, (PartRef("trainer-0", 1, 2),), partition=1),
        AwaitDurable(((TOPIC, 0, 5),)),
        DescribeBroker(),
        DescribeStorage(TOPIC),
        AnnounceSnapshots(TOPIC, "k", (AnnouncedSnapshot(f"m-{TOPIC:016x}/snapshot-00000001", "00", ((0, 1, 2),)),)),
    ]
    said += [Request(number, call) for number, call in enumerate(calls)]  # type: ignore[arg-type]
    for at in range(0, len(said), 3):
        yield joined([b"m" + encode_message(each)[3:] for each in said[at : at + 3]])
    kinds = {decode_event(frame).kind.label: frame for frame in wire.frames()}
    yield joined([b"w" + kinds[kind] for kind in ("chunk", "part", "commit")] + [b"s" + kinds["put"]])
    yield joined([b"s" + kinds[kind] for kind in ("put", "delete", "rows", "gradients", "delete_rows")])
    fetches: list[Message] = [Fetch(1, TOPIC, 0, 0, 99), FetchFile(2, TOPIC, 0, "", -1, 0, 99)]
    yield joined([b"f" + encode_message(each)[3:] for each in fetches])


TARGETS = (Target("broker", broker, conversations, errors=(), fixed_bytes=64 << 20, examples=10, close=close),)
