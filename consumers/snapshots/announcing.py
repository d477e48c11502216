"""Tells brokers which snapshots a keeper holds: what they hold may leave the log."""

from __future__ import annotations

from pathlib import Path

from ...transport.calls import AnnouncedSnapshot, AnnounceSnapshots, TopicRecord
from ...transport.directory import Directory
from .folder import numbers_in, read_manifest, snapshot_path, topic_folder


def announce(directory: Directory, keeper: str, root: Path, record: TopicRecord, timeout: float) -> None:
    """Announce all snapshots of the topic in the keeper's folder `root`; returns once that is durable.

    Raises what the broker says, `CorruptLog` where a manifest is damaged.
    """
    folder = topic_folder(root, record.name, record.id)
    found: list[AnnouncedSnapshot] = []
    for number in numbers_in([path.name for path in folder.iterdir()]):
        path = snapshot_path(folder, number)
        manifest, digest = read_manifest(path)
        spans = tuple((state.number, state.floor, state.ceiling) for state in manifest.state)
        found.append(AnnouncedSnapshot(f"{folder.name}/{path.name}", digest, spans))
    directory.request(AnnounceSnapshots(record.id, keeper, tuple(found)), type(None), timeout)
