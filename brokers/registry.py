"""What a log says of topics and their versions, read without being an owner of its partitions."""

from __future__ import annotations

from ..consistency.vector import PartitionId
from ..eventlog.reading import LogReader
from ..events.kinds import Kind
from ..transport.calls import TopicRecord, VersionRecord
from .meta import MetaState
from .owned import META
from .state import PartitionState


def topics_in(reader: LogReader) -> list[TopicRecord]:
    """Sorted by name, as of the end of what `reader` may read. Raises `CorruptLog`, `LogTruncated` as reading does."""
    return MetaState(_state_of(reader, META).entries).topics()


def versions_in(reader: LogReader, topic: TopicRecord) -> list[VersionRecord]:
    """The sealed versions that the log knows, oldest commit first, each with its context."""
    state = _state_of(reader, (topic.id, topic.partitions))
    return state.dense.versions(topic.retain_versions, state.start, contexts=True)


def _state_of(reader: LogReader, partition: PartitionId) -> PartitionState:
    """As of the end of what `reader` may read: its newest base, and what comes behind it."""
    read = reader.read_newest(partition)
    state = PartitionState() if read.base is None else PartitionState.decode(read.base.bulk, read.base.position)
    for record in read.records:
        if record.kind is not Kind.BASE:
            state.replay(record, registry=partition == META)
    state.forget(read.start)
    return state
