"""One partition of a local log while its owner lives: append, group commit, read, cut.

Two locks. `_lock` guards the fields and is held for moments; whatever takes a disk's time *and* changes which file is written
holds `_sync_lock` too, which every sync holds: so the file never changes under a sync, and each sync's outcome is seen by
the one that relies on it (the system tells of a failed write-back only once).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Lock

from ..consistency.position import show
from ..consistency.vector import PartitionId
from ..errors import CorruptLog, LogTruncated, ParamstreamError, StorageFull
from ..events.codec import Buffer, EventFrame, Prefix, read_prefix
from ..events.kinds import Kind
from .chain import Segment, events_of, opened, records_of, segment_numbers, segment_path
from .counting import BEGINNING, Counting, Point
from .files import Disk
from .index import Index
from .log import Batch, Recovered
from .lookup import Lookup, beginning
from .marks import NEVER_STORED, NOT_SYNCED, End, EndFile, FailureCount, storage_error
from .recovery import Recovery, Tail
from .segment import HEADER_NBYTES, Header
from .tally import Tally


class LocalPartition:
    """See `log.PartitionLog`. A frame that is given is kept until it is synced, not copied, and must not change."""

    def __init__(
        self,
        folder: Path,
        partition: PartitionId,
        *,
        disk: Disk,
        segment_nbytes: int,
        tally: Tally,
        failures: FailureCount,
        boot: int,
    ) -> None:
        self._folder = folder
        self._partition = partition
        self._disk = disk
        self._segment_nbytes = segment_nbytes
        self._tally = tally
        self._failures = failures
        self._boot = boot
        self._lock = Lock()
        self._sync_lock = Lock()
        self._counting = Counting()
        self._segments = list[Segment]()
        self._given_up: deque[Segment] = deque()
        """Cut, and not removed yet, oldest first."""
        self._lookup = Lookup(disk)
        self._index: Index | None = None
        """Of the newest segment; None where that is closed."""
        self._generation = 0
        """Grows when files change other than by growing: a reader that met one reads again."""
        self._handle = -1
        """Of the newest segment, once something was appended."""
        self._unsynced: deque[tuple[int, memoryview]] = deque()
        """(where it ends in the newest segment, frame) of what no sync covers."""
        self._synced_end = HEADER_NBYTES
        """In the newest segment."""
        self._synced = BEGINNING
        self._last_number = 0
        self._end_file: EndFile | None = None
        self._recovered = False
        self._broken: ParamstreamError | None = None
        """Why nothing more can be written, once that is so."""
        self._counted = self._on_disk()
        """What of the tally is this partition's."""
        tally.add(self._counted)

    def _on_disk(self) -> int:
        if not self._disk.is_folder(self._folder):
            return 0
        numbers = segment_numbers(self._disk.names(self._folder))
        sizes = [self._disk.size(segment_path(self._folder, number)) for number in numbers]
        return sum(max(0, size - HEADER_NBYTES) for size in sizes)

    @property
    def partition(self) -> PartitionId:
        return self._partition

    @property
    def start(self) -> int:
        segments = self._segments
        return segments[0].start if segments else 0

    @property
    def nbytes(self) -> int:
        return self._counted

    @property
    def trouble(self) -> str:
        return ""

    @property
    def is_full(self) -> bool:
        """A full disk has stopped it for good. Another one of the same folder goes on, once there is room."""
        return isinstance(self._broken, StorageFull)

    @property
    def wants_base(self) -> bool:
        segments = self._segments
        return bool(segments) and segments[-1].nbytes >= self._segment_nbytes

    # Recovery.

    def recover(self) -> Recovered:
        with self._sync_lock, self._lock:
            assert not self._recovered, "a partition is recovered once, before the first append"
            self._recovered = True
            if not self._disk.is_folder(self._folder):
                return Recovered(None, iter(()), 0, "")
            try:
                tail = self._recover()
            except OSError as error:
                self._failures.raise_by_one()
                self._broken = storage_error("recover", self._folder, error)
                raise self._broken from error
            self._segments, self._index = tail.segments, tail.index
            self._counting, self._synced = Counting(tail.point), tail.point
            if tail.segments:
                newest = tail.segments[-1]
                self._last_number = max(self._last_number, newest.number)
                self._synced_end = newest.end
                self._handle = self._disk.open(newest.path, write=True)
            self._record_end()
            self._count(sum(segment.nbytes for segment in tail.segments) - self._counted)
            # As they are now: what is appended before the last one is asked for is none of them.
            kept = [replace(segment) for segment in tail.segments[tail.base_index :]]
            records = events_of(self._disk, kept)
            return Recovered(tail.base, records, tail.point.epoch, tail.cut)

    def _recover(self) -> Tail:
        is_new = EndFile.NAME not in self._disk.names(self._folder)
        if is_new:
            self._make_end_file()
        else:
            self._end_file = EndFile(self._disk, self._folder, write=True)
        assert self._end_file is not None
        end = None if is_new else self._end_file.read()
        self._last_number = end.number if end is not None else 0
        try:
            return Recovery(
                self._disk, self._folder, self._partition, end, self._boot, self._failures.raise_by_one
            ).run()
        except OSError:
            if end is not None and end.boot == self._boot and not end.doubtful:
                # Before anybody can be killed: the next recovery may find holes, which are no damage.
                self._end_file.record(end._replace(doubtful=NOT_SYNCED))
            raise

    def _make_end_file(self) -> None:
        EndFile.make(self._disk, self._folder, End(0, 0, 0, self._boot))
        self._end_file = EndFile(self._disk, self._folder, write=True)

    # Writing.

    def claim(self, frame: Buffer) -> Iterator[EventFrame]:
        """One broker at a time holds the folder's lock: nothing can stand between."""
        self.append(frame)
        return iter(())

    def append(self, frame: Buffer) -> None:
        view = memoryview(frame)
        prefix = read_prefix(view)
        if prefix.nbytes != len(view):
            raise CorruptLog(f"a frame says {prefix.nbytes} bytes and has {len(view)}", position=prefix.position)
        if prefix.kind is Kind.BASE or not self._segments:
            with self._sync_lock, self._lock:
                self._check()
                try:
                    self._place(prefix, view, new_file=not self._segments)
                except OSError as error:
                    self._move_on(error, view)
            return
        failure: OSError | None = None
        with self._lock:
            self._check()
            try:
                self._write(prefix, view)
            except OSError as error:
                failure = error
        if failure is not None:
            with self._sync_lock, self._lock:
                self._check()
                self._move_on(failure, view)

    def _place(self, prefix: Prefix, view: memoryview, *, new_file: bool = False) -> None:
        """Write a frame where it belongs: a base that counts begins a new file. Both locks are held."""
        ahead = Counting(self._counting.point)
        is_base = prefix.kind is Kind.BASE and ahead.takes(prefix, view)
        if is_base or new_file:
            self._finish_segment()
            self._open_segment(ahead.point if is_base else self._counting.point, begins_with_base=is_base)
        self._write(prefix, view)

    def _write(self, prefix: Prefix, view: memoryview) -> None:
        """Write at the end of the newest segment. What fails leaves no field changed."""
        newest = self._segments[-1]
        self._disk.write(self._handle, view, newest.end)
        self._newest_index().note(newest.end, self._counting.point)
        self._counting.takes(prefix, view)
        newest.end += len(view)
        self._unsynced.append((newest.end, view))
        self._count(len(view))

    def _open_segment(self, point: Point, *, begins_with_base: bool) -> None:
        """Begin the next file. What is unsynced of the newest one is the caller's matter."""
        if self._end_file is None:
            self._disk.make_folder(self._folder)
            self._disk.sync_folder(self._folder.parent)
            self._make_end_file()
        newest = self._segments[-1] if self._segments else None
        self._last_number += 1
        header = Header(
            self._partition,
            self._last_number,
            newest.number if newest is not None else 0,
            newest.end if newest is not None else 0,
            point,
            begins_with_base,
        )
        path = segment_path(self._folder, header.number)
        handle = self._disk.create(path)
        try:
            self._disk.write(handle, memoryview(header.encode()), 0)
            self._disk.sync_folder(self._folder)
        except OSError:
            self._disk.close(handle)
            self._disk.unlink(path)  # Else it would stand in the chain as a file that nothing continues.
            raise
        if self._handle >= 0:
            self._disk.close(self._handle)
        self._handle = handle
        self._segments.append(Segment(path, header, HEADER_NBYTES))
        self._index = Index([beginning(self._segments[-1])])
        self._synced_end = HEADER_NBYTES

    def _finish_segment(self) -> None:
        """Sync the newest file before another begins, so that only the newest one can ever have a torn tail."""
        if self._segments:
            newest = self._segments[-1]
            if self._unsynced:
                self._disk.sync(self._handle)
                self._take_synced(newest.end, self._counting.point)
            if self._index is not None:
                self._lookup.keep(newest, self._index)

    def _check(self) -> None:
        assert self._recovered, "recover a partition before the first append"
        if self._broken is not None:
            raise self._broken

    # Group commit.

    def sync(self) -> int:
        with self._sync_lock:
            with self._lock:
                self._check()
                if not self._unsynced:
                    return self._synced.reached
                end, point = self._segments[-1].end, self._counting.point
            try:
                self._disk.sync(self._handle)
            except OSError as error:
                with self._lock:
                    self._move_on(error, None)
            else:
                with self._lock:
                    self._take_synced(end, point)
            return self._synced.reached

    def _take_synced(self, end: int, point: Point) -> None:
        while self._unsynced and self._unsynced[0][0] <= end:
            self._unsynced.popleft()
        self._synced_end, self._synced = end, point
        self._record_end()

    def _record_end(self, doubtful: int = 0) -> None:
        """Before anybody is told: a reading command in another process goes by it."""
        assert self._end_file is not None
        number, offset = (self._segments[-1].number, self._synced_end) if self._segments else (self._last_number, 0)
        end = End(number, offset, self._synced.reached, self._boot, doubtful)
        try:
            self._end_file.record(end)
        except ParamstreamError as error:
            self._broken = error
            raise

    def _move_on(self, failure: OSError, frame: memoryview | None) -> None:
        """A write or sync failed: only what an earlier sync covers still counts in the newest file. Both locks are held.

        That is marked first, and the count of failures raised; then the file ends at its last sync, and the rest goes to a new one that is
        synced at once, with `frame` behind it. Where that fails too the partition is broken for good.
        """
        try:
            if self._end_file is not None:
                self._record_end(doubtful=NEVER_STORED)
            self._failures.raise_by_one()
            if not self._segments:
                raise storage_error("write to", self._folder, failure) from failure
            try:
                self._rewrite(frame)
            except OSError as error:
                self._failures.raise_by_one()
                raise storage_error("write to", self._folder, error) from error
        except ParamstreamError as error:
            self._broken = error
            raise

    def _rewrite(self, frame: memoryview | None) -> None:
        rest = [view for _, view in self._unsynced]
        self._end_at_last_sync(self._segments[-1])
        self._unsynced.clear()
        self._counting = Counting(self._synced)
        for number, view in enumerate(rest):
            self._place(read_prefix(view), view, new_file=number == 0)
        if rest:
            self._disk.sync(self._handle)
            self._take_synced(self._segments[-1].end, self._counting.point)
        else:
            self._record_end()
        if frame is not None:
            # Not under that sync: where it fails the frame is refused, and must not stand after all.
            self._place(read_prefix(frame), frame, new_file=not rest)

    def _end_at_last_sync(self, newest: Segment) -> None:
        self._generation += 1
        self._count(self._synced_end - newest.end)
        if self._synced_end == HEADER_NBYTES:
            # No sync covers even its header: nothing may continue it.
            self._segments.pop()
            self._index = None
            self._disk.unlink(newest.path)
            return
        self._disk.truncate(self._handle, self._synced_end)
        newest.end = self._synced_end
        self._newest_index().cut(newest.end)

    # Reading.

    def read(self, after: int, max_bytes: int) -> Batch:
        while True:
            with self._lock:
                if after < self.start:
                    raise LogTruncated(
                        f"the log begins behind {show(self.start)}, and {show(after)} lies before that",
                        partition=self._partition[1],
                        position=after,
                    )
                if after >= self._counting.reached:
                    return Batch([], after)
                at = bisect_right(self._segments, after, key=lambda segment: segment.start) - 1
                segments = self._segments[at:]
                first = self._index.find(after) if len(segments) == 1 and self._index is not None else None
                generation = self._generation
            batch: Batch | None = None
            failure: FileNotFoundError | CorruptLog | None = None
            try:
                batch = self._lookup.read(segments, first, after, max_bytes)
            except (FileNotFoundError, CorruptLog) as error:
                failure = error
            with self._lock:
                if generation != self._generation:
                    continue  # What was read may end where a file was cut.
            if batch is not None:
                return batch
            if isinstance(failure, FileNotFoundError):
                raise CorruptLog(
                    f"{failure.filename} is gone", partition=self._partition[1], position=after
                ) from failure
            assert failure is not None
            raise failure

    def _newest_index(self) -> Index:
        assert self._index is not None
        return self._index

    # Cutting.

    def look(self, since: float) -> bool:
        return True

    def cut(self, before: int) -> int:
        with self._lock:
            segments = list(self._segments)
            synced = End(segments[-1].number, self._synced_end, 0, 0) if segments else None
        bases = [
            at for at, segment in enumerate(segments) if segment.start < before and segment.header.begins_with_base
        ]
        for at in reversed(bases):
            if synced is not None and at and self._base_stands(segments[at], synced):
                self._give_up(at)
                break
        self._remove_given_up()
        return self.start

    def _base_stands(self, segment: Segment, synced: End) -> bool:
        """Whether the base that the segment begins with is durable, and reads back as one that counts."""
        with opened(self._disk, segment.path) as read:
            for record in records_of(segment, read):
                end = record.offset + len(record.frame)
                is_durable = segment.number < synced.number or end <= synced.offset
                return record.counts and record.prefix.kind is Kind.BASE and is_durable
        return False

    def _give_up(self, count: int) -> None:
        """The oldest segments hold nothing any more that is read."""
        with self._lock:
            self._given_up += self._segments[:count]
            self._count(-sum(segment.nbytes for segment in self._segments[:count]))
            del self._segments[:count]
            self._generation += 1

    def _remove_given_up(self) -> None:
        """The oldest first, each for good before the next, so that what is left always hangs together: also where one cannot be
        removed, and the next cut tries again.
        """
        while self._given_up:
            segment = self._given_up[0]
            try:
                self._disk.unlink(segment.path)
                self._lookup.forget(segment)
                self._disk.sync_folder(self._folder)
            except OSError as error:
                raise storage_error("remove", segment.path, error) from error
            self._given_up.popleft()

    # The end.

    def forget(self) -> None:
        """The partition was dropped: what it held no longer counts, and reads find nothing. Its files are the caller's matter."""
        with self._sync_lock, self._lock:
            self._count(-self._counted)
            self._segments, self._counting = [], Counting()
            self._close_files()

    def close(self) -> None:
        """Sync and give back the files. A second call changes nothing. Raises what the sync raises, after that."""
        try:
            if self._recovered and self._broken is None and self._handle >= 0:
                self.sync()
        finally:
            with self._sync_lock, self._lock:
                self._close_files()

    def _close_files(self) -> None:
        self._broken = self._broken or CorruptLog("the log is closed", partition=self._partition[1])
        if self._handle >= 0:
            self._disk.close(self._handle)
            self._handle = -1
        if self._end_file is not None:
            self._end_file.close()
            self._end_file = None

    def _count(self, nbytes: int) -> None:
        self._counted += nbytes
        self._tally.add(nbytes)
