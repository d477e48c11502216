"""What a local log knows beside its records: how many writes have failed, and how far each partition is durable."""

from __future__ import annotations

import errno
import struct
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from ..errors import CorruptLog, ParamstreamError, StorageFull
from ..events.digest import checksum
from .files import Disk, SlotFile

_COUNT = struct.Struct("<Q")
_MAX_COUNT = 1 << 63
"""Nobody counts so far: it is not what was written."""
_END = struct.Struct("<QQQQQ")


def storage_error(action: str, path: Path, error: OSError) -> ParamstreamError:
    """The typed error for an operation on a file that failed for good."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StorageFull(f"no space is left to {action} {path}: {error.strerror}", remedy="Free space")
    return CorruptLog(f"cannot {action} {path}: {error.strerror or error}", remedy="Check the disk, and start again")


class FailureCount:
    """How many writes and syncs have failed since the folder was made. Raised, and synced, before anything is cut."""

    NAME = "failures"

    def __init__(self, disk: Disk, folder: Path) -> None:
        path = folder / self.NAME
        if self.NAME not in disk.names(folder):
            SlotFile.make(disk, path, _COUNT.pack(0))
        self._path = path
        self._lock = Lock()
        self._slots = SlotFile(disk, disk.open(path, write=True), _COUNT.size)
        payload = self._slots.read()
        count: int | None = None if payload is None else _COUNT.unpack(payload)[0]
        if count is None or count > _MAX_COUNT:
            self._slots.close()
            raise _damaged_count(path)
        self._count = count

    @property
    def count(self) -> int:
        return self._count

    def raise_by_one(self) -> None:
        """Raises `CorruptLog` (or `StorageFull`) where the count cannot be made safe: then nothing may go on."""
        with self._lock:
            try:
                self._slots.replace(_COUNT.pack(self._count + 1))
                self._slots.sync()
            except OSError as error:
                raise storage_error("mark a failed write in", self._path, error) from error
            self._count += 1

    def close(self) -> None:
        self._slots.close()


def check_failures(disk: Disk, folder: Path) -> None:
    """Raises `CorruptLog` where the count in a log's folder could not be read by an owner. Changes nothing."""
    if FailureCount.NAME not in disk.names(folder):
        return
    slots = SlotFile(disk, disk.open(folder / FailureCount.NAME), _COUNT.size)
    try:
        payload = slots.read()
        if payload is None or _COUNT.unpack(payload)[0] > _MAX_COUNT:
            raise _damaged_count(folder / FailureCount.NAME)
    finally:
        slots.close()


def _damaged_count(path: Path) -> CorruptLog:
    return CorruptLog(f"both copies in {path} are damaged", remedy="Remove the file: writes then count from 0")


NEVER_STORED = 1
"""A write or sync has failed since: the system may show it, and nobody stores it. Nothing of it counts."""
NOT_SYNCED = 2
"""A recovery wrote it again and failed: it is recovered once more, and where the system has let go of it, it has holes."""


class End(NamedTuple):
    """How far a partition is durable, recorded before anybody is told."""

    number: int
    """Of the segment."""
    offset: int
    """What lies before it in that segment, and all segments before, is synced."""
    position: int
    boot: int
    """A checksum of the machine's boot at that time."""
    doubtful: int = 0
    """What lies behind the end: 0, or `NEVER_STORED`, or `NOT_SYNCED`."""


class EndFile:
    """Keeps a partition's `End`. It is not synced itself: it tells the living, and a power failure makes it old, not wrong."""

    NAME = "end"

    def __init__(self, disk: Disk, folder: Path, *, write: bool) -> None:
        self._path = folder / self.NAME
        self._slots = SlotFile(disk, disk.open(self._path, write=write), _END.size)

    @classmethod
    def make(cls, disk: Disk, folder: Path, end: End) -> None:
        SlotFile.make(disk, folder / cls.NAME, _END.pack(*end))

    def read(self) -> End | None:
        """None where both copies are damaged."""
        payload = self._slots.read()
        return None if payload is None else End(*_END.unpack(payload))

    def record(self, end: End) -> None:
        try:
            self._slots.replace(_END.pack(*end))
        except OSError as error:
            raise storage_error("record the durable end in", self._path, error) from error

    def close(self) -> None:
        self._slots.close()


def boot_mark(boot: str) -> int:
    return checksum(boot.encode())
