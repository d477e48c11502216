"""The control frames between clients and brokers: what is said beside the events themselves.

A control frame is `b"PC"`, a format byte, and one MessagePack array tagged with its class. Event frames (`b"PS"`) travel as
they are, in either direction. Fields are only added at the end, so that peers of neighbouring versions understand each other.

A client has two connections to a broker's ROUTER: *up*, on which calling threads send events, and *down*, on which one
thread sends control frames and receives everything. Their routing ids are the client's id with b"u" and b"d" behind it.
Each replica or subscription is a client of its own. A third socket goes to the broker's fetch thread.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..errors import CorruptLog
from .calls import (
    AnnounceSnapshots,
    AwaitDurable,
    CreateTable,
    CreateTopic,
    DeleteTopic,
    DescribeBroker,
    DescribePartitions,
    DescribeStorage,
    Join,
    ListReplicas,
    ListTables,
    ListTopics,
    ListVersions,
    OpenProducer,
    OpenReplica,
    PrepareCommit,
)
from .wire import At, Id, Message, Number, Record, To, WireError

MAGIC = b"PC"
FORMAT = 1
CLIENT_ID_BYTES = 16
UP, DOWN = b"u", b"d"


# --- opening a connection -------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """The first frame on *down*. `name` and `incarnation` are a replica's (empty and 0 for others)."""

    format: int
    name: str = ""
    incarnation: int = 0
    link: bytes = b""
    """Random, of all connections that one link makes one after the other; empty where there is just one."""
    turn: int = 0
    """Greater than that of the link's connections before: what still comes over those, late, is passed over."""


class Owner(Record, frozen=True):
    """A broker and the slots (`slots.py`) that it owns."""

    broker: str
    """As in its `Welcome`."""
    endpoint: str
    slots: tuple[int, ...]


class Welcome(Message, frozen=True):
    """The answer to `Hello`: every partition of the broker's slots is open."""

    broker: str
    """Random, new at each start of the broker: another one means that it was restarted."""
    fetch_address: str
    """Where fetches go; a host of `*` stands for the host that the client connected to."""
    window_bytes: int
    """How many bytes of unanswered events a session may have on the wire."""
    heartbeat_s: float
    generation: int = 0
    """Grows each time that brokers share the slots anew; those of one generation have one and the same `owners`."""
    owners: tuple[Owner, ...] = ()
    """All brokers of the generation. Empty where this one alone owns everything."""


class Moved(Message, frozen=True):
    """A broker's slots have changed, or those of others: its clients connect anew, to all brokers of the new generation."""


class Goodbye(Message, frozen=True):
    """A client closes cleanly, or a broker stops cleanly."""


# --- requests and their answers (calls.py) ----------------------------------------------------------------------------


class Request(Message, frozen=True):
    id: int
    call: (
        AnnounceSnapshots | CreateTopic | DeleteTopic | ListTopics | CreateTable | OpenProducer | OpenReplica | Join
        | ListVersions | ListReplicas | DescribePartitions | PrepareCommit | AwaitDurable | DescribeBroker
        | DescribeStorage | ListTables
    )  # fmt: skip


class Response(Message, frozen=True):
    """`result` is the MessagePack encoding of the answer; empty where there is an error."""

    id: int
    result: msgspec.Raw
    error: WireError | None = None


# --- answers to events --------------------------------------------------------------------------------------------------


class Ack(Message, frozen=True):
    """Events of a session that are accepted: (sequence, position) in order. Acks on a connection are in sequence order."""

    topic: Id
    partition: Number
    incarnation: int
    answers: tuple[tuple[int, At], ...]


class Refused(Message, frozen=True):
    """An event that was turned down; it used up nothing. `last_sequence` is what the next event must name as `previous`.

    What was pipelined behind it is refused too, as a gap (`gap`), and goes again by itself, naming the right one.
    """

    topic: Id
    partition: Number
    incarnation: int
    sequence: int
    last_sequence: int
    error: WireError
    gap: bool = False
    """The event does not follow on `last_sequence`: something before it was refused. It may go again."""
    rejoin: bool = False
    """The event names another epoch: the session joins again."""
    position: At = 0
    """Of the same version with the same digest, sealed before: the outcome is acceptance at this position."""


# --- following a partition ------------------------------------------------------------------------------------------------


class Follow(Message, frozen=True):
    """Fan out the partition's events after position `after` to this client, within `credit_bytes` not yet returned."""

    to = To.OWNER

    topic: Id
    partition: Number
    after: At
    credit_bytes: int


class Unfollow(Message, frozen=True):
    to = To.OWNER
    topic: Id
    partition: Number


class Following(Message, frozen=True):
    """The answer to `Follow`: events come from here on. `ends` are those of finished epochs."""

    topic: Id
    partition: Number
    after: At
    accepted: At
    durable: At
    ends: tuple[tuple[At, At], ...]
    time: int


class Demoted(Message, frozen=True):
    """Nothing more is fanned out to this client after position `after`: it fetches, and follows again when it is near the head.

    Also the answer to a `Follow` from a place that the broker no longer keeps in memory; `error` where it cannot be served.
    Of a partition whose topic was deleted, followers and sessions that joined it hear `UnknownTopic`.
    """

    topic: Id
    partition: Number
    after: At
    accepted: At
    error: WireError | None = None
    ends: tuple[tuple[At, At], ...] = ()
    """In answer to a `Follow`: those of finished epochs."""


class Credit(Message, frozen=True):
    """`consumed_bytes` in all have been taken off the hands of the transport since `Follow`."""

    to = To.OWNER

    topic: Id
    partition: Number
    consumed_bytes: int


class Heads(Record, frozen=True):
    """A partition's heads in a heartbeat."""

    topic: Id
    partition: Number
    accepted: At
    durable: At
    sent: At
    """The last position fanned out to this peer; 0 if it does not follow."""
    time: int
    """The partition's time, ns since 1970."""


class Heartbeat(Message, frozen=True):
    """Every `heartbeat_s`, and at most every 5 ms when a durable head has moved; of the partitions the peer joined or follows."""

    heads: tuple[Heads, ...]


class Report(Message, frozen=True):
    """A replica's state, every 0.5 s; renews its leases."""

    name: str
    topics: tuple[Id, ...]
    served: tuple[tuple[Id, int, At, str], ...]
    """(topic, version, commit position, digest in hex) of each topic that serves a version."""
    applied: bytes
    """The encoded vector of applied positions."""
    lag_events: int
    needs: tuple[tuple[Id, Number, At], ...]
    """Leases: (topic, partition, position): what lies after the position is still needed. A weight partition is named only where
    every version is wanted; the versions of `served` and `fetching` are held without that."""
    error: str = ""
    age_s: float = 0.0
    """Filled in by the broker when it answers: seconds since the report came."""
    failed: tuple[tuple[Id, WireError], ...] = ()
    """(topic, what keeps its weights, or a module bound to them, from the newest version)."""
    pinned: tuple[Id, ...] = ()
    """Topics whose served version is pinned: it needs nothing of the log."""
    fetching: tuple[tuple[Id, At], ...] = ()
    """(topic, position of the commit) of each version that is fetched, out of turn, to be served next: the log must hold it."""
    serves: str = ""
    """Where it answers look-ups of the partitions in `applied`; empty where it does not."""
    taken: tuple[tuple[Id, Number, At], ...] = ()
    """Of a processor's task: what it has in its newest snapshot. What comes after it is its input, and held however full the log is; what
    its lease names beside that is for the snapshot before."""
    tiers: tuple[tuple[str, int, int], ...] = ()
    """(tier, bytes of its budget, bytes held) of each tier of its store."""


# --- fetching -----------------------------------------------------------------------------------------------------------


class Fetch(Message, frozen=True):
    """The partition's events after `after`, oldest first, at most about `max_bytes` (at least one event)."""

    to = To.OWNER

    id: int
    topic: Id
    partition: Number
    after: At
    max_bytes: int


class FetchFile(Message, frozen=True):
    """A piece of the newest announced snapshot that the broker's own keeper holds of a topic. Answered by a `Fetched` with one
    frame, the piece, in which `accepted` is the bytes of the whole file.
    """

    id: int
    topic: Id
    partition: Number
    """A state partition: files are counted by it."""
    digest: str
    """Of the manifest that the file belongs to; empty for the manifest of the newest one."""
    file: int
    """Which of the partition's files in the manifest, from 0; −1: the manifest itself."""
    offset: int
    max_bytes: int
    skip: int = 0
    """With an empty digest: so many of the newest ones are passed over, because they were found to be damaged."""
    other: int = 0
    """Whom it is for: 0, the owner of the partition; else one of the other brokers, whose keeper may have it too."""


class Fetched(Message, frozen=True):
    """Followed by `count` event frames, in messages of their own (`pieces.py`). `end` is the position of the last one, or `after`."""

    id: int
    topic: Id
    partition: Number
    count: int
    end: At
    accepted: At
    error: WireError | None = None
    sizes: tuple[int, ...] = ()
    """Bytes of each frame: a reader can tell them apart without believing what they say of themselves."""


AnyMessage = (
    Hello | Welcome | Moved | Goodbye | Request | Response | Ack | Refused | Follow | Unfollow | Following | Demoted | Credit
    | Heartbeat | Report | Fetch | FetchFile | Fetched
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(AnyMessage)
_HEADER = MAGIC + bytes([FORMAT])


def encode_message(message: Message) -> bytes:
    return _HEADER + _encoder.encode(message)


def decode_message(frame: bytes | memoryview) -> AnyMessage:
    """Raises `CorruptLog` for what is no control frame of this format."""
    data = memoryview(frame)
    if bytes(data[:2]) != MAGIC or len(data) < 3:
        raise CorruptLog(f"a control frame begins with {bytes(data[:2])!r}, not {MAGIC!r}")
    if data[2] != FORMAT:
        raise CorruptLog(
            f"a control frame has format {data[2]}, this reader knows format {FORMAT}", remedy="Upgrade this reader"
        )
    try:
        message: AnyMessage = _decoder.decode(data[3:])
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptLog(f"a control frame cannot be decoded: {error}") from error
    return message


def encode_result(result: object) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(result))


def decode_result(raw: msgspec.Raw, kind: Any) -> Any:
    """The answer of a call as `kind`. Raises `CorruptLog` where it is something else."""
    try:
        return msgspec.msgpack.decode(raw, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptLog(f"an answer cannot be decoded: {error}") from error
