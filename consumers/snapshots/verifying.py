"""Reads everything that a folder of snapshots holds, and says what is whole and what is damaged. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import CorruptLog
from ...events import manifest as manifests
from .folder import LATEST, in_order, latest_in, topic_folders
from .reading import Snapshot


@dataclass(frozen=True, slots=True)
class SnapshotCheck:
    """What one snapshot holds."""

    path: Path
    topic: str | None
    """None where the manifest is damaged."""
    version: int | None
    is_latest: bool
    files: int
    """That the manifest names."""
    nbytes: int
    flaws: tuple[tuple[Path, str], ...]
    """(file, what is wrong with it)."""


def is_snapshot_folder(path: Path) -> bool:
    """Whether it is a snapshot, a topic's folder of them, or a folder of such."""
    return (path / manifests.NAME).is_file() or any(in_order(folder) for folder in topic_folders(path))


def verify_snapshots(root: Path) -> Iterator[SnapshotCheck]:
    """Each snapshot in turn, and a `latest` that names none; `root` may be a snapshot itself. Raises `CorruptLog` where it is no folder."""
    if (root / manifests.NAME).is_file():
        yield _check(root, latest_in(root.parent) == root)
        return
    for folder in topic_folders(root):
        latest = latest_in(folder)
        for path in sorted(in_order(folder)):
            yield _check(path, path == latest)
        if latest is None and (folder / LATEST).exists():
            flaw = folder / LATEST, "it names no snapshot that is there; the newest whole one is used"
            yield SnapshotCheck(folder / LATEST, None, None, True, 0, 0, (flaw,))


def _check(path: Path, is_latest: bool) -> SnapshotCheck:
    try:
        snapshot = Snapshot(path)
    except CorruptLog as error:
        return SnapshotCheck(path, None, None, is_latest, 0, 0, ((path / manifests.NAME, error.problem),))
    flaws: list[tuple[Path, str]] = []
    files = snapshot.manifest.files()
    for file in files:
        try:
            snapshot.check_file(file)
        except CorruptLog as error:
            flaws.append((path / file.name, error.problem))
    nbytes = sum(file.nbytes for file in files)
    return SnapshotCheck(
        path, snapshot.manifest.topic, snapshot.version, is_latest, len(files), nbytes, tuple(flaws)
    )  # fmt: skip
