"""The few file operations that a local log is made of, in one class, so that a test can make each of them fail."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
from pathlib import Path

import numpy as np

from ..errors import BindFailed
from ..events.digest import checksum

BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")

_POPULATE_READ = 22
"""MADV_POPULATE_READ (Linux 5.14), which the `mmap` module of Python 3.11 has no name for: brings pages in, and says where it cannot."""


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Disk:
    """Operations on real files. Each raises `OSError` where the system does; none is safe against a power failure before
    `sync` (bytes of a file) or `sync_folder` (names in a folder) has returned.
    """

    def create(self, path: Path) -> int:
        """A new file, open for reading and writing. It must not exist."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)

    def open(self, path: Path, *, write: bool = False) -> int:
        return os.open(path, os.O_RDWR if write else os.O_RDONLY)

    def open_or_create(self, path: Path) -> int:
        """For a file of which only the lock matters, and that is never synced."""
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    def close(self, handle: int) -> None:
        os.close(handle)

    def lock(self, handle: int, *, exclusive: bool) -> None:
        """Held until the handle is closed. Raises `BlockingIOError` at once where another process is in the way."""
        fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)

    def write(self, handle: int, data: memoryview, offset: int) -> None:
        """All of `data`, however many calls that takes."""
        while data:
            written = os.pwrite(handle, data, offset)
            data = data[written:]
            offset += written

    def read(self, handle: int, nbytes: int, offset: int) -> bytes:
        """`nbytes` from `offset` on; fewer only where the file ends."""
        data = os.pread(handle, nbytes, offset)
        if len(data) == nbytes or not data:
            return data
        pieces, missing = [data], nbytes - len(data)
        while missing:
            data = os.pread(handle, missing, offset + nbytes - missing)
            if not data:
                break
            pieces.append(data)
            missing -= len(data)
        return b"".join(pieces)

    def map(self, handle: int, *, is_glanced_at: bool = False) -> mmap.mmap:
        """All that the file has by now, to be read; `ValueError` where that is nothing. `is_glanced_at`: no page is read that was not
        asked for.
        """
        mapping = mmap.mmap(handle, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        if is_glanced_at:
            mapping.madvise(mmap.MADV_RANDOM)
        return mapping

    def fetch(self, mapping: mmap.mmap, offset: int, end: int) -> None:
        """Bring the mapped bytes from `offset` to `end` in. Raises `OSError` where touching them would be a SIGBUS.

        Other threads go on meanwhile: `mmap.madvise` would hold the GIL for as long as the disk takes.
        """
        if end <= offset:
            return
        begin = offset - offset % mmap.PAGESIZE
        address = np.frombuffer(mapping, np.uint8).ctypes.data + begin
        if _LIBC.madvise(address, end - begin, _POPULATE_READ):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))

    def sync(self, handle: int) -> None:
        """The bytes of the file, and the length it needs to find them again."""
        os.fdatasync(handle)

    def sync_folder(self, path: Path) -> None:
        """The names in a folder: what was created, renamed or removed there."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def truncate(self, handle: int, nbytes: int) -> None:
        os.ftruncate(handle, nbytes)

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def size_of(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def names(self, folder: Path) -> list[str]:
        return sorted(os.listdir(folder))

    def is_folder(self, path: Path) -> bool:
        return path.is_dir()

    def make_folder(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        path.rmdir()


class SlotFile:
    """A small record that is replaced in place: it has all its room beforehand, so that a full disk cannot stop it.

    Two slots are written in turn, each with a number and a checksum; the newest whole one is the record. So a reader in
    another process, or after a power failure, sees an old record or a new one and never a mixture.
    """

    _HEADER = struct.Struct("<QQ")  # checksum of what follows it, number
    _MAX_NUMBER = 1 << 63  # No writer comes so far, and the next number must fit too.
    _SLOT_NBYTES = 512  # a sector: disks write it whole or not at all

    def __init__(self, disk: Disk, handle: int, payload_nbytes: int) -> None:
        assert self._HEADER.size + payload_nbytes <= self._SLOT_NBYTES
        self._disk = disk
        self._handle = handle
        self._nbytes = self._HEADER.size + payload_nbytes
        self._number = 0

    @classmethod
    def make(cls, disk: Disk, path: Path, payload: bytes) -> None:
        """Make the file at `path` with `payload` in it, durably, where there is none."""
        aside = path.with_suffix(".new")
        disk.unlink(aside)
        handle = disk.create(aside)
        try:
            disk.write(handle, memoryview(bytes(2 * cls._SLOT_NBYTES)), 0)
            cls(disk, handle, len(payload)).replace(payload)
            disk.sync(handle)
        finally:
            disk.close(handle)
        disk.rename(aside, path)
        disk.sync_folder(path.parent)

    def read(self) -> bytes | None:
        """The newest whole record, or None where both slots are damaged."""
        data = self._disk.read(self._handle, 2 * self._SLOT_NBYTES, 0)
        newest: bytes | None = None
        for at in (0, self._SLOT_NBYTES):
            slot = data[at : at + self._nbytes]
            if len(slot) < self._nbytes:
                continue
            found, number = self._HEADER.unpack_from(slot)
            if found == checksum(slot[8:]) and self._MAX_NUMBER > number > (self._number if newest is not None else 0):
                self._number, newest = number, slot[self._HEADER.size :]
        return newest

    def replace(self, payload: bytes) -> None:
        """Write the record to the older slot. Not synced."""
        number = self._number + 1
        body = struct.pack("<Q", number) + payload
        slot = struct.pack("<Q", checksum(body)) + body
        self._disk.write(self._handle, memoryview(slot), number % 2 * self._SLOT_NBYTES)
        self._number = number

    def sync(self) -> None:
        self._disk.sync(self._handle)

    def close(self) -> None:
        self._disk.close(self._handle)


class FolderLock:
    """Holds a log's folder: exclusively for its owner, shared for a reading command. Freed by `close` and by the process's end."""

    NAME = "lock"

    def __init__(self, disk: Disk, handle: int) -> None:
        self._disk = disk
        self._handle = handle

    @classmethod
    def exclusive(cls, disk: Disk, folder: Path) -> FolderLock:
        """Raises `BindFailed` that names who holds it."""
        handle = disk.open_or_create(folder / cls.NAME)
        try:
            disk.lock(handle, exclusive=True)
            disk.truncate(handle, 0)
            disk.write(handle, memoryview(f"{os.getpid()}\n".encode()), 0)
        except BlockingIOError as error:
            holder = _holder(handle)
            disk.close(handle)
            raise BindFailed(
                f"the log in {folder} is held by {holder}",
                remedy="Stop that process, or use another folder",
            ) from error
        except BaseException:
            disk.close(handle)
            raise
        return cls(disk, handle)

    @classmethod
    def shared(cls, disk: Disk, folder: Path) -> FolderLock | None:
        """None where an owner lives. Raises `FileNotFoundError` where the folder holds no log."""
        handle = disk.open(folder / cls.NAME)
        try:
            disk.lock(handle, exclusive=False)
        except BlockingIOError:
            disk.close(handle)
            return None
        return cls(disk, handle)

    def close(self) -> None:
        if self._handle >= 0:
            self._disk.close(self._handle)
            self._handle = -1


def _holder(handle: int) -> str:
    """`process PID`, of whom the system says that it holds the lock, or else who wrote its number into the file last."""
    inode = os.fstat(handle).st_ino
    try:
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if "FLOCK" in fields and "->" not in fields and fields[5].endswith(f":{inode}") and int(fields[4]) > 0:
                return f"process {fields[4]}"
    except (OSError, IndexError, ValueError):
        pass  # Another system, or another form of the table: the file's own word must do.
    text = os.pread(handle, 32, 0).decode("ascii", "replace").strip()
    return f"process {text}" if text else "another process"


def present_boot() -> str:
    """The kernel's name for the time since this machine started: while it is the same, no power failure was between."""
    return BOOT_FILE.read_text().strip()
