"""Reads an event log without any broker: what really stands in it."""

from __future__ import annotations

from pathlib import Path

import paramstream as ps
from paramstream.consistency.position import START
from paramstream.eventlog.reading import FolderReader

from .reference import Reference, read_topic


def read_folder(folder: Path, topic: ps.TopicInfo, *, constant: bool = False) -> Reference:
    """What the local log in `folder` holds of `topic`: all of it, or where its owner lives what is durable."""
    with FolderReader(folder) as reader:
        parts = [reader.read((topic.id, number)) for number in range(topic.partitions + 1)]
        assert all(part.start == START for part in parts), "the log was cut, and its beginning is gone"
        return read_topic(topic.name, [part.records for part in parts], constant=constant)
