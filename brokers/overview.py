"""What a broker tells of itself to those who watch it: pure reading of what its loop has anyway."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..consistency.position import events_between
from ..consistency.vector import PartitionId
from ..events.codec import decode_vector
from ..transport.calls import BrokerRecord, FollowerRecord, PartitionLoad, ProducerRecord, ReplicaRecord
from ..transport.messages import Report
from .owned import META, Owned
from .partitions import Partitions
from .peers import Peer

OwnedById = Mapping[PartitionId, Owned]


def describe_broker(
    broker: str, partitions: Partitions, peers: Iterable[Peer], reports: Iterable[Report], now_ns: int
) -> BrokerRecord:
    """A moment of the broker: called in its loop's thread. `now_ns` is monotonic."""
    peers = list(peers)
    owned = {partition: each for partition, each in partitions.owned.items() if partition != META}
    return BrokerRecord(
        broker=broker,
        log_bytes=partitions.nbytes,
        log_limit=partitions.limit,
        clients=len(peers),
        topics=tuple(partitions.meta.topics()),
        partitions=tuple(_load(each, now_ns) for each in owned.values()),
        producers=tuple(_producers(partitions, owned, peers, now_ns)),
        followers=tuple(_followers(owned, peers)),
        replicas=tuple(_replicas(owned, reports, now_ns)),
    )


def _load(owned: Owned, now_ns: int) -> PartitionLoad:
    core, load = owned.core, owned.load
    versions = [version for version in core.versions() if not version.superseded]
    return PartitionLoad(
        topic=core.partition[0],
        partition=core.partition[1],
        accepted=core.accepted,
        durable=core.durable,
        time=core.time(now_ns),
        last_time=core.state.time,
        log_bytes=owned.log.nbytes,
        records=load.records,
        nbytes=load.nbytes,
        undurable_s=load.undurable_ns(now_ns) / 1e9,
        durable_after_s=load.durable_after_ns / 1e9,
        ring_bytes=owned.fanout.kept_bytes,
        demotions=owned.fanout.demotions,
        error=owned.durable.trouble if owned.error is None else str(owned.error),
        versions=len(versions),
        newest=versions[-1] if versions else None,
    )


def _producers(
    partitions: Partitions, owned: OwnedById, peers: Iterable[Peer], now_ns: int
) -> Iterable[ProducerRecord]:
    """The newest session of each name that a connected client has joined."""
    meta = partitions.meta
    for peer in peers:
        for incarnation, name in peer.joined.items():
            if incarnation != meta.producer_incarnation(name):
                continue
            sessions = ((partition, each.core.state.sessions.get(name)) for partition, each in owned.items())
            wrote_ns = peer.wrote_ns.get(incarnation)
            yield ProducerRecord(
                name,
                incarnation,
                None if wrote_ns is None else (now_ns - wrote_ns) / 1e9,
                tuple(
                    (*partition, session.position)
                    for partition, session in sessions
                    if session is not None and session.incarnation == incarnation
                ),
            )


def _followers(owned: OwnedById, peers: Iterable[Peer]) -> Iterable[FollowerRecord]:
    for peer in peers:
        for partition in sorted(peer.follows):
            if (each := owned.get(partition)) is not None:
                yield FollowerRecord(peer.name, peer.id.hex()[:8], *partition, *each.fanout.standing(peer.address))


def _replicas(owned: OwnedById, reports: Iterable[Report], now_ns: int) -> Iterable[ReplicaRecord]:
    for report in reports:
        applied = decode_vector(report.applied)
        serves = {topic: (version, commit) for topic, version, commit, _ in report.served}
        for topic in report.topics:
            lag = sum(
                events_between(at, owned[partition].core.accepted)
                for partition, at in applied.items()
                if partition[0] == topic and partition in owned
            )
            version, commit = serves.get(topic, (None, 0))
            newer = _commits_after(owned, topic, commit, now_ns)
            stale_s = None if version is None else max(newer, default=0.0)
            yield ReplicaRecord(
                report.name, topic, version, len(newer), stale_s, lag, report.age_s, report.error, report.tiers
            )


def _commits_after(owned: OwnedById, topic: int, commit: int, now_ns: int) -> list[float]:
    """The ages in seconds of the topic's commits above the position."""
    return [
        (each.core.time(now_ns) - sealed.time) / 1e9
        for (of_topic, _), each in owned.items()
        if of_topic == topic
        for sealed in each.core.state.dense.sealed
        if sealed.position > commit
    ]
