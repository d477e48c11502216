"""Where a restore reads from: the folder of a local log, or a broker. Both give whole frames, oldest first, durable ones only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from ..consistency.vector import PartitionId
from ..errors import LogTruncated, UnknownTopic
from ..eventlog.reading import FolderReader
from ..events.codec import EventFrame, decode_event, position_of
from ..events.kinds import Kind
from ..transport.calls import DescribePartitions, ListTopics, PartitionRecord, TopicRecord
from ..transport.link import Handler, Link
from ..transport.messages import Hello
from .pages import PAGE_BYTES, Pager

Progress = Callable[[int], None]
"""Called with the bytes read since the last call."""


class Source(Protocol):
    """One topic's partitions, as far as they are durable."""

    @property
    def record(self) -> TopicRecord: ...

    def start(self, number: int) -> int:
        """The position before the first one that the partition still holds."""
        ...

    def read(self, partition: PartitionId, after: int, max_bytes: int) -> list[memoryview]:
        """Frames behind position `after`, about `max_bytes` of them; none where that is the end.

        Raises `LogTruncated` where `after` lies before the start, `CorruptLog` that names a damaged record.
        """
        ...

    def close(self) -> None: ...


def frames_of(source: Source, number: int) -> Iterator[EventFrame]:
    """Every durable event and epoch record of a partition, decoded, from its start on."""
    partition, after = (source.record.id, number), source.start(number)
    while frames := source.read(partition, after, PAGE_BYTES):
        for frame in frames:
            yield decode_event(frame)
        after = position_of(frames[-1])


class FolderSource:
    """A local log's folder. Where its owner lives, what has become durable since a partition was first read is not seen."""

    def __init__(self, reader: FolderReader, record: TopicRecord) -> None:
        """Closes `reader` with itself."""
        self.record = record
        self._reader = reader
        self._starts: dict[PartitionId, int] = {}
        self._rest: dict[PartitionId, tuple[int, Iterator[EventFrame]]] = {}
        """Partition → (the last position read, what comes behind it)."""

    def start(self, number: int) -> int:
        partition = self.record.id, number
        if partition not in self._starts:
            self._open(partition)
        return self._starts[partition]

    def read(self, partition: PartitionId, after: int, max_bytes: int) -> list[memoryview]:
        if after < self.start(partition[1]):
            raise LogTruncated(
                "the log no longer reaches back", topic=self.record.name, partition=partition[1], position=after
            )
        at, rest = self._rest[partition]
        if after < at:
            at, rest = self._open(partition)
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

    def _open(self, partition: PartitionId) -> tuple[int, Iterator[EventFrame]]:
        read = self._reader.read(partition)
        self._starts.setdefault(partition, read.start)
        self._rest[partition] = read.start, read.records
        return self._rest[partition]


class BrokerSource:
    """A running broker, read by fetches over a link of its own."""

    _link: Link

    def __init__(self, endpoint: str, topic: str, timeout: float) -> None:
        """`timeout` bounds each answer waited for. Raises `ConnectFailed`, `UnknownTopic`."""

        def make_link(handler: Handler, hello: Callable[[], Hello], name: str) -> Link:
            self._link = Link([endpoint], handler, hello, name)
            return self._link

        self._pager = Pager(make_link, "restore", timeout)
        try:
            topics: list[TopicRecord] = self._link.request(ListTopics(), list[TopicRecord], timeout)
            self.record = named(topics, topic)
            call = DescribePartitions(self.record.id)
            found: list[PartitionRecord] = self._link.request(call, list[PartitionRecord], timeout)
        except BaseException:
            self.close()
            raise
        self.partitions = {partition.partition: partition for partition in found}

    def start(self, number: int) -> int:
        return self.partitions[number].start

    def read(self, partition: PartitionId, after: int, max_bytes: int) -> list[memoryview]:
        end = self.partitions[partition[1]].durable
        if after >= end:
            return []
        return [frame for frame in self._pager.read(partition, after, max_bytes) if position_of(frame) <= end]

    def close(self) -> None:
        self._pager.close()


def named(topics: Iterable[TopicRecord], name: str) -> TopicRecord:
    """The topic of that name. Raises `UnknownTopic` that names those there are."""
    by_name: dict[str, Any] = {topic.name: topic for topic in topics}
    if name not in by_name:
        known = ", ".join(sorted(by_name)) or "none"
        raise UnknownTopic(f"there is no topic {name!r}", topic=name, remedy=f"There are: {known}")
    record: TopicRecord = by_name[name]
    return record
