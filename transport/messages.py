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

from ..errors import CorruptLog, FieldValue, ParamstreamError, error_from_wire
from ..events.kinds import PartRef, Table, TensorSpec

MAGIC = b"PC"
FORMAT = 1
CLIENT_ID_BYTES = 16
UP, DOWN = b"u", b"d"


class Message(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A control frame."""


class Record(msgspec.Struct, array_like=True, frozen=True):
    """A part of a control frame."""


class WireError(Record, frozen=True):
    """An error as it crosses the wire; `raised()` is the same error on this side."""

    code: str
    problem: str
    remedy: str
    fields: dict[str, FieldValue]

    @classmethod
    def of(cls, error: ParamstreamError) -> WireError:
        return cls(error.code, error.problem, error.remedy, error.fields())

    def raised(self) -> ParamstreamError:
        return error_from_wire(self.code, self.problem, self.remedy, self.fields)


# --- opening a connection -------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """The first frame on *down*. `name` and `incarnation` are a replica's (empty and 0 for others)."""

    format: int
    name: str = ""
    incarnation: int = 0


class Welcome(Message, frozen=True):
    """The answer to `Hello`."""

    broker: str
    """Random, new at each start of the broker: another one means that it was restarted."""
    fetch_address: str
    """Where fetches go; a host of `*` stands for the host that the client connected to."""
    window_bytes: int
    """How many bytes of unanswered events a session may have on the wire."""
    heartbeat_s: float


class Goodbye(Message, frozen=True):
    """A client closes cleanly, or a broker stops cleanly."""


# --- requests and their answers ---------------------------------------------------------------------------------------


class Call(Message, frozen=True):
    """What a `Request` asks for; the comment behind each names the type of its answer."""


class CreateTopic(Call, frozen=True):  # -> TopicRecord
    name: str
    partitions: int
    persistence: str
    retain_versions: int
    exist_ok: bool


class DeleteTopic(Call, frozen=True):  # -> None
    name: str


class ListTopics(Call, frozen=True):  # -> list[TopicRecord]
    pass


class CreateTable(Call, frozen=True):  # -> None, once every partition has it durably
    topic: int
    table: Table
    exist_ok: bool
    alter: bool = False


class OpenProducer(Call, frozen=True):  # -> int: the next incarnation, durable in `__meta`
    name: str


class OpenReplica(Call, frozen=True):  # -> int: likewise
    name: str


class Unconfirmed(Record, frozen=True):
    """What a session has sent on one partition and not confirmed: `sequences` in order, sent in `epoch`."""

    topic: int
    partition: int
    epoch: int
    sequences: tuple[int, ...]


class Join(Call, frozen=True):  # -> Joined
    """Joins an incarnation to every partition of the broker. A second join of the same session in an epoch changes nothing."""

    name: str
    incarnation: int
    unconfirmed: tuple[Unconfirmed, ...] = ()


class ListVersions(Call, frozen=True):  # -> list[VersionRecord], oldest first
    topic: int


class ListReplicas(Call, frozen=True):  # -> list[Report]
    topic: int


class DescribePartitions(Call, frozen=True):  # -> list[PartitionRecord]
    topic: int


class PrepareCommit(Call, frozen=True):  # -> PreparedCommit
    """What sealing `version` as the union of these parts would come to; raises what speaks against it. Changes nothing."""

    topic: int
    version: int
    parts: tuple[PartRef, ...]
    schema: str = "same"
    rewind: bool = False


class AwaitDurable(Call, frozen=True):  # -> list[tuple[int, int, int]]: those that are lost
    """Answered once each of these (topic, partition, position) is durable, or known to be lost."""

    positions: tuple[tuple[int, int, int], ...]


class DescribeBroker(Call, frozen=True):  # -> BrokerRecord
    pass


class TopicRecord(Record, frozen=True):
    """A topic as `__meta` holds it."""

    name: str
    id: int
    partitions: int
    """State partitions 0 … partitions − 1; the weight partition is number `partitions`."""
    persistence: str
    retain_versions: int


class LastEvent(Record, frozen=True):
    """The last event of a producer name in a partition."""

    incarnation: int
    sequence: int
    position: int
    own: bytes
    observed: bytes
    source: tuple[int, int] | None = None


class SealedVersion(Record, frozen=True):
    version: int
    digest: bytes
    position: int


class JoinedPartition(Record, frozen=True):
    """What a join answers for one partition."""

    topic: int
    partition: int
    epoch: int
    last: LastEvent | None
    """Of this name, whatever the incarnation."""
    last_sequence: int
    """The last sequence of this incarnation that stands, 0 if none does."""
    positions: tuple[tuple[int, int], ...]
    """(sequence, position) of the session's unconfirmed events that stand."""
    resend: bool
    """Nobody can have seen what does not stand of the epoch that the session had joined: it sends those again by itself."""
    ends: tuple[tuple[int, int], ...]
    """(epoch, end position), oldest first."""
    accepted: int
    durable: int
    tables: tuple[Table, ...] = ()
    schema: tuple[TensorSpec, ...] | None = None
    """Of a weight partition with a sealed version; digests and chunks in it mean nothing."""
    sealed: tuple[SealedVersion, ...] = ()


class Joined(Record, frozen=True):
    partitions: tuple[JoinedPartition, ...]


class PreparedCommit(Record, frozen=True):
    digest: bytes
    """The digest of digests that the commit must name."""
    schema: tuple[TensorSpec, ...] | None = None
    """What the topic's schema becomes with it; None where it stays as it is."""
    position: int = 0
    """Of the commit that has sealed exactly these parts as this version already; 0 where none has."""


class VersionRecord(Record, frozen=True):
    version: int
    position: int
    """Of its commit."""
    time: int
    """ns since 1970."""
    tensors: int
    nbytes: int
    digest: bytes
    restorable: bool
    first: int = 0
    """The position of the first event that the version needs; 0 where it is not told."""
    superseded: bool = False
    """A rewind came later: the number no longer stands for this one."""


class PartitionRecord(Record, frozen=True):
    """Where a partition stands. A reader that starts after `latest_start` gets the newest durable version whole, and those after it."""

    topic: int
    partition: int
    epoch: int
    start: int
    """The position before the first one that the log still holds."""
    accepted: int
    durable: int
    latest_start: int
    """Weight partition: the position before the first event that the newest durable version, one after it, or an open part needs;
    else `start`."""
    ends: tuple[tuple[int, int], ...]
    time: int
    """The partition's time, ns since 1970."""
    latest: int = 0
    """Weight partition: the position of the newest durable commit, 0 if there is none."""
    context: bytes = b""
    """The encoded vector of all that events before `latest` rest on."""


class PartitionLoad(Record, frozen=True):
    """A partition as its broker sees it at a moment. Counts are since the broker opened it."""

    topic: int
    partition: int
    accepted: int
    durable: int
    time: int
    """The partition's time, ns since 1970."""
    last_time: int
    """The stamp of its last event, or of the epoch's opening; by the same clock."""
    log_bytes: int
    records: int
    """Appended to the log: events, and a few of the broker's own."""
    nbytes: int
    """Of those records."""
    undurable_s: float
    """How long the oldest batch that is not durable waits for it by now; 0 where all is durable."""
    durable_after_s: float
    """How long the last batch that became durable had waited."""
    ring_bytes: int
    """Kept in memory for followers."""
    demotions: int
    """How often a follower fell out of that memory, and went over to fetching."""
    error: str
    """Why the partition stopped, if it did."""
    versions: int
    """Sealed and known; not those that a rewind superseded."""
    newest: VersionRecord | None


class ProducerRecord(Record, frozen=True):
    """A session of a producer whose client is connected."""

    name: str
    incarnation: int
    idle_s: float | None
    """Since its last event came, accepted or not; None where none has come over this connection."""
    last: tuple[tuple[int, int, int], ...]
    """(topic, partition, position) of its last event in each partition that still knows one."""


class FollowerRecord(Record, frozen=True):
    """A client that follows a partition."""

    name: str
    """A replica's; empty for a subscription."""
    client: str
    """The beginning of its id, which tells nameless ones apart."""
    topic: int
    partition: int
    sent: int
    """The last position given to its connection; 0 while it fetches for itself."""
    outstanding_bytes: int
    """Sent, and not yet said to be taken off the connection."""


class ReplicaRecord(Record, frozen=True):
    """A replica and one of its topics: its last report, against what the broker has now."""

    name: str
    topic: int
    version: int | None
    """The one that it serves."""
    versions_behind: int
    """Commits since that one."""
    stale_s: float | None
    """For how long a newer version than the one served has been sealed; 0 where there is none, None where none is served."""
    lag_events: int
    """Events accepted here that it has not applied; of a partition whose epoch it has not reached, those of the new epoch."""
    report_age_s: float
    """All of this is as of so long ago."""
    error: str


class BrokerRecord(Record, frozen=True):
    broker: str
    """As in `Welcome`: another one means that it was restarted, and that counts began anew."""
    log_bytes: int
    log_limit: int
    clients: int
    topics: tuple[TopicRecord, ...]
    partitions: tuple[PartitionLoad, ...]
    producers: tuple[ProducerRecord, ...]
    followers: tuple[FollowerRecord, ...]
    replicas: tuple[ReplicaRecord, ...]


class Request(Message, frozen=True):
    id: int
    call: (
        CreateTopic | DeleteTopic | ListTopics | CreateTable | OpenProducer | OpenReplica | Join
        | ListVersions | ListReplicas | DescribePartitions | PrepareCommit | AwaitDurable | DescribeBroker
    )  # fmt: skip


class Response(Message, frozen=True):
    """`result` is the MessagePack encoding of the answer; empty where there is an error."""

    id: int
    result: msgspec.Raw
    error: WireError | None = None


# --- answers to events --------------------------------------------------------------------------------------------------


class Ack(Message, frozen=True):
    """Events of a session that are accepted: (sequence, position) in order. Acks on a connection are in sequence order."""

    topic: int
    partition: int
    incarnation: int
    answers: tuple[tuple[int, int], ...]


class Refused(Message, frozen=True):
    """An event that was turned down; it used up nothing. `last_sequence` is what the next event must name as `previous`.

    What was pipelined behind it is refused too, as a gap (`gap`), and goes again by itself, naming the right one.
    """

    topic: int
    partition: int
    incarnation: int
    sequence: int
    last_sequence: int
    error: WireError
    gap: bool = False
    """The event does not follow on `last_sequence`: something before it was refused. It may go again."""
    rejoin: bool = False
    """The event names another epoch: the session joins again."""
    position: int = 0
    """Of the same version with the same digest, sealed before: the outcome is acceptance at this position."""


# --- following a partition ------------------------------------------------------------------------------------------------


class Follow(Message, frozen=True):
    """Fan out the partition's events after position `after` to this client, within `credit_bytes` not yet returned."""

    topic: int
    partition: int
    after: int
    credit_bytes: int


class Unfollow(Message, frozen=True):
    topic: int
    partition: int


class Following(Message, frozen=True):
    """The answer to `Follow`: events come from here on. `ends` are those of finished epochs."""

    topic: int
    partition: int
    after: int
    accepted: int
    durable: int
    ends: tuple[tuple[int, int], ...]
    time: int


class Demoted(Message, frozen=True):
    """Nothing more is fanned out to this client after position `after`: it fetches, and follows again when it is near the head.

    Also the answer to a `Follow` from a place that the broker no longer keeps in memory; `error` where it cannot be served.
    Of a partition whose topic was deleted, followers and sessions that joined it hear `UnknownTopic`.
    """

    topic: int
    partition: int
    after: int
    accepted: int
    error: WireError | None = None


class Credit(Message, frozen=True):
    """`consumed_bytes` in all have been taken off the hands of the transport since `Follow`."""

    topic: int
    partition: int
    consumed_bytes: int


class Heads(Record, frozen=True):
    """A partition's heads in a heartbeat."""

    topic: int
    partition: int
    accepted: int
    durable: int
    sent: int
    """The last position fanned out to this peer; 0 if it does not follow."""
    time: int
    """The partition's time, ns since 1970."""


class Heartbeat(Message, frozen=True):
    """Every `heartbeat_s`, and at most every 5 ms when a durable head has moved; of the partitions the peer joined or follows."""

    heads: tuple[Heads, ...]


class Report(Message, frozen=True):
    """A replica's state, every 0.5 s; renews its leases."""

    name: str
    topics: tuple[int, ...]
    served: tuple[tuple[int, int, int, str], ...]
    """(topic, version, commit position, digest in hex) of each topic that serves a version."""
    applied: bytes
    """The encoded vector of applied positions."""
    lag_events: int
    needs: tuple[tuple[int, int, int], ...]
    """Leases: (topic, partition, position): what lies after the position is still needed. A weight partition is named only where
    every version is wanted; the versions of `served` and `fetching` are held without that."""
    error: str = ""
    age_s: float = 0.0
    """Filled in by the broker when it answers: seconds since the report came."""
    failed: tuple[tuple[int, WireError], ...] = ()
    """(topic, what keeps its weights, or a module bound to them, from the newest version)."""
    pinned: tuple[int, ...] = ()
    """Topics whose served version is pinned: it needs nothing of the log."""
    fetching: tuple[tuple[int, int], ...] = ()
    """(topic, position of the commit) of each version that is fetched, out of turn, to be served next: the log must hold it."""


# --- fetching -----------------------------------------------------------------------------------------------------------


class Fetch(Message, frozen=True):
    """The partition's events after `after`, oldest first, at most about `max_bytes` (at least one event)."""

    id: int
    topic: int
    partition: int
    after: int
    max_bytes: int


class Fetched(Message, frozen=True):
    """Followed by `count` event frames, in messages of their own (`pieces.py`). `end` is the position of the last one, or `after`."""

    id: int
    topic: int
    partition: int
    count: int
    end: int
    accepted: int
    error: WireError | None = None
    sizes: tuple[int, ...] = ()
    """Bytes of each frame: a reader can tell them apart without believing what they say of themselves."""


AnyMessage = (
    Hello | Welcome | Goodbye | Request | Response | Ack | Refused | Follow | Unfollow | Following | Demoted | Credit
    | Heartbeat | Report | Fetch | Fetched
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
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise CorruptLog(f"a control frame cannot be decoded: {error}") from error
    return message


def encode_result(result: object) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(result))


def decode_result(raw: msgspec.Raw, kind: Any) -> Any:
    """The answer of a call as `kind`. Raises `CorruptLog` where it is something else."""
    try:
        return msgspec.msgpack.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise CorruptLog(f"an answer cannot be decoded: {error}") from error
