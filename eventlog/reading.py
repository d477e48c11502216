"""Reads a local log's folder without being its owner, while one lives or not: for `restore` and `verify`.

Where an owner lives, its files are read to the end that it recorded as durable. Where nobody does, the folder is held shared
(no owner can start meanwhile), the files are synced, and they are read to the last whole record.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from ..consistency.position import START
from ..consistency.vector import PartitionId
from ..errors import BindFailed, CorruptLog, LogTruncated
from ..events.codec import EventFrame, decode_event
from ..events.kinds import Kind
from .chain import Segment, link, read_at, read_header, records_of, scan, segment_numbers, segment_path
from .files import Disk, FolderLock
from .local import check_meta, held_partitions, partition_folder
from .marks import EndFile, storage_error
from .segment import ReadAt, find_whole_record

ATTEMPTS = 3
"""How often reading begins anew from a newer base, because the owner cut a file meanwhile."""


@dataclass(frozen=True, slots=True)
class PartitionRead:
    """What a partition's log holds, from its oldest base on. Its files stay readable until the reader is closed."""

    partition: PartitionId
    base: EventFrame | None
    """The oldest base that is held; None where the log was never cut."""
    start: int
    """The position before the first record."""
    records: Iterator[EventFrame]
    """Events, notes, epoch records *and later bases* that count, in order; claims are left out. One pass.

    Raises `CorruptLog` that names file, offset and position at the first damaged one.
    """
    torn: str
    """What lies behind the last whole record, in words; empty where nothing does, or an owner lives."""


class FolderReader:
    """Holds a log's folder for reading, as a context manager."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        """Raises `CorruptLog` where the folder holds no log, `BindFailed` where it cannot be read."""
        self._folder = Path(folder)
        self._disk = Disk() if disk is None else disk
        check_meta(self._folder)
        try:
            self._lock = FolderLock.shared(self._disk, self._folder)
        except OSError as error:
            raise BindFailed(f"cannot read the log in {self._folder}: {error.strerror}") from error
        self._files = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def owner_lives(self) -> bool:
        return self._lock is None

    def partitions(self) -> list[PartitionId]:
        return held_partitions(self._disk.names(self._folder))

    def read(self, partition: PartitionId) -> PartitionRead:
        """Opens the partition's files; the records are read as they are asked for.

        Raises `LogTruncated` where the owner cuts faster than its files can be opened, `CorruptLog` where they do not hang
        together.
        """
        folder = partition_folder(self._folder, partition)
        if not folder.is_dir():
            return PartitionRead(partition, None, START, iter(()), "")
        try:
            if not self.owner_lives:
                return self._read_all(partition, folder)
            for _ in range(ATTEMPTS):
                read = self._read_durable(partition, folder)
                if read is not None:
                    return read
        except OSError as error:
            raise storage_error("read", folder, error) from error
        raise LogTruncated(
            f"the owner of {folder} cut its log {ATTEMPTS} times while it was opened",
            partition=partition[1],
            remedy="Read again",
        )

    def _read_durable(self, partition: PartitionId, folder: Path) -> PartitionRead | None:
        """None where a file went away, so that reading begins again."""
        try:
            end_file = EndFile(self._disk, folder, write=False)
        except FileNotFoundError:
            return PartitionRead(partition, None, START, iter(()), "")
        try:
            end = end_file.read()
        finally:
            end_file.close()
        if end is None:
            raise CorruptLog(f"both copies in {folder / EndFile.NAME} are damaged", partition=partition[1])
        numbers = [number for number in segment_numbers(self._disk.names(folder)) if number <= end.number]
        try:
            opened = [self._open(partition, segment_path(folder, number)) for number in numbers]
        except FileNotFoundError:
            return None
        if not end.offset:
            return PartitionRead(partition, None, START, iter(()), "")
        if not opened or opened[-1][0].number != end.number:
            return None
        opened[-1][0].end = end.offset
        return _read(partition, opened, "")

    def _read_all(self, partition: PartitionId, folder: Path) -> PartitionRead:
        numbers = segment_numbers(self._disk.names(folder))
        opened = list[tuple[Segment, ReadAt]]()
        torn = ""
        for number in numbers:
            path = segment_path(folder, number)
            try:
                opened.append(self._open(partition, path, sync=True))
            except CorruptLog as error:
                if number != numbers[-1]:
                    raise
                torn = f"{path}: {error.problem}"
        if opened and not torn:
            torn = _end_at_last_whole(partition, *opened[-1])
        return _read(partition, opened, torn)

    def _open(self, partition: PartitionId, path: Path, *, sync: bool = False) -> tuple[Segment, ReadAt]:
        handle = self._disk.open(path)
        self._files.callback(self._disk.close, handle)
        if sync:
            self._disk.sync(handle)
        read = partial(read_at, self._disk, handle, path)
        return Segment(path, read_header(read, path, partition), self._disk.size_of(handle)), read

    def close(self) -> None:
        """Give back files and lock. A second call changes nothing."""
        self._files.close()
        if self._lock is not None:
            self._lock.close()


def _end_at_last_whole(partition: PartitionId, segment: Segment, read: ReadAt) -> str:
    """End the newest segment before a torn tail, and say so. Damage with whole records behind it is left to be met."""
    scanned = scan(segment, read)
    for _ in scanned:
        pass
    damage = scanned.damage
    if damage is None or damage.is_foreign or find_whole_record(read, damage, segment.end, partition) is not None:
        return ""
    torn = f"{segment.path}: {segment.end - damage.offset} bytes from offset {damage.offset} on ({damage.reason})"
    segment.end = damage.offset
    return torn


def _read(partition: PartitionId, opened: list[tuple[Segment, ReadAt]], torn: str) -> PartitionRead:
    first = link([segment for segment, _ in opened])
    opened = opened[first:]
    if not opened:
        return PartitionRead(partition, None, START, iter(()), torn)
    records = _records(opened)
    base: EventFrame | None = None
    if opened[0][0].header.begins_with_base:
        base = next(records, None)
        if base is None or base.kind is not Kind.BASE:
            raise CorruptLog(f"{opened[0][0].path} does not begin with a base that counts", partition=partition[1])
    return PartitionRead(partition, base, opened[0][0].start, records, torn)


def _records(opened: list[tuple[Segment, ReadAt]]) -> Iterator[EventFrame]:
    for segment, read in opened:
        for record in records_of(segment, read):
            if record.counts and record.prefix.kind is not Kind.CLAIM:
                yield decode_event(record.frame)
