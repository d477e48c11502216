"""What a replica follows: which partitions of its topics, each from where, and how far before it counts as started."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import cast

from ..consistency.position import START, show
from ..consistency.vector import PartitionId, VersionVector, check_named
from ..errors import EventLost, InvalidEvent, LogTruncated, NotDurable
from ..transport.calls import DescribePartitions, PartitionRecord, TopicRecord
from ..transport.directory import Directory


class Scope:
    """State partitions may be chosen; weight partitions are followed whole."""

    def __init__(
        self,
        topics: Sequence[str],
        directory: Directory,
        start: str | VersionVector[str],
        partitions: Sequence[int] | None,
        deadline: float,
        *,
        durable_only: bool = False,
    ) -> None:
        """Asks where the partitions stand; `durable_only`: with what can no longer be lost.

        Raises `UnknownTopic`, `InvalidEvent`, `LogTruncated`, `NotDurable`, `ParamstreamTimeout`, `EventLost` where `start` is ahead
        of the log.
        """
        if not topics:
            raise InvalidEvent("a replica needs a topic")
        if not isinstance(start, VersionVector) and start not in ("latest", "earliest"):
            raise InvalidEvent(f"start={start!r} is neither 'latest', 'earliest' nor a version vector")
        if isinstance(start, VersionVector):
            check_named(start)
        for number in partitions or ():
            if not isinstance(cast(object, number), int):
                raise InvalidEvent(f"a partition is a number, not {number!r}")
        self.partitions = None if partitions is None else sorted(set(partitions))
        """The state partitions followed; None for all."""
        self.records = list({record.id: record for record in map(directory.topic, topics)}.values())
        if durable_only:
            for record in self.records:
                check_durable(record)
        self._durable_only = durable_only
        self._directory = directory
        self._deadline = deadline
        self.described: dict[PartitionId, PartitionRecord] = {}
        """Where each partition stood when it was asked."""
        self._begun: set[PartitionId] = set()
        """Those that begin with state."""
        self.starts: dict[PartitionId, int] = {}
        """Each partition is followed from behind this position."""
        self.latest: list[PartitionRecord] = []
        """Weight partitions that begin with the newest version: what comes before it is passed."""
        self.targets: dict[PartitionId, int] = {}
        """What must be applied before the replica's constructor returns."""
        for record in self.records:
            self._describe(record)
            try:
                self._choose(record, start)
            except EventLost:
                self.prove(record)
                self._choose(record, start)

    def prove(self, record: TopicRecord) -> None:
        """Ask once more where the topic's partitions stand, before anything is called lost: a broker that was taken over, and does not
        know it yet, lacks what stands with another one. Raises `ParamstreamTimeout` where nobody can prove in time to be the owner.
        """
        self._describe(record, proved=True)

    def begin_at(self, starts: Mapping[PartitionId, int], targets: Mapping[PartitionId, int]) -> None:
        """These partitions begin with state that has `starts` in it already; nothing is read before their `targets`."""
        self.starts |= starts
        self._begun |= starts.keys()
        self.targets |= {partition: max(at, self.targets[partition]) for partition, at in targets.items()}

    def begin_weights(self, at: PartitionRecord) -> None:
        """The weight partition begins with the version that `at` says is its newest."""
        self.latest.append(at)
        self.targets[at.topic, at.partition] = at.latest

    def trimmed(self, record: TopicRecord) -> list[int]:
        """The topic's state partitions whose log does not reach back, and that do not begin with state either."""
        numbers = self.state_partitions(record)
        cut = [number for number in numbers if self.described[record.id, number].is_trimmed]
        return [number for number in cut if (record.id, number) not in self._begun]

    def state_partitions(self, record: TopicRecord) -> Sequence[int]:
        """Of the topic, or of one that takes its name later. Raises `InvalidEvent` for a number that it does not have."""
        if self.partitions is None:
            return range(record.partitions)
        if self.partitions and not 0 <= self.partitions[0] <= self.partitions[-1] < record.partitions:
            raise InvalidEvent(
                f"the topic has the state partitions 0 to {record.partitions - 1}, not all of {self.partitions}",
                topic=record.name,
            )
        return self.partitions

    def _describe(self, record: TopicRecord, *, proved: bool = False) -> None:
        numbers = (*self.state_partitions(record), record.partitions)
        found: list[PartitionRecord] = self._directory.request(
            DescribePartitions(record.id, numbers, proved), list[PartitionRecord], time_left(self._deadline)
        )
        self.described |= {(record.id, at.partition): at for at in found}

    def _choose(self, record: TopicRecord, start: str | VersionVector[str]) -> None:
        """Raises for the first partition that cannot begin so."""
        self.latest = [at for at in self.latest if at.topic != record.id]
        for number in (*self.state_partitions(record), record.partitions):
            self._choose_partition(record, self.described[record.id, number], start)

    def _choose_partition(self, record: TopicRecord, at: PartitionRecord, start: str | VersionVector[str]) -> None:
        partition, weights = (record.id, at.partition), at.partition == record.partitions
        if not weights and start == "earliest" and at.is_trimmed:
            raise LogTruncated(
                f"rows and KV up to {show(at.start)} have left the log",
                topic=record.name,
                partition=at.partition,
                position=at.start,
                remedy='Begin with start="latest", which has the state without its history',
            )
        self.starts[partition] = at.start
        if weights and start == "latest":
            self.latest.append(at)
        self.targets[partition] = at.durable if self._durable_only else at.accepted
        if isinstance(start, VersionVector):
            self.targets[partition] = target = start.get((record.name, at.partition), START)
            if target > (end := at.end_for(target)):
                raise EventLost(
                    f"the vector names {show(target)}, and the log ends at {show(end)}",
                    topic=record.name,
                    partition=at.partition,
                    position=target,
                    remedy="It is of another log, or of what was lost since",
                )


def is_durable_only(visibility: str) -> bool:
    """Raises `InvalidEvent` for what is no visibility."""
    if visibility not in ("accepted", "durable"):
        raise InvalidEvent(f"visibility={visibility!r} is neither 'accepted' nor 'durable'")
    return visibility == "durable"


def check_durable(topic: TopicRecord) -> None:
    """Raises `NotDurable` where nothing of the topic ever becomes durable."""
    if topic.persistence == "none":
        raise NotDurable(
            'nothing of a topic with persistence "none" becomes durable',
            topic=topic.name,
            remedy='Follow it with visibility="accepted"',
        )


def time_left(deadline: float) -> float:
    """Seconds until `deadline` of `time.monotonic()`, for a call that needs some."""
    return max(0.001, deadline - time.monotonic())
