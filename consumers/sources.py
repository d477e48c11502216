"""Where a restore reads from: a log without its broker, or a broker. Both give whole frames, oldest first, durable ones only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from ..consistency.position import START
from ..consistency.vector import PartitionId
from ..errors import LogTruncated, UnknownTopic
from ..eventlog.changelog import Changelogs
from ..eventlog.reading import LogReader
from ..events.codec import EventFrame, position_of
from ..events.kinds import Kind
from ..transport.calls import DescribePartitions, ListTopics, ListVersions, PartitionRecord, TopicRecord, VersionRecord
from .links import MakeLink
from .pages import Pager

Progress = Callable[[int], None]
"""Called with the bytes read since the last call."""


class Source(Protocol):
    """One topic's partitions, as far as they are durable."""

    @property
    def record(self) -> TopicRecord: ...

    def start(self, number: int) -> int:
        """The position before the first one that the partition still holds."""
        ...

    def versions(self) -> Sequence[VersionRecord]:
        """What is sealed and known, superseded ones too, oldest commit first."""
        ...

    def context(self, version: VersionRecord) -> bytes:
        """The encoded vector of all that events before the version's commit rest on."""
        ...

    def read(self, partition: PartitionId, after: int, max_bytes: int) -> list[memoryview]:
        """Frames behind position `after`, about `max_bytes` of them; none where that is the end.

        Raises `LogTruncated` where `after` lies before the start, `CorruptLog` that names a damaged record.
        """
        ...

    def close(self) -> None: ...


class Registry(Protocol):
    """What brokers have written of topics into a log, and what a partition's bases say: this room cannot read either."""

    def topics_in(self, reader: LogReader) -> list[TopicRecord]: ...

    def versions_in(self, reader: LogReader, topic: TopicRecord) -> list[VersionRecord]: ...


class NoLog:
    """A topic whose state is all in hand: there is nothing to read."""

    def __init__(self, record: TopicRecord) -> None:
        self.record = record

    def start(self, number: int) -> int:
        return START

    def versions(self) -> Sequence[VersionRecord]:
        return ()

    def context(self, version: VersionRecord) -> bytes:
        return version.context

    def read(self, partition: PartitionId, after: int, max_bytes: int) -> list[memoryview]:
        return []

    def close(self) -> None:
        """Nothing is open."""


class LogSource:
    """A log that is read without being its owner. What becomes durable after a partition was first read may not be seen."""

    def __init__(
        self, reader: LogReader, topic: str, registry: Registry, changelogs: Callable[[], Changelogs] | None = None
    ) -> None:
        """Closes `reader` with itself. `changelogs` opens those of the log, where it has any. Raises `UnknownTopic`, `CorruptLog`,
        `LogTruncated`.
        """
        self.changelogs = changelogs
        self._reader = reader
        self._registry = registry
        self._starts: dict[PartitionId, int] = {}
        self._rest: dict[PartitionId, tuple[int, Iterator[EventFrame]]] = {}
        """Partition → (the last position read, what comes behind it)."""
        self._versions: list[VersionRecord] | None = None
        try:
            self.record = named(registry.topics_in(reader), topic)
        except BaseException:
            self.close()
            raise

    def start(self, number: int) -> int:
        partition = self.record.id, number
        if partition not in self._starts:
            self._open(partition, START)
        return self._starts[partition]

    def versions(self) -> Sequence[VersionRecord]:
        if self._versions is None:
            self._versions = self._registry.versions_in(self._reader, self.record)
        return self._versions

    def context(self, version: VersionRecord) -> bytes:
        return version.context

    def read(self, partition: PartitionId, after: int, max_bytes: int) -> list[memoryview]:
        if after < self.start(partition[1]):
            raise LogTruncated(
                "the log no longer reaches back", topic=self.record.name, partition=partition[1], position=after
            )
        at, rest = self._rest[partition]
        if after != at:
            at, rest = self._open(partition, after)
        found: list[memoryview] = []
        nbytes = 0
        for frame in rest:
            if frame.position <= after or frame.kind is Kind.BASE:
                continue
            found.append(frame.buffer)
            at = frame.position
            nbytes += frame.nbytes
            if nbytes >= max_bytes:
                break
        self._rest[partition] = at, rest
        return found

    def close(self) -> None:
        self._reader.close()

    def _open(self, partition: PartitionId, after: int) -> tuple[int, Iterator[EventFrame]]:
        read = self._reader.read(partition, after)
        self._starts.setdefault(partition, read.start)
        self._rest[partition] = max(after, read.start), read.records
        return self._rest[partition]


class BrokerSource:
    """A running broker: asked for what it knows, and read by fetches over a link of its own."""

    def __init__(self, make_link: MakeLink, topic: str, patience: Callable[[], float]) -> None:
        """`patience` says how long the next answer may take, in seconds.

        Raises `ConnectFailed`, `UnknownTopic`, `ParamstreamTimeout`.
        """
        self.make_link = make_link
        self._pager = Pager(make_link, "restore", patience)
        self._versions: list[VersionRecord] | None = None
        try:
            self.record = named(self._pager.ask(ListTopics(), list[TopicRecord]), topic)
            found: list[PartitionRecord] = self._pager.ask(DescribePartitions(self.record.id), list[PartitionRecord])
        except BaseException:
            self.close()
            raise
        self.partitions = {partition.partition: partition for partition in found}

    def start(self, number: int) -> int:
        return self.partitions[number].start

    def versions(self) -> Sequence[VersionRecord]:
        if self._versions is None:
            known: list[VersionRecord] = self._pager.ask(ListVersions(self.record.id), list[VersionRecord])
            end = self.partitions[self.record.partitions].durable
            self._versions = [version for version in known if version.position <= end]
        return self._versions

    def context(self, version: VersionRecord) -> bytes:
        call = ListVersions(self.record.id, version.position)
        found: list[VersionRecord] = self._pager.ask(call, list[VersionRecord])
        if not found:
            raise LogTruncated(
                "the log lost the version meanwhile, to newer ones",
                topic=self.record.name,
                version=version.version,
                position=version.position,
            )
        return found[0].context

    def read(self, partition: PartitionId, after: int, max_bytes: int) -> list[memoryview]:
        end = self.partitions[partition[1]].durable
        if after >= end:
            return []
        return [frame for frame in self._pager.read(partition, after, max_bytes) if position_of(frame) <= end]

    def close(self) -> None:
        self._pager.close()


def named(topics: Iterable[TopicRecord], name: str) -> TopicRecord:
    """The topic of that name. Raises `UnknownTopic` that names those there are."""
    by_name = {topic.name: topic for topic in topics}
    if name not in by_name:
        known = ", ".join(sorted(by_name)) or "none"
        raise UnknownTopic(f"there is no topic {name!r}", topic=name, remedy=f"There are: {known}")
    return by_name[name]
