"""What a replica says of itself, as `replica.status()` gives it and `client.replicas` reports it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..consistency.vector import VersionVector
from ..errors import ParamstreamError
from ..events.codec import decode_vector
from ..tiers.usage import TierStatus
from ..transport.directory import Directory
from ..transport.messages import Report


@dataclass(frozen=True, slots=True)
class Served:
    """The version of one topic that is served."""

    version: int
    position: int
    """Of its commit."""
    digest: str
    """The digest of digests, 32 hexadecimal digits."""
    stale: bool = False
    """It is of a topic or an epoch that is gone, or older than the newest that stands, which had been given up for want of memory
    when a loss brought it back; the next commit replaces it."""
    pinned: bool = False
    """`rollback` chose it: newer versions are kept, and not served until `follow`."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What a producer staged of a version that no commit has sealed."""

    topic: str
    version: int
    producer: str


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table of rows, over the state partitions that a replica follows."""

    topic: str
    table: str
    dim: int
    dtype: str
    rows: int
    """That are there: written, or changed by a gradient, and not deleted since."""
    nbytes: int
    """Bytes of memory that it takes: rows, optimizer's state, positions and index."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A moment of a replica. Of another process's replica (`client.replicas`) the fields from `heads` on are not known."""

    name: str
    topics: tuple[str, ...]
    served: Mapping[str, Served]
    """By topic; a topic without a commit yet is not there."""
    applied: VersionVector[str]
    """The applied position of each partition followed: not closed."""
    lag_events: int
    """Events that are accepted, as far as is known, and not applied."""
    last_error: str
    age_s: float
    """Seconds since the last heartbeat of the broker, of several of the one silent for longest; of a report: since it came."""
    stale: bool
    """What is served may be old: no connection or one that has not told its heads yet, no heartbeat for a while, a stopped
    partition, or a version of what is gone."""
    heads: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict[tuple[str, int], tuple[int, int]])
    """(accepted, durable) of each partition as last heard."""
    connected: bool = False
    lost_dependencies: int = 0
    """Dependencies of applied events that were lost: the ordering promise has that many holes."""
    stopped: Mapping[tuple[str, int], ParamstreamError] = field(default_factory=dict[tuple[str, int], ParamstreamError])
    """Partitions of which nothing more is applied, and why."""
    buffered_bytes: int = 0
    """Events held back, for the gate or behind a gap."""
    garbled_frames: int = 0
    repeated_events: int = 0
    """Events that came again, or late, and changed nothing."""
    failed: Mapping[str, ParamstreamError] = field(default_factory=dict[str, ParamstreamError])
    """Topic → what keeps its weights, or a module bound to them, from the newest version. Known of other processes too."""
    unfinished: tuple[Unfinished, ...] = ()
    """Versions that were begun and have not gone on for half a minute: their producers may be gone. Nobody sees them."""
    serves: str = ""
    """Where it answers look-ups (`rep.serve`), of the state partitions in `applied`; empty where it does not. Known of other processes
    too."""
    jumping: tuple[str, ...] = ()
    """Topics whose weights pass versions on the way to a newer one: until that shows, rows and KV may be ahead of them."""

    tables: tuple[TableStatus, ...] = ()
    """Of all topics, each topic's by name."""
    tiers: tuple[TierStatus, ...] = ()
    """Of its store, DRAM first. Of other processes' replicas only names, limits and bytes held are known."""

    @property
    def version(self) -> int | None:
        """The version served, where the replica follows one topic that has one."""
        return next(iter(self.served.values())).version if len(self.served) == 1 else None

    @classmethod
    def of_report(cls, report: Report, directory: Directory) -> ReplicaStatus:
        """What a broker remembers of a replica's last report."""
        served = {
            name: Served(version, position, digest, pinned=topic in report.pinned)
            for topic, version, position, digest in report.served
            if (name := directory.name_of(topic)) is not None
        }
        return cls(
            name=report.name,
            topics=tuple(name for topic in report.topics if (name := directory.name_of(topic)) is not None),
            served=served,
            applied=directory.to_names(decode_vector(report.applied)),
            lag_events=report.lag_events,
            last_error=report.error,
            age_s=report.age_s,
            stale=report.age_s > STALE_S,
            serves=report.serves,
            tiers=tuple(TierStatus(tier, limit, held) for tier, limit, held in report.tiers),
            failed={
                name: error.raised() for topic, error in report.failed if (name := directory.name_of(topic)) is not None
            },
        )


KEEPER_PREFIX = "__keeper-"
"""Of the names of a broker's keeper's replicas: they serve nobody, and nobody waits for them."""

STALE_S = 1.5
"""Three heartbeats, or reports, missed: what is served is called stale."""
