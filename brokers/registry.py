"""The topics that a log's folder knows, read without being its owner."""

from __future__ import annotations

from ..eventlog.reading import FolderReader
from ..events.kinds import Kind
from ..transport.calls import TopicRecord
from .meta import MetaState
from .partitions import META
from .state import PartitionState


def topics_in(reader: FolderReader) -> list[TopicRecord]:
    """Sorted by name, as of the end of what `reader` may read. Raises `CorruptLog`, `LogTruncated` as reading does."""
    read = reader.read(META)
    state = PartitionState() if read.base is None else PartitionState.decode(read.base.bulk, read.base.position)
    for record in read.records:
        if record.kind is not Kind.BASE:
            state.apply(record, registry=True)
    return MetaState(state.entries).topics()
