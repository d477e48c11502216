"""The segments of one partition in its folder, in order: each names the one before it and where that one ends."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from ..consistency.position import START
from ..consistency.vector import PartitionId
from ..errors import CorruptLog
from ..events.codec import EventFrame, decode_event
from .counting import Point
from .files import Disk
from .segment import HEADER_NBYTES, SUFFIX, Glimpse, Header, ReadAt, Record, Scan, ViewAt


@dataclass(slots=True)
class Segment:
    """One file of a partition, as far as it counts."""

    path: Path
    header: Header
    end: int
    """Where its records end, in bytes; what lies behind is void."""

    @property
    def start(self) -> int:
        """The position before its first record."""
        return self.header.point.reached

    @property
    def number(self) -> int:
        return self.header.number

    @property
    def nbytes(self) -> int:
        """Of its records."""
        return self.end - HEADER_NBYTES


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}{SUFFIX}"


def segment_numbers(names: list[str]) -> list[int]:
    """The numbers of the segments among a folder's names, in order."""
    stems = [name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)]
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdecimal())


@contextmanager
def opened(disk: Disk, path: Path) -> Generator[ReadAt]:
    """Reads of the file at `path`. Raises `FileNotFoundError` where it is gone, `CorruptLog` naming it where it cannot be read."""
    try:
        handle = disk.open(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CorruptLog(f"cannot open {path}: {error.strerror}", remedy="Check the disk, and `ulimit -n`") from error
    try:
        yield partial(read_at, disk, handle, path)
    finally:
        disk.close(handle)


def read_at(disk: Disk, handle: int, path: Path, nbytes: int, offset: int) -> bytes:
    try:
        return disk.read(handle, nbytes, offset)
    except OSError as error:
        raise CorruptLog(f"cannot read {path} at offset {offset}: {error.strerror}", remedy="Check the disk") from error


def read_header(read: ReadAt, path: Path, partition: PartitionId) -> Header:
    """Raises `CorruptLog` that names the file and what is wrong with its header."""
    try:
        header = Header.decode(read(HEADER_NBYTES, 0))
    except CorruptLog as error:
        raise CorruptLog(f"{path}: {error.problem}", partition=partition[1], remedy=error.remedy) from error
    if header.partition != partition or segment_path(path.parent, header.number) != path:
        raise CorruptLog(
            f"{path} is a copy of another segment: it says number {header.number}",
            partition=partition[1],
            remedy="Remove the copy",
        )
    return header


def link(segments: list[Segment]) -> int:
    """Check that each segment continues the one before it, and end that one where it says. Returns where the chain begins.

    What stands before its first base is the rest of a cut that was not finished. Raises `CorruptLog` naming what is missing.
    """
    for before, segment in pairwise(segments):
        header = segment.header
        if header.previous != before.number or header.previous_end > before.end:
            missing = segment_path(segment.path.parent, header.previous)
            raise CorruptLog(
                f"{segment.path} continues {missing} from offset {header.previous_end}, which is not there",
                partition=header.partition[1],
                position=segment.start,
                remedy="Restore the missing file from a copy",
            )
        before.end = header.previous_end
    for index, segment in enumerate(segments):
        if segment.header.begins_with_base or not segment.header.previous:
            return index
    if segments:
        raise CorruptLog(
            f"no base is left in {segments[0].path.parent}: its records cannot be read without one",
            partition=segments[0].header.partition[1],
            remedy="Restore the missing files from a copy",
        )
    return 0


def scan(
    segment: Segment,
    read: ViewAt,
    *,
    offset: int = HEADER_NBYTES,
    point: Point | None = None,
    passed: int = START,
    glimpse: Glimpse | None = None,
) -> Scan:
    """See `Scan`; from the segment's beginning unless an offset and the point that is reached there are given."""
    point = segment.header.point if point is None else point
    return Scan(segment.path, read, offset, segment.end, point, passed, glimpse)


def records_of(segment: Segment, read: ReadAt) -> Iterator[Record]:
    """All records of a segment, void ones too. Raises `CorruptLog` that names the place of a damaged one."""
    scanned = scan(segment, read)
    yield from scanned
    if scanned.damage is not None:
        raise scanned.damage.error(segment.header.partition[1])


def events_of(disk: Disk, segments: list[Segment]) -> Iterator[EventFrame]:
    """Events, notes and epoch records that count. Opens each file when it gets there."""
    for segment in segments:
        with opened(disk, segment.path) as read:
            for record in records_of(segment, read):
                if record.is_read:
                    yield decode_event(record.frame)
