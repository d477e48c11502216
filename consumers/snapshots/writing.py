"""Writes snapshots of one topic: aside, synced, renamed; `latest` moves last, and older ones go only after that."""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import xxhash

from ...errors import BindFailed
from ...eventlog.files import Disk
from ...eventlog.marks import storage_error
from ...events import manifest as manifests
from ...events.manifest import FileRecord, Manifest, encode_manifest
from .folder import LATEST, latest_in, numbers_in, snapshot_path

KEEP = 2
"""How many snapshots of a topic stay: where the newest is damaged, the one before it is used."""

WRITE_BYTES = 8 * 1024 * 1024

_ASIDE = re.compile(r"\.snapshot-\d+\.(partial|removed)|\.latest\.partial")


class SnapshotWriter:
    """One snapshot on its way into a topic's folder, which nobody else writes to meanwhile. A context manager.

    What is not finished when the block ends is removed, as far as that is possible; what a killed process left is removed by
    the next writer. Nothing that was there before is touched until the new snapshot is safe.
    """

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        """Raises `BindFailed` where another process writes there, `StorageFull` or `CorruptLog` where the disk takes nothing."""
        self._folder = folder
        self._disk = Disk() if disk is None else disk
        self._lock = -1
        try:
            self._disk.make_folder(folder)
            self._lock = _exclusive(self._disk, folder)
            names = self._disk.names(folder)
            for name in names:
                if _ASIDE.fullmatch(name):
                    self._remove(folder / name)
            self.number = max(numbers_in(names), default=0) + 1
            self._aside = folder / f".snapshot-{self.number:08d}.partial"
            self._disk.make_folder(self._aside)
        except OSError as error:
            self._unlock()
            raise storage_error("write a snapshot to", folder, error) from error
        except BaseException:
            self._unlock()
            raise

    @property
    def path(self) -> Path:
        """What the snapshot is called once it is finished."""
        return snapshot_path(self._folder, self.number)

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> FileRecord:
        """A file of these pieces, synced. One of that name is replaced."""
        path, hashed, end = self._aside / name, xxhash.xxh3_128(), 0
        try:
            self._disk.unlink(path)
            handle = self._disk.create(path)
            try:
                for piece in pieces:
                    data = memoryview(piece)
                    for at in range(0, len(data), WRITE_BYTES):
                        part = data[at : at + WRITE_BYTES]
                        hashed.update(part)
                        self._disk.write(handle, part, end)
                        end += len(part)
                self._disk.sync(handle)
            finally:
                self._disk.close(handle)
        except OSError as error:
            raise storage_error("write", path, error) from error
        return FileRecord(name, end, hashed.hexdigest())

    def discard(self, name: str) -> None:
        """A file that was written is not wanted."""
        self._disk.unlink(self._aside / name)

    def finish(self, manifest: Manifest, keep: int = KEEP) -> str:
        """Make the snapshot the latest, and remove what is older than the newest `keep`. Returns the manifest's digest."""
        data, digest = encode_manifest(manifest)
        self.write(manifests.NAME, [data])
        try:
            self._disk.sync_folder(self._aside)
            self._disk.rename(self._aside, self.path)
            self._disk.sync_folder(self._folder)
            self._disk.sync_folder(self._folder.parent)
            self._move_latest()
        except OSError as error:
            raise storage_error("finish", self.path, error) from error
        self._remove_older(keep)
        return digest

    def _move_latest(self) -> None:
        aside = self._folder / f".{LATEST}.partial"
        self._disk.unlink(aside)
        handle = self._disk.create(aside)
        try:
            self._disk.write(handle, memoryview(f"{self.path.name}\n".encode()), 0)
            self._disk.sync(handle)
        finally:
            self._disk.close(handle)
        self._disk.rename(aside, self._folder / LATEST)
        self._disk.sync_folder(self._folder)

    def _remove_older(self, keep: int) -> None:
        try:
            for number in numbers_in(self._disk.names(self._folder))[: -max(1, keep)]:
                aside = self._folder / f".snapshot-{number:08d}.removed"
                # Renamed first: half of a snapshot never stands under its name.
                self._disk.rename(snapshot_path(self._folder, number), aside)
                self._remove(aside)
        except OSError as error:
            raise storage_error("remove an old snapshot from", self._folder, error) from error

    def _remove(self, path: Path) -> None:
        if not path.is_dir():
            self._disk.unlink(path)
            return
        for name in self._disk.names(path):
            self._disk.unlink(path / name)
        self._disk.remove_folder(path)

    def _unlock(self) -> None:
        if self._lock >= 0:
            self._disk.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and self.path.is_dir() and latest_in(self._folder) != self.path:
                # It has its name, and could not be made the latest: another try writes it anew.
                self._disk.rename(self.path, self._aside)
            if self._aside.is_dir():
                self._remove(self._aside)
        except OSError as failure:
            if error is None:
                raise storage_error("remove", self._aside, failure) from failure
        finally:
            self._unlock()


def _exclusive(disk: Disk, folder: Path) -> int:
    handle = disk.open_or_create(folder / "lock")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        disk.close(handle)
        raise BindFailed(
            f"another replica writes a snapshot to {folder}", remedy="Give each replica a folder of its own"
        ) from error
    return handle
