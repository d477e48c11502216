"""What a client asks of a broker beside its events, and what comes in answer.

Each call names the type of its answer beside it. Calls travel in a `messages.Request`, answers in its `messages.Response`.
"""

from __future__ import annotations

from typing import ClassVar, Self

import msgspec

from ..consistency.position import epoch_of
from ..events.kinds import PartRef, Table, TensorSpec
from .wire import At, Id, Message, Number, Record, To, WireError


class Call(Message, frozen=True):
    """What a `Request` asks for; the comment behind each names the type of its answer.

    Where several brokers answer, `merging.py` makes one answer of theirs.
    """

    to = To.META
    may_be_repeated: ClassVar[bool] = False
    """It only looks, or does no harm a second time: where its connection goes it is asked again over the next one."""

    def repeated(self) -> Self:
        """The call as it goes on where the owner of `__meta` has done its part."""
        return self


class CreateTopic(Call, frozen=True):  # -> TopicRecord
    name: str
    partitions: int
    persistence: str
    retain_versions: int
    exist_ok: bool


class DeleteTopic(Call, frozen=True):  # -> None
    name: str


class ListTopics(Call, frozen=True):  # -> list[TopicRecord]
    may_be_repeated = True


class CreateTable(Call, frozen=True):  # -> bool, once every partition has it durably: whether any had lacked it
    to = To.META_FIRST
    topic: Id
    table: Table
    exist_ok: bool
    alter: bool = False

    def repeated(self) -> Self:
        return msgspec.structs.replace(self, exist_ok=True)


class ListTables(Call, frozen=True):  # -> list[Table], as they were last created or altered
    may_be_repeated = True
    topic: Id


class OpenProducer(Call, frozen=True):  # -> int: the next incarnation, durable in `__meta`
    may_be_repeated = True
    name: str


class OpenReplica(Call, frozen=True):  # -> int: likewise
    may_be_repeated = True
    name: str


class Unconfirmed(Record, frozen=True):
    """What a session has sent on one partition and not confirmed: `sequences` in order, sent in `epoch`."""

    topic: Id
    partition: Number
    epoch: int
    sequences: tuple[int, ...]


class Join(Call, frozen=True):  # -> Joined
    """Joins an incarnation to every partition of the broker. A second join of the same session in an epoch changes nothing."""

    to = To.EVERY
    name: str
    incarnation: int
    unconfirmed: tuple[Unconfirmed, ...] = ()


class ListVersions(Call, frozen=True):  # -> list[VersionRecord], oldest first
    to = To.EVERY
    may_be_repeated = True
    topic: Id
    commit: At = 0
    """Only the version that the commit at this position sealed, with its `context`; 0 for all, without."""


class ListReplicas(Call, frozen=True):  # -> list[Report]
    to = To.EVERY
    may_be_repeated = True
    topic: Id


class DescribePartitions(Call, frozen=True):  # -> list[PartitionRecord]
    """Where a topic's partitions stand. One that stands still because its log is damaged raises that, if it is asked about."""

    to = To.EVERY
    may_be_repeated = True
    topic: Id
    partitions: tuple[Number, ...] | None = None
    """None: all."""
    proved: bool = False
    """Told only once it is certain that whoever tells it is the owner, which may take as long as its log is away. Else at once, even by
    a broker that was taken over and does not know it yet: nothing is lost because that one lacks it."""


class PrepareCommit(Call, frozen=True):  # -> PreparedCommit
    """What sealing `version` as the union of these parts would come to; raises what speaks against it. Changes nothing."""

    to = To.OWNER
    may_be_repeated = True
    topic: Id
    version: int
    parts: tuple[PartRef, ...]
    schema: str = "same"
    rewind: bool = False
    partition: Number = 0
    """The weight partition of the topic."""


class AwaitDurable(Call, frozen=True):  # -> list[tuple[int, int, int]]: those that are lost
    """Answered once each of these (topic, partition, position) is durable, or known to be lost. A broker answers for its own."""

    to = To.EVERY
    may_be_repeated = True
    positions: tuple[tuple[Id, Number, At], ...]


class DescribeBroker(Call, frozen=True):  # -> BrokerRecord
    to = To.EVERY
    may_be_repeated = True


class DescribeStorage(Call, frozen=True):  # -> dict[str, str]
    """What the log's own tools would say of the topic; nothing where a log has none."""

    may_be_repeated = True
    topic: Id


class AnnouncedSnapshot(Record, frozen=True):
    """A snapshot of a topic that a keeper has made, and holds until it announces others."""

    place: str
    """Its folder in the keeper's: `TOPIC FOLDER/SNAPSHOT`."""
    digest: str
    """Of its manifest."""
    partitions: tuple[tuple[Number, At, At], ...]
    """(number, floor, ceiling) of each state partition whose whole state it holds, with the log behind the floor."""


class AnnounceSnapshots(Call, frozen=True):  # -> None, once `__meta` has it durably
    """The snapshots of a topic that a keeper holds now, oldest first; what it announced before is void."""

    topic: Id
    keeper: str
    snapshots: tuple[AnnouncedSnapshot, ...]


class TopicRecord(Record, frozen=True):
    """A topic as `__meta` holds it."""

    name: str
    id: Id
    partitions: Number
    """State partitions 0 … partitions − 1; the weight partition is number `partitions`."""
    persistence: str
    retain_versions: int


class LastEvent(Record, frozen=True):
    """The last event of a producer name in a partition."""

    incarnation: int
    sequence: int
    position: At
    own: bytes
    observed: bytes
    source: tuple[int, int] | None = None


class SealedVersion(Record, frozen=True):
    version: int
    digest: bytes
    position: At


class JoinedPartition(Record, frozen=True):
    """What a join answers for one partition."""

    topic: Id
    partition: Number
    epoch: int
    last: LastEvent | None
    """Of this name, whatever the incarnation."""
    last_sequence: int
    """The last sequence of this incarnation that stands, 0 if none does."""
    positions: tuple[tuple[int, At], ...]
    """(sequence, position) of the session's unconfirmed events that stand."""
    resend: bool
    """Nobody can have seen what does not stand of the epoch that the session had joined: it sends those again by itself."""
    ends: tuple[tuple[At, At], ...]
    """(epoch, end position), oldest first."""
    accepted: At
    durable: At
    tables: tuple[Table, ...] = ()
    schema: tuple[TensorSpec, ...] | None = None
    """Of a weight partition with a sealed version; digests and chunks in it mean nothing."""
    sealed: tuple[SealedVersion, ...] = ()


class StoppedPartition(Record, frozen=True):
    """One that takes no events, and cannot be joined."""

    topic: Id
    partition: Number
    error: WireError
    """Why."""


class Joined(Record, frozen=True):
    partitions: tuple[JoinedPartition, ...]
    stopped: tuple[StoppedPartition, ...] = ()


class PreparedCommit(Record, frozen=True):
    digest: bytes
    """The digest of digests that the commit must name."""
    schema: tuple[TensorSpec, ...] | None = None
    """What the topic's schema becomes with it; None where it stays as it is."""
    position: At = 0
    """Of the commit that has sealed exactly these parts as this version already; 0 where none has."""


class VersionRecord(Record, frozen=True):
    version: int
    position: At
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
    context: bytes = b""
    """The encoded vector of all that events before the commit rest on, where it was asked for: it may be large."""


class PartitionRecord(Record, frozen=True):
    """Where a partition stands. A reader that starts after `latest_start` gets the newest durable version whole, and those after it."""

    topic: Id
    partition: Number
    epoch: int
    start: At
    """The position before the first one that the log still holds."""
    accepted: At
    durable: At
    latest_start: At
    """Weight partition: the position before the first event that the newest durable version, one after it, or an open part needs;
    else `start`."""
    ends: tuple[tuple[At, At], ...]
    time: int
    """The partition's time, ns since 1970."""
    latest: At = 0
    """Weight partition: the position of the newest durable commit, 0 if there is none."""
    context: bytes = b""
    """The encoded vector of all that events before `latest` rest on."""
    rewinds: tuple[tuple[At, int], ...] = ()
    """Weight partition: (position, version) of the commits that superseded older ones of that number and higher, in order."""
    passive: At = 0
    """State partition: nothing up to here changes what a replica holds."""

    @property
    def is_trimmed(self) -> bool:
        """Something that makes the state of replicas has left the log."""
        return self.start > self.passive

    def end_for(self, position: int) -> int:
        """Where the epoch of `position` ended, as far as that is known, else where the partition ends: what lies above it is not there."""
        return dict(self.ends).get(epoch_of(position), self.accepted)


class PartitionLoad(Record, frozen=True):
    """A partition as its broker sees it at a moment. Counts are since the broker opened it."""

    topic: Id
    partition: Number
    accepted: At
    durable: At
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
    """Why the partition stopped, or why nothing of it becomes durable just now; empty where all is well."""
    versions: int
    """Sealed and known; not those that a rewind superseded."""
    newest: VersionRecord | None


class ProducerRecord(Record, frozen=True):
    """A session of a producer whose client is connected."""

    name: str
    incarnation: int
    idle_s: float | None
    """Since its last event came, accepted or not; None where none has come over this connection."""
    last: tuple[tuple[Id, Number, At], ...]
    """(topic, partition, position) of its last event in each partition that still knows one."""


class FollowerRecord(Record, frozen=True):
    """A client that follows a partition."""

    name: str
    """A replica's; empty for a subscription."""
    client: str
    """The beginning of its id, which tells nameless ones apart."""
    topic: Id
    partition: Number
    sent: At
    """The last position given to its connection; 0 while it fetches for itself."""
    outstanding_bytes: int
    """Sent, and not yet said to be taken off the connection."""


class ReplicaRecord(Record, frozen=True):
    """A replica and one of its topics: its last report, against what the broker has now."""

    name: str
    topic: Id
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
    tiers: tuple[tuple[str, int, int], ...] = ()
    """As in `Report`."""


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
