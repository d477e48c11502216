"""Reads events of a local log by position, through the indices of its segments."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock

from ..errors import CorruptLog
from .chain import Segment, opened, scan
from .files import Disk
from .index import SUFFIX, Entry, Index
from .log import Batch
from .segment import HEADER_NBYTES, ReadAt, ViewAt

KEPT_INDICES = 32
"""Indices of closed segments that are kept in memory for each partition: a few megabytes."""


class Lookup:
    """The closed segments' indices of one partition, loaded when they are asked for. Any thread may read."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = Lock()
        self._indices: OrderedDict[int, Index] = OrderedDict()

    def read(self, segments: Sequence[Segment], first: Entry | None, after: int, max_bytes: int) -> Batch:
        """Events behind position `after`, of `segments` in order; see `log.PartitionLog.read`.

        `first` is where to begin in the first of them; where it is None, that one is closed and has an index of its own.
        Raises `CorruptLog` only where the very first event that was asked for is damaged.
        """
        frames, end, nbytes = list[memoryview](), after, 0
        for at, segment in enumerate(segments):
            with opened(self._disk, segment.path) as read:
                entry = (first or self._index(segment, read).find(after)) if at == 0 else beginning(segment)
                scanned = scan(segment, read, offset=entry.offset, point=entry.point, passed=after)
                for record in scanned:
                    if not record.is_read or record.prefix.position <= after:
                        continue
                    if frames and nbytes + len(record.frame) > max_bytes:
                        return Batch(frames, end)
                    frames.append(record.frame)
                    end, nbytes = record.prefix.position, nbytes + len(record.frame)
                if scanned.damage is not None and not frames:
                    raise scanned.damage.error(segment.header.partition[1])
            if nbytes >= max_bytes or scanned.damage is not None:
                break
        return Batch(frames, end)

    def keep(self, segment: Segment, index: Index) -> None:
        """The segment is closed, and this is its index."""
        self._remember(segment, index)
        self._store(segment, index)

    def forget(self, segment: Segment) -> None:
        """The segment is cut: its index goes too."""
        with self._lock:
            self._indices.pop(segment.number, None)
        self._disk.unlink(segment.path.with_suffix(SUFFIX))

    def _index(self, segment: Segment, read: ReadAt) -> Index:
        with self._lock:
            index = self._indices.get(segment.number)
            if index is not None:
                self._indices.move_to_end(segment.number)
                return index
        index = stored(self._disk, segment)
        if index is None:
            index, is_whole = build(segment, read)
            if is_whole:
                self._store(segment, index)
        self._remember(segment, index)
        return index

    def _remember(self, segment: Segment, index: Index) -> None:
        with self._lock:
            self._indices[segment.number] = index
            while len(self._indices) > KEPT_INDICES:
                self._indices.popitem(last=False)

    def _store(self, segment: Segment, index: Index) -> None:
        path = segment.path.with_suffix(SUFFIX)
        with suppress(OSError):  # A disk that has no room for it is no reason to stop: it is never needed.
            self._disk.unlink(path)
            handle = self._disk.create(path)
            try:
                self._disk.write(handle, memoryview(index.encode(segment.number, segment.end)), 0)
            finally:
                self._disk.close(handle)


def beginning(segment: Segment) -> Entry:
    return Entry(HEADER_NBYTES, segment.header.point)


def stored(disk: Disk, segment: Segment) -> Index | None:
    """The index that lies beside a closed segment; None where there is none that fits."""
    path = segment.path.with_suffix(SUFFIX)
    with suppress(OSError, CorruptLog), opened(disk, path) as read:
        return Index.decode(read(disk.size(path), 0), segment.number, segment.end)
    return None


def build(segment: Segment, read: ViewAt) -> tuple[Index, bool]:
    """The index of a segment, and whether it covers all: it ends before the first damage."""
    index, scanned = Index([beginning(segment)]), scan(segment, read)
    for record in scanned:
        index.note(record.offset, record.before)
    return index, scanned.damage is None
