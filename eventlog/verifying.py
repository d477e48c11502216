"""Reads everything that a local log's folder holds, and says what is whole, what is damaged, and where. Changes nothing.

An owner that lives is not held up: its files are opened first, and read up to the end that it recorded as durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..consistency.vector import PartitionId
from ..errors import CorruptLog
from .chain import Segment, link, read_at, read_header, segment_numbers, segment_path
from .files import Disk
from .index import SUFFIX
from .local import partition_folder
from .lookup import stored
from .marks import End, EndFile, check_failures
from .reading import FolderReader
from .segment import HEADER_NBYTES, Damage, ReadAt, Scan, find_whole_record

_DURABLE = ", and it was durable"


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something that is damaged."""

    path: Path
    offset: int | None
    """In the file, where it begins; None where the problem says where it is."""
    position: int | None
    """Of the last record before it that counts; None where that is not known."""
    problem: str


@dataclass(frozen=True, slots=True)
class PartitionCheck:
    """What a partition's files hold."""

    partition: PartitionId
    files: int
    records: int
    """Whole ones, whatever they are."""
    nbytes: int
    """Of those records."""
    first: int
    """The position before the first record."""
    last: int
    """Of the last whole record that counts."""
    torn: str
    """What a writer that was killed left behind the last whole record: the next owner cuts it. Empty where there is nothing."""
    flaws: tuple[Flaw, ...]
    remade: tuple[Path, ...] = ()
    """Indices that do not fit, or are damaged: they are made again where they are needed."""


def verify_log(folder: Path, disk: Disk | None = None) -> Iterator[PartitionCheck]:
    """Each partition of the log in turn. Raises `CorruptLog` where the folder holds no log, or no owner could open it for its own
    files, `BindFailed` where it cannot be read.
    """
    disk = Disk() if disk is None else disk
    with FolderReader(folder, disk) as reader:
        check_failures(disk, folder)
        for partition in reader.partitions():
            yield _Check(disk, partition_folder(folder, partition), partition, owner_lives=reader.owner_lives).run()


class _Check:
    """Of one partition."""

    def __init__(self, disk: Disk, folder: Path, partition: PartitionId, *, owner_lives: bool) -> None:
        self._disk = disk
        self._folder = folder
        self._partition = partition
        self._owner_lives = owner_lives
        self._files = ExitStack()
        self._flaws: list[Flaw] = []
        self._torn = ""
        self._end: End | None = None
        self._records = self._nbytes = self._last = 0

    def run(self) -> PartitionCheck:
        with self._files:
            self._end = self._read_end()
            opened = self._open_all()
            segments = [segment for segment, _ in opened]
            try:
                link(segments)
            except CorruptLog as error:
                self._flaws.append(Flaw(self._folder, 0, error.position, error.problem))
            for segment, read in opened:
                self._read(segment, read, is_newest=segment is segments[-1])
            remade = [each.path.with_suffix(SUFFIX) for each in segments[:-1] if not self._has_index(each)]
        if not self._owner_lives:
            self._check_length(segments)
        first = segments[0].start if segments else 0
        return PartitionCheck(
            self._partition,
            len(segments),
            self._records,
            self._nbytes,
            first,
            self._last,
            self._torn,
            tuple(self._flaws),
            tuple(path for path in remade if path.exists()),
        )

    def _has_index(self, segment: Segment) -> bool:
        return stored(self._disk, segment) is not None

    def _check_length(self, segments: list[Segment]) -> None:
        """Whether all is there that was told durable. What is damaged below that has been named already."""
        end, newest = self._end, segments[-1] if segments else None
        reached = (newest.number, newest.end) if newest is not None else (0, 0)
        if end is None or end.offset <= HEADER_NBYTES or reached >= (end.number, end.offset):
            return
        if not any(flaw.problem.endswith(_DURABLE) for flaw in self._flaws):
            path = segment_path(self._folder, end.number)
            there = f"it ends at offset {reached[1]}" if reached[0] == end.number else "it is not there"
            offset = reached[1] if reached[0] == end.number else 0
            self._flaws.append(Flaw(path, offset, self._last, f"{there}, and had {end.offset} bytes{_DURABLE}"))

    def _was_durable(self, number: int, offset: int) -> bool:
        return self._end is not None and self._end.offset > HEADER_NBYTES and (number, offset) < self._end[:2]

    def _open_all(self) -> list[tuple[Segment, ReadAt]]:
        end = self._end
        numbers = segment_numbers(self._disk.names(self._folder))
        if self._owner_lives:
            numbers = [number for number in numbers if end is not None and number <= end.number]
        found: list[tuple[Segment, ReadAt]] = []
        for number in numbers:
            path = segment_path(self._folder, number)
            try:
                segment, read = self._open(path)
            except FileNotFoundError:
                continue  # Its owner has cut it meanwhile.
            except CorruptLog as error:
                if self._was_durable(number, 0):
                    self._flaws.append(Flaw(path, 0, None, error.problem + _DURABLE))
                elif number != numbers[-1] or self._owner_lives:
                    self._flaws.append(Flaw(path, 0, None, error.problem))
                else:
                    self._torn = f"{path}: {error.problem}"
                continue
            if self._owner_lives and end is not None and number == end.number:
                segment.end = max(end.offset, HEADER_NBYTES)
            found.append((segment, read))
        return found

    def _read_end(self) -> End | None:
        try:
            end_file = EndFile(self._disk, self._folder, write=False)
        except FileNotFoundError:
            return None
        try:
            end = end_file.read()
        finally:
            end_file.close()
        if end is None:
            self._flaws.append(Flaw(self._folder / EndFile.NAME, 0, None, "both copies are damaged"))
        return end

    def _open(self, path: Path) -> tuple[Segment, ReadAt]:
        handle = self._disk.open(path)
        self._files.callback(self._disk.close, handle)
        read = partial(read_at, self._disk, handle, path)
        return Segment(path, read_header(read, path, self._partition), self._disk.size_of(handle)), read

    def _read(self, segment: Segment, read: ReadAt, *, is_newest: bool) -> None:
        """Every whole record of a file: what stands behind damage is looked for."""
        offset, point = HEADER_NBYTES, segment.header.point
        while True:
            scanned = Scan(segment.path, read, offset, segment.end, point)
            for record in scanned:
                self._records += 1
                self._nbytes += len(record.frame)
            point = scanned.counting.point
            self._last = max(self._last, point.reached)
            damage = scanned.damage
            if damage is None:
                return
            whole_at = find_whole_record(read, damage, segment.end, self._partition)
            self._note(segment, damage, whole_at, is_newest=is_newest)
            if whole_at is None:
                return
            offset = whole_at

    def _note(self, segment: Segment, damage: Damage, whole_at: int | None, *, is_newest: bool) -> None:
        was_durable = self._was_durable(segment.number, damage.offset)
        is_tail = is_newest and whole_at is None and not damage.is_foreign
        if is_tail and not was_durable and not self._owner_lives:
            rest = segment.end - damage.offset
            self._torn = f"{segment.path}: {rest} bytes from offset {damage.offset} on ({damage.reason})"
            return
        behind = (
            "nothing whole stands behind it" if whole_at is None else f"the next whole record is at offset {whole_at}"
        )
        durable = _DURABLE if is_tail and was_durable else ""
        self._flaws.append(Flaw(segment.path, damage.offset, damage.reached, f"{damage.reason}; {behind}{durable}"))
