"""One answer made of what several brokers answered to the same call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from ..consistency.vector import PartitionId
from .calls import (
    AwaitDurable,
    BrokerRecord,
    Call,
    CreateTable,
    DescribeBroker,
    DescribePartitions,
    Join,
    Joined,
    ListReplicas,
    ListVersions,
    PartitionRecord,
    ProducerRecord,
    ReplicaRecord,
    VersionRecord,
)
from .messages import Report
from .slots import META

OwnerOf = Callable[[PartitionId], int]
"""Which of the answers is that of a partition's owner."""

_T = TypeVar("_T")


def merged(call: Call, answers: Sequence[Any], owner_of: OwnerOf) -> Any:
    """The answer to `call`. One broker's answer stays as it is."""
    return answers[0] if len(answers) == 1 else MERGES[type(call)](answers, owner_of)


def _joined(answers: Sequence[Joined], owner_of: OwnerOf) -> Joined:
    return Joined(
        tuple(partition for answer in answers for partition in answer.partitions),
        tuple(partition for answer in answers for partition in answer.stopped),
    )


def _versions(answers: Sequence[list[VersionRecord]], owner_of: OwnerOf) -> list[VersionRecord]:
    """Only the owner of the weight partition knows any."""
    return [version for answer in answers for version in answer]


def _partitions(answers: Sequence[list[PartitionRecord]], owner_of: OwnerOf) -> list[PartitionRecord]:
    return sorted((each for answer in answers for each in answer), key=lambda each: each.partition)


def _reports(answers: Sequence[list[Report]], owner_of: OwnerOf) -> list[Report]:
    """Each replica reports to every broker: the newest of its reports counts."""
    reports = sorted((report for answer in answers for report in answer), key=lambda report: -report.age_s)
    return list({report.name: report for report in reports}.values())


def _lost(answers: Sequence[list[tuple[int, int, int]]], owner_of: OwnerOf) -> list[tuple[int, int, int]]:
    return [
        (topic, number, at)
        for index, answer in enumerate(answers)
        for topic, number, at in answer
        if owner_of((topic, number)) == index
    ]


def _any(answers: Sequence[bool], owner_of: OwnerOf) -> bool:
    return any(answers)


def _brokers(answers: Sequence[BrokerRecord], owner_of: OwnerOf) -> BrokerRecord:
    return BrokerRecord(
        broker="+".join(sorted(each.broker for each in answers)),
        log_bytes=sum(each.log_bytes for each in answers),
        log_limit=sum(each.log_limit for each in answers),
        # Every client is connected to all of them.
        clients=max(each.clients for each in answers),
        topics=answers[owner_of(META)].topics,
        partitions=tuple(
            sorted(_all(each.partitions for each in answers), key=lambda each: (each.topic, each.partition))
        ),
        producers=_each(
            _all(each.producers for each in answers), lambda each: (each.name, each.incarnation), _producer
        ),
        followers=tuple(_all(each.followers for each in answers)),
        replicas=_each(_all(each.replicas for each in answers), lambda each: (each.name, each.topic), _replica),
    )


def _producer(known: ProducerRecord, other: ProducerRecord) -> ProducerRecord:
    idle = [idle_s for idle_s in (known.idle_s, other.idle_s) if idle_s is not None]
    return msgspec.structs.replace(known, idle_s=min(idle, default=None), last=(*known.last, *other.last))


def _replica(known: ReplicaRecord, other: ReplicaRecord) -> ReplicaRecord:
    """Each broker counts what it has itself: the events of its partitions, and the owner of the weights the versions."""
    newest, oldest = sorted((known, other), key=lambda each: each.report_age_s)
    stale = [stale_s for stale_s in (known.stale_s, other.stale_s) if stale_s is not None]
    return msgspec.structs.replace(
        newest,
        versions_behind=max(known.versions_behind, other.versions_behind),
        stale_s=max(stale, default=None),
        lag_events=newest.lag_events + oldest.lag_events,
    )


def _all(parts: Iterable[Iterable[_T]]) -> list[_T]:
    return [each for part in parts for each in part]


def _each(records: Iterable[_T], key: Callable[[_T], tuple[str, int]], merge: Callable[[_T, _T], _T]) -> tuple[_T, ...]:
    """One record of each key."""
    found: dict[tuple[str, int], _T] = {}
    for record in records:
        known = found.get(key(record))
        found[key(record)] = record if known is None else merge(known, record)
    return tuple(found.values())


MERGES: Mapping[type[Call], Callable[[Any, OwnerOf], Any]] = {
    AwaitDurable: _lost,
    CreateTable: _any,
    DescribeBroker: _brokers,
    DescribePartitions: _partitions,
    Join: _joined,
    ListReplicas: _reports,
    ListVersions: _versions,
}
