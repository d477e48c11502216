"""What a local log does with a partition's files before its owner may append: find the last whole record, and say what is cut.

A process that was killed leaves at most one record that is not whole, at the end of the newest file. A power failure may leave
anything there, but only behind the last sync. A failed write or sync leaves records which the system shows and the disk may
never have got. Everything else that is not whole is damage, which is named and never cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..consistency.position import START, show
from ..consistency.vector import META, PartitionId
from ..errors import CorruptLog
from ..events.codec import PREFIX_BYTES, EventFrame, decode_event
from ..events.kinds import Kind
from .chain import Segment, link, opened, read_header, scan, segment_numbers, segment_path
from .counting import BEGINNING, Point
from .files import Disk
from .index import Entry, Index
from .marks import NEVER_STORED, NOT_SYNCED, End
from .segment import HEADER_NBYTES, MAX_READ_NBYTES, Damage, ReadAt, Record, find_whole_record

_LOST = "it was under no successful sync when a write failed"


@dataclass(frozen=True, slots=True)
class Tail:
    """The files of a partition as they stand after recovery."""

    segments: list[Segment]
    base: EventFrame | None
    base_index: int
    """Which of `segments` is read first: the one of the newest base, or 0."""
    point: Point
    index: Index
    """Of the newest segment."""
    cut: str


class Recovery:
    """One recovery of one partition. `run` may remove files and shorten the newest one; it syncs what is left."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        partition: PartitionId,
        end: End | None,
        boot: int,
        count_failure: Callable[[], None],
    ) -> None:
        """`count_failure` is called before anything is cut that was accepted: whoever met the failure may have ended before."""
        self._disk = disk
        self._count_failure = count_failure
        self._folder = folder
        self._partition = partition
        self._end = end
        self._unsynced_is_lost = end is not None and end.boot == boot and end.doubtful == NEVER_STORED
        """In this boot a write or sync failed and was not made good: the system may show what the disk never got."""
        self._power_may_have_failed = end is not None and end.boot != boot
        self._was_not_synced = end is not None and end.boot == boot and end.doubtful == NOT_SYNCED
        """In this boot a recovery failed: the disk may never get what lies behind the end unless it is written again."""
        self._cut: list[str] = []

    def run(self) -> Tail:
        if self._unsynced_is_lost or self._was_not_synced:
            self._count_failure()
        segments = self._load()
        if self._unsynced_is_lost and self._end is not None:
            self._cut_behind(segments, self._end)
        first = link(segments)
        for segment in segments[:first]:
            self._disk.unlink(segment.path)
            self._disk.sync_folder(self._folder)
        segments = segments[first:]
        while segments:
            base_index = max((i for i, each in enumerate(segments) if each.header.begins_with_base), default=0)
            tail = self._read(segments, base_index)
            if tail is not None:
                return tail
        return Tail([], None, 0, BEGINNING, Index([Entry(HEADER_NBYTES, BEGINNING)]), "; ".join(self._cut))

    def _load(self) -> list[Segment]:
        """The files with their headers. Those that were never finished, and that no later one continues, are removed: a power
        failure may bring them back. So is one that, header and all, was under no sync when a write failed.
        """
        segments, unread = list[Segment](), list[tuple[int, CorruptLog]]()
        for number in segment_numbers(self._disk.names(self._folder)):
            path = segment_path(self._folder, number)
            size = self._disk.size(path)
            with opened(self._disk, path) as read:
                try:
                    segment = Segment(path, read_header(read, path, self._partition), size)
                except CorruptLog as error:
                    if self._is_lost(number) and not error.remedy:
                        self._discard(path, size, _LOST)
                    else:
                        unread.append((number, error))
                    continue
            self._pass_over(segments, unread, segment)
            unread.clear()
            segments.append(segment)
        for number, problem in reversed(unread):
            self._remove_unread(number, problem, segments[-1].start if segments else START)
        return segments

    def _pass_over(self, segments: list[Segment], unread: list[tuple[int, CorruptLog]], segment: Segment) -> None:
        """Remove what `segment` does not continue, though it comes before it: the file before it is an older one."""
        for number, error in unread:
            if number <= segment.header.previous or error.remedy:
                raise error
        for number, error in unread:
            path = segment_path(self._folder, number)
            self._discard(path, self._disk.size(path), error.problem)
        while segments and segments[-1].number > segment.header.previous:
            self._remove(segments.pop(), "no file continues it")

    def _remove_unread(self, number: int, error: CorruptLog, reached: int) -> None:
        """One of the newest files, whose header is not whole."""
        path = segment_path(self._folder, number)
        size = self._disk.size(path)
        damage = Damage(path, 0, reached, error.problem, 1, is_foreign=bool(error.remedy))
        with opened(self._disk, path) as read:
            self._judge(damage, number, find_whole_record(read, damage, size, self._partition))
        if self._end is not None and number == self._end.number:
            self._refuse_loss(path, 0, reached, error.problem)
        self._discard(path, size, error.problem)

    def _is_lost(self, number: int) -> bool:
        """Nothing of the file, not even its header, was under a sync when a write or sync failed."""
        if not self._unsynced_is_lost or self._end is None:
            return False
        return number > self._end.number or (number == self._end.number and self._end.offset <= HEADER_NBYTES)

    def _cut_behind(self, segments: list[Segment], end: End) -> None:
        while segments and segments[-1].number > end.number:
            self._remove(segments.pop(), _LOST)
        if segments and segments[-1].number == end.number and segments[-1].end > max(end.offset, HEADER_NBYTES):
            self._shorten(segments[-1], max(end.offset, HEADER_NBYTES), _LOST)

    def _read(self, segments: list[Segment], base_index: int) -> Tail | None:
        """Read from the newest base on, cut the torn tail, sync. None where that removed the newest file."""
        first, newest = segments[base_index], segments[-1]
        base: EventFrame | None = None
        index, point = Index([Entry(HEADER_NBYTES, first.header.point)]), first.header.point
        for segment in segments[base_index:]:
            if segment.header.point != point:
                raise CorruptLog(
                    f"{segment.path} begins behind position {show(segment.start)}, and the file before it ends at "
                    f"{show(point.reached)}",
                    partition=self._partition[1],
                    position=point.reached,
                    remedy="Restore the damaged one from a copy",
                )
            index = Index([Entry(HEADER_NBYTES, point)])
            with opened(self._disk, segment.path) as read:
                scanned = scan(segment, read)
                for record in scanned:
                    index.note(record.offset, record.before)
                    if segment is first and record.offset == HEADER_NBYTES:
                        base = _base_of(segment, record)
                point = scanned.counting.point
                if scanned.damage is not None:
                    self._cut_damage(segment, newest, scanned.damage, read)
            if segment.header.begins_with_base and scanned.offset == HEADER_NBYTES:
                self._remove(segments.pop(), "its base is not whole")
                return None
        self._refuse_loss(newest.path, newest.end, point.reached, "it ends there")
        self._sync(newest)
        return Tail(segments, base, base_index, point, index, "; ".join(self._cut))

    def _cut_damage(self, segment: Segment, newest: Segment, damage: Damage, read: ReadAt) -> None:
        if segment is not newest:
            raise damage.error(self._partition[1])
        self._judge(damage, segment.number, find_whole_record(read, damage, segment.end, self._partition))
        self._refuse_loss(segment.path, damage.offset, damage.reached, damage.reason)
        left_nbytes = segment.end - damage.offset
        is_unfinished_write = left_nbytes < PREFIX_BYTES or damage.resumes_at >= segment.end
        if not (self._power_may_have_failed or is_unfinished_write):
            self._count_failure()
        self._shorten(segment, damage.offset, damage.reason)

    def _judge(self, damage: Damage, number: int, whole_at: int | None) -> None:
        """Raises `CorruptLog` unless the damage can only be a torn tail."""
        if damage.is_foreign:
            raise damage.error(self._partition[1])
        if whole_at is None:
            return
        may_have_holes = self._power_may_have_failed or self._was_not_synced
        if may_have_holes and self._end is not None and (number, damage.offset) >= self._end[:2]:
            return
        raise damage.error(self._partition[1], f"; a whole record stands behind it at offset {whole_at}")

    def _refuse_loss(self, path: Path, offset: int, reached: int, reason: str) -> None:
        """Of other partitions a torn tail is cut, and what was durable in it is told to be lost. Here it may have been a topic, of which
        nobody would hear again: nothing is changed, and `CorruptLog` raised.
        """
        if self._partition != META or self._end is None or reached >= self._end.position:
            return
        raise CorruptLog(
            f"{path} is damaged at offset {offset}: {reason}, and what stood there was durable",
            partition=self._partition[1],
            position=reached,
            remedy="Restore the file from a copy: it holds which topics there are",
        )

    def _shorten(self, segment: Segment, end: int, reason: str) -> None:
        self._say(segment.path, end, segment.end - end, reason)
        handle = self._disk.open(segment.path, write=True)
        try:
            self._disk.truncate(handle, end)
        finally:
            self._disk.close(handle)
        segment.end = end

    def _remove(self, segment: Segment, reason: str) -> None:
        self._discard(segment.path, segment.end, reason)

    def _discard(self, path: Path, nbytes: int, reason: str) -> None:
        self._say(path, 0, nbytes, reason)
        self._disk.unlink(path)
        self._disk.sync_folder(self._folder)

    def _say(self, path: Path, offset: int, nbytes: int, reason: str) -> None:
        self._cut.append(f"{path}: {nbytes} bytes from offset {offset} on ({reason})")

    def _sync(self, newest: Segment) -> None:
        handle = self._disk.open(newest.path, write=True)
        try:
            self._write_again(newest, handle)
            self._disk.sync(handle)
        finally:
            self._disk.close(handle)
        self._disk.sync_folder(self._folder)

    def _write_again(self, newest: Segment, handle: int) -> None:
        """What is under no sync that was told of, as it stands: where a sync failed the next one would succeed and store nothing,
        and whoever met the failure may have been killed before it was marked. What is written again is stored again.
        """
        if self._end is None or self._power_may_have_failed:
            return
        at = self._end.offset if newest.number == self._end.number else 0
        while at < newest.end:
            piece = self._disk.read(handle, min(MAX_READ_NBYTES, newest.end - at), at)
            self._disk.write(handle, memoryview(piece), at)
            at += len(piece)


def _base_of(segment: Segment, record: Record) -> EventFrame | None:
    if not segment.header.begins_with_base:
        return None
    if record.prefix.kind is not Kind.BASE or not record.counts:
        raise CorruptLog(
            f"{segment.path} does not begin with a base that counts", partition=segment.header.partition[1]
        )
    return decode_event(record.frame)
