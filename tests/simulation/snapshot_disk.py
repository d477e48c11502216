"""The disk under a replica's snapshots: real files, which a world may stop at, and whose process may die between two operations."""

from __future__ import annotations

from pathlib import Path

from paramstream.eventlog.files import Disk

from .aside import is_dead, pause


class SnapshotDisk(Disk):
    """Every operation after which something new may be found pauses first. What a dead process would still do is not done.

    Nothing is synced: of files that are lost for want of it, the tests of the writer tell.
    """

    def create(self, path: Path) -> int:
        pause()
        return super().create(path)

    def sync(self, handle: int) -> None:
        """All of these files outlive the process."""

    def sync_folder(self, path: Path) -> None:
        """All of these names outlive the process."""

    def names(self, folder: Path) -> list[str]:
        return [] if is_dead() else super().names(folder)

    def rename(self, old: Path, new: Path) -> None:
        pause()
        if not is_dead():
            super().rename(old, new)

    def unlink(self, path: Path) -> None:
        if not is_dead():
            super().unlink(path)

    def remove_folder(self, path: Path) -> None:
        if not is_dead():
            super().remove_folder(path)
