"""Reads an event log without any broker: what really stands in it."""

from __future__ import annotations

from pathlib import Path

import paramstream as ps
from paramstream.eventlog.reading import FolderReader

from .reference import Reference, read_topic


def read_folder(folder: Path, topic: ps.TopicInfo, *, constant: bool = False) -> Reference:
    """What the local log in `folder` holds of `topic`: all of it, or where its owner lives what is durable."""
    with FolderReader(folder) as reader:
        parts = [reader.read((topic.id, number)).records for number in range(topic.partitions + 1)]
        return read_topic(topic.name, parts, constant=constant)
