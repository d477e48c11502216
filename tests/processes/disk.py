"""The disk of a broker that will be killed: it may stand still, it may be full, and it keeps a ledger of what is safe on it.

A killed process loses nothing that it wrote, so a power failure has to be played: `power.py` cuts the files back to what the
ledger says. The ledger is written here, from what really was synced, and knows nothing of what the log believes of itself.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from paramstream.eventlog.files import Disk


class SyncLedger:
    """What of a folder's files and names would survive a power failure. One line for each change, at the end of a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder.with_name(f"{folder.name}.synced")
        self._handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.sizes: dict[Path, int] = {}
        """File → how many of its bytes are safe."""
        self.names: dict[Path, frozenset[str]] = {}
        """Folder → the names in it that are safe."""
        for line in self._path.read_text().splitlines():
            kind, path, what = line.split("\t")
            if kind == "size":
                self.sizes[Path(path)] = int(what)
            else:
                self.names[Path(path)] = frozenset(what.split("/"))

    def set_size(self, path: Path, nbytes: int) -> None:
        self.sizes[path] = nbytes
        os.write(self._handle, f"size\t{path}\t{nbytes}\n".encode())

    def set_names(self, folder: Path, names: list[str]) -> None:
        self.names[folder] = frozenset(names)
        os.write(self._handle, f"names\t{folder}\t{'/'.join(names)}\n".encode())

    def close(self) -> None:
        os.close(self._handle)


class FailingDisk(Disk):
    """Real files below `folder`, whose syncs can be made to wait, and that can be full."""

    def __init__(self, folder: Path) -> None:
        self.let_go = threading.Event()
        """Syncs return while this is set."""
        self.let_go.set()
        self.room: int | None = None
        """Bytes that may still be written to new places; None: as many as one likes."""
        self._ledger = SyncLedger(folder)
        self._lock = threading.Lock()

    def sync(self, handle: int) -> None:
        self.let_go.wait()
        path, nbytes = _path_of(handle), self.size_of(handle)
        super().sync(handle)
        with self._lock:
            self._ledger.set_size(path, nbytes)

    def sync_folder(self, path: Path) -> None:
        names = self.names(path)
        super().sync_folder(path)
        with self._lock:
            self._ledger.set_names(path, names)

    def truncate(self, handle: int, nbytes: int) -> None:
        super().truncate(handle, nbytes)
        path = _path_of(handle)
        with self._lock:
            self._ledger.set_size(path, min(nbytes, self._ledger.sizes.get(path, 0)))

    def create(self, path: Path) -> int:
        with self._lock:
            if not self._take(1):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._ledger.set_size(path, 0)
        return super().create(path)

    def write(self, handle: int, data: memoryview, offset: int) -> None:
        # What has its place already, as marks have, needs no room.
        grown = 0 if self.room is None else max(0, offset + len(data) - self.size_of(handle))
        with self._lock:
            missing = grown - self._take(grown)
        super().write(handle, data[: len(data) - missing], offset)
        if missing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _take(self, nbytes: int) -> int:
        """As many of `nbytes` as there is room for."""
        if self.room is None:
            return nbytes
        taken = min(nbytes, self.room)
        self.room -= taken
        return taken


def _path_of(handle: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{handle}"))
