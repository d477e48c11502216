"""Reads a local log's folder without being its owner, while one lives or not: for `restore` and `verify`.

Where an owner lives, its files are read to the end that it recorded as durable. Where nobody does, the folder is held shared
(no owner can start meanwhile), the files are synced, and they are read to the last whole record.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from ..consistency.position import START
from ..consistency.vector import META, PartitionId
from ..errors import BindFailed, CorruptLog, LogTruncated
from ..events.codec import EventFrame, decode_event
from ..events.kinds import Kind
from .ahead import ReadAhead
from .chain import Segment, link, read_header, scan, segment_numbers, segment_path
from .files import Disk, FolderLock
from .glance import Glance
from .index import Entry, Index
from .local import check_meta, held_partitions, partition_folder
from .lookup import beginning, build, stored
from .mapped import MappedFile
from .marks import EndFile, storage_error
from .segment import HEADER_NBYTES, find_whole_record

_log = logging.getLogger(__name__)

ATTEMPTS = 3
"""How often reading begins anew from a newer base, because the owner cut a file meanwhile."""


@dataclass(frozen=True, slots=True)
class PartitionRead:
    """What a partition's log holds, from one of its bases on. Its files stay readable until the reader is closed."""

    partition: PartitionId
    base: EventFrame | None
    """The base that it begins with: the oldest one, unless another was asked for. None where it begins without one."""
    start: int
    """The position before the first record that the log holds."""
    records: Iterator[EventFrame]
    """Events, notes, epoch records *and later bases* that count, in order; claims are left out. One pass.

    Raises `CorruptLog` that names file, offset and position at the first damaged one.
    """
    torn: str
    """What lies behind the last whole record, in words; empty where nothing does, or an owner lives."""


class LogReader(Protocol):
    """Reads a log without being an owner of its partitions. `FolderReader` is one."""

    def partitions(self) -> list[PartitionId]: ...

    def read(self, partition: PartitionId, after: int = START) -> PartitionRead:
        """From the oldest base on. With `after` from little before what lies behind that position, and without a base."""
        ...

    def read_newest(self, partition: PartitionId) -> PartitionRead:
        """From the newest base on; as `read` where there is none. The bulk of chunks may not be touched: it may not be there."""
        ...

    def close(self) -> None: ...


Chain = list[tuple[Segment, MappedFile]]
"""Segments in order, opened."""


class FolderReader:
    """Holds a log's folder for reading, as a context manager."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        """Raises `CorruptLog` where the folder holds no log, `BindFailed` where it cannot be read."""
        self._folder = Path(folder)
        self._disk = Disk() if disk is None else disk
        check_meta(self._disk, self._folder)
        try:
            self._lock = FolderLock.shared(self._disk, self._folder)
        except OSError as error:
            raise BindFailed(f"cannot read the log in {self._folder}: {error.strerror}") from error
        self._files = ExitStack()
        self._ahead = ReadAhead(self._disk)
        self._indices: dict[Path, tuple[int, Index]] = {}
        """Segment → (the end that it covers, where it can be read from)."""
        self._chains: dict[PartitionId, tuple[Chain, str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def owner_lives(self) -> bool:
        return self._lock is None

    def partitions(self) -> list[PartitionId]:
        return held_partitions(self._disk.names(self._folder))

    def read(self, partition: PartitionId, after: int = START) -> PartitionRead:
        """Opens the partition's files; the records are read as they are asked for.

        With `after` they begin little before the first one behind that position, there is no base, and the files are those that
        were opened before, if the partition was read before: however often it is asked, they stay as few.
        Raises `LogTruncated` where the owner cuts faster than its files can be opened, or `after` lies before the log's start,
        `CorruptLog` where they do not hang together.
        """
        if after == START or partition not in self._chains:
            self._chains[partition] = self._chain(partition)
        opened, torn = self._chains[partition]
        if not opened:
            return PartitionRead(partition, None, START, iter(()), torn)
        start = opened[0][0].start
        if after <= start:
            if START < after < start:
                raise LogTruncated("the log no longer reaches back", partition=partition[1], position=after)
            base, records = self._from_base(opened)
            return PartitionRead(partition, base, start, records, torn)
        first = max(at for at, (segment, _) in enumerate(opened) if segment.start <= after)
        entry = self._index(*opened[first]).find(after)
        return PartitionRead(partition, None, start, _records(opened[first:], entry), torn)

    def read_newest(self, partition: PartitionId) -> PartitionRead:
        """From the newest base on that is held; as `read` where there is none. Of large chunks only what `Glance` needs is read."""
        opened, torn = self._chains[partition] = self._chain(partition)
        if not opened:
            return PartitionRead(partition, None, START, iter(()), torn)
        for first in range(len(opened) - 1, 0, -1):
            if opened[first][0].header.begins_with_base:
                with suppress(CorruptLog):
                    base, records = self._from_base(opened[first:], Glance())
                    return PartitionRead(partition, base, opened[0][0].start, records, torn)
        base, records = self._from_base(opened, Glance())
        return PartitionRead(partition, base, opened[0][0].start, records, torn)

    def _chain(self, partition: PartitionId) -> tuple[Chain, str]:
        """The partition's segments from its oldest base on, and what is torn behind them. Where nobody owns the log nobody changes
        it: then they are opened and looked through once.
        """
        if not self.owner_lives and partition in self._chains:
            return self._chains[partition]
        folder = partition_folder(self._folder, partition)
        if not self._disk.is_folder(folder):
            return [], ""
        try:
            if not self.owner_lives:
                return self._chain_of_all(partition, folder)
            for _ in range(ATTEMPTS):
                opened = self._durable_chain(partition, folder)
                if opened is not None:
                    return opened, ""
        except OSError as error:
            raise storage_error("read", folder, error) from error
        raise LogTruncated(
            f"the owner of {folder} cut its log {ATTEMPTS} times while it was opened",
            partition=partition[1],
            remedy="Read again",
        )

    def _durable_chain(self, partition: PartitionId, folder: Path) -> Chain | None:
        """None where a file went away, so that reading begins again."""
        try:
            end_file = EndFile(self._disk, folder, write=False)
        except FileNotFoundError:
            return []
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
            return []
        if not opened or opened[-1][0].number != end.number:
            return None
        opened[-1][0].end = end.offset
        return _linked(opened)

    def _chain_of_all(self, partition: PartitionId, folder: Path) -> tuple[Chain, str]:
        numbers = segment_numbers(self._disk.names(folder))
        opened = Chain()
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
            (segment, _), (torn, index) = opened[-1], _end_at_last_whole(partition, *opened[-1])
            self._indices[segment.path] = segment.end, index
        linked = _linked(opened)
        self._check_end(partition, folder, linked, torn)
        return linked, torn

    def _check_end(self, partition: PartitionId, folder: Path, opened: Chain, torn: str) -> None:
        """What was durable and is not there is said: an owner would tell it as lost, and would not start where topics may be among it."""
        with suppress(FileNotFoundError), closing(EndFile(self._disk, folder, write=False)) as end_file:
            end = end_file.read()
            reached = (opened[-1][0].number, opened[-1][0].end) if opened else (0, 0)
            if end is None or end.offset <= HEADER_NBYTES or reached >= end[:2]:
                return
            problem = torn or f"{folder} ends at offset {reached[1]} of segment {reached[0]}"
            problem += f"; it was durable to offset {end.offset} of segment {end.number}"
            if partition == META:
                raise CorruptLog(
                    problem,
                    partition=partition[1],
                    remedy="Restore the file from a copy: it holds which topics there are",
                )
            _log.warning("the log has lost what was durable: %s", problem)

    def _from_base(self, opened: Chain, glance: Glance | None = None) -> tuple[EventFrame | None, Iterator[EventFrame]]:
        segment = opened[0][0]
        records = _records(opened, beginning(segment), glance)
        if not segment.header.begins_with_base:
            return None, records
        base = next(records, None)
        if base is None or base.kind is not Kind.BASE:
            raise CorruptLog(
                f"{segment.path} does not begin with a base that counts", partition=segment.header.partition[1]
            )
        return base, records

    def _index(self, segment: Segment, file: MappedFile) -> Index:
        """Where the segment can be read from: what its owner has written of it, or made here."""
        known = self._indices.get(segment.path)
        if known is None or known[0] != segment.end:
            index = stored(self._disk, segment) or build(segment, file.view)[0]
            self._indices[segment.path] = known = segment.end, index
        return known[1]

    def _open(self, partition: PartitionId, path: Path, *, sync: bool = False) -> tuple[Segment, MappedFile]:
        handle = self._disk.open(path)
        self._files.callback(self._disk.close, handle)
        if sync:
            self._disk.sync(handle)
        file = MappedFile(self._disk, handle, path, ahead=self._ahead)
        self._files.callback(file.let_go)
        return Segment(path, read_header(file.read, path, partition), self._disk.size_of(handle)), file

    def close(self) -> None:
        """Give back files and lock. A second call changes nothing."""
        self._ahead.close()
        self._files.close()
        if self._lock is not None:
            self._lock.close()


def _end_at_last_whole(partition: PartitionId, segment: Segment, file: MappedFile) -> tuple[str, Index]:
    """End the newest segment before a torn tail, and say so. Damage with whole records behind it is left to be met.

    Reads all of the segment, and so knows where it can be read from.
    """
    scanned, index = scan(segment, file.view), Index([beginning(segment)])
    for record in scanned:
        index.note(record.offset, record.before)
    damage = scanned.damage
    if damage is None or damage.is_foreign or find_whole_record(file.read, damage, segment.end, partition) is not None:
        return "", index
    torn = f"{segment.path}: {segment.end - damage.offset} bytes from offset {damage.offset} on ({damage.reason})"
    segment.end = damage.offset
    return torn, index


def _linked(opened: Chain) -> Chain:
    """From the chain's beginning on; what stands before it is the rest of a cut that was not finished."""
    return opened[link([segment for segment, _ in opened]) :]


def _records(opened: Chain, first: Entry, glance: Glance | None = None) -> Iterator[EventFrame]:
    """What counts, claims left out, from `first` of the first segment on. With `glance`, chunks without their bulk."""
    for at, (segment, file) in enumerate(opened):
        entry = first if at == 0 else beginning(segment)
        read, glimpse = file, None
        if glance is not None:
            read = file.glanced_at()
            glimpse = partial(glance.frame, read)
        elif at + 1 < len(opened):
            file.next = opened[at + 1][1]
        scanned = scan(segment, read.view, offset=entry.offset, point=entry.point, glimpse=glimpse)
        for record in scanned:
            if record.counts and record.prefix.kind is not Kind.CLAIM:
                event = decode_event(record.frame, is_checked=True)
                if glance is not None:
                    glance.saw(event)
                yield event
        if scanned.damage is not None:
            raise scanned.damage.error(segment.header.partition[1])
        read.let_go()
