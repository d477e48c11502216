"""The log in memory: it lives as long as its process, and holds what it was given without a copy.

It serves `log="memory:"`, and partitions whose persistence is "none" beside any other log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock

from ..consistency.position import START, show
from ..consistency.vector import PartitionId
from ..errors import CorruptLog, LogTruncated
from ..events.codec import Buffer, EventFrame, decode_event, read_prefix
from ..events.kinds import LOG_ONLY_KINDS, Kind
from .counting import Counting
from .log import Batch, Recovered
from .tally import Tally, segment_nbytes_for

DEFAULT_LIMIT = 4 * 1024**3
"""`log_limit` where none is given: a share of a common machine's memory."""


@dataclass(slots=True)
class _Segment:
    """Records from one base to the next, so that cutting frees them together."""

    start: int
    """The position reached before it."""
    base: memoryview | None = None
    positions: list[int] = field(default_factory=list[int])
    frames: list[memoryview] = field(default_factory=list[memoryview])
    """Events, notes and epoch records that count, one for each of `positions`."""
    nbytes: int = 0
    """Of all records given, void ones and claims too, which are counted and not kept."""


class MemoryPartition:
    """One partition in memory; see `log.PartitionLog`. A frame that is given stays the caller's own, and must not change."""

    def __init__(self, partition: PartitionId, segment_nbytes: int, tally: Tally) -> None:
        self._partition = partition
        self._segment_nbytes = segment_nbytes
        self._tally = tally
        self._lock = Lock()
        self._counting = Counting()
        self._segments = [_Segment(START)]

    @property
    def partition(self) -> PartitionId:
        return self._partition

    @property
    def start(self) -> int:
        return self._segments[0].start

    @property
    def nbytes(self) -> int:
        with self._lock:
            return sum(segment.nbytes for segment in self._segments)

    @property
    def trouble(self) -> str:
        return ""

    @property
    def wants_base(self) -> bool:
        return self._segments[-1].nbytes >= self._segment_nbytes

    def recover(self) -> Recovered:
        """What is held: an owner that starts again in the same process finds it all."""
        with self._lock:
            behind = list[_Segment]()
            base: memoryview | None = None
            for segment in reversed(self._segments):
                behind.insert(0, segment)
                if segment.base is not None:
                    base = segment.base
                    break
            frames = [frame for segment in behind for frame in segment.frames]
            last_claim = self._counting.last_claim
        return Recovered(decode_event(base) if base is not None else None, map(decode_event, frames), last_claim, "")

    def claim(self, frame: Buffer) -> Iterator[EventFrame]:
        self.append(frame)
        return iter(())

    def append(self, frame: Buffer) -> None:
        view = memoryview(frame)
        prefix = read_prefix(view)
        if prefix.nbytes != len(view):
            raise CorruptLog(f"a frame says {prefix.nbytes} bytes and has {len(view)}", position=prefix.position)
        with self._lock:
            counts = self._counting.takes(prefix, view)
            if counts and prefix.kind is Kind.BASE:
                self._begin(view)
            segment = self._segments[-1]
            segment.nbytes += len(view)
            if counts and prefix.kind not in LOG_ONLY_KINDS:
                segment.positions.append(prefix.position)
                segment.frames.append(view)
        self._tally.add(len(view))

    def _begin(self, base: memoryview) -> None:
        if not self._segments[-1].nbytes:
            self._segments.pop()
        self._segments.append(_Segment(self._counting.reached, base))

    def sync(self) -> int:
        return self._counting.reached

    def read(self, after: int, max_bytes: int) -> Batch:
        with self._lock:
            if after < self.start:
                raise LogTruncated(
                    f"the log begins behind {show(self.start)}, and {show(after)} lies before that",
                    partition=self._partition[1],
                    position=after,
                )
            frames, end, nbytes = list[memoryview](), after, 0
            for position, frame in self._behind(after):
                if frames and nbytes + len(frame) > max_bytes:
                    break
                frames.append(frame)
                end, nbytes = position, nbytes + len(frame)
            return Batch(frames, end)

    def _behind(self, after: int) -> Iterator[tuple[int, memoryview]]:
        first = bisect_right(self._segments, after, key=lambda segment: segment.start) - 1
        for segment in islice(self._segments, first, None):
            at = bisect_right(segment.positions, after)
            yield from zip(islice(segment.positions, at, None), islice(segment.frames, at, None), strict=True)

    def look(self, since: float) -> bool:
        return True

    def cut(self, before: int) -> int:
        with self._lock:
            keep = 0
            for index, segment in enumerate(self._segments):
                if segment.base is not None and segment.start < before:
                    keep = index
            freed = sum(segment.nbytes for segment in self._segments[:keep])
            del self._segments[:keep]
        self._tally.add(-freed)
        return self.start

    def free(self) -> None:
        """Give back all that it holds; the partition was dropped."""
        with self._lock:
            freed = sum(segment.nbytes for segment in self._segments)
            self._segments = [_Segment(START)]
            self._counting = Counting()
        self._tally.add(-freed)


class MemoryLog:
    """All partitions of a broker, in memory; see `log.EventLog`. What is appended is as durable as it ever becomes."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._segment_nbytes = segment_nbytes_for(limit)
        self._tally = Tally()
        self._partitions: dict[PartitionId, MemoryPartition] = {}

    @property
    def durable_on_append(self) -> bool:
        return True

    @property
    def boot(self) -> str:
        return ""

    @property
    def failed_writes(self) -> int:
        return 0

    @property
    def segment_nbytes(self) -> int:
        return self._segment_nbytes

    @property
    def nbytes(self) -> int:
        return self._tally.nbytes

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def shared(self) -> bool:
        return False

    def create_topic(self, topic: int, name: str, partitions: int) -> None:
        """A partition is made when it is opened."""

    def describe_topic(self, topic: int) -> Mapping[str, str]:
        return {}

    def partitions(self) -> list[PartitionId]:
        return sorted(key for key, partition in list(self._partitions.items()) if partition.nbytes)

    def open(self, partition: PartitionId) -> MemoryPartition:
        return self._partitions.setdefault(partition, MemoryPartition(partition, self._segment_nbytes, self._tally))

    def anew(self, partition: PartitionId) -> MemoryPartition:
        """The partition, empty: what it held is freed."""
        self.drop(partition)
        return self.open(partition)

    def drop(self, partition: PartitionId) -> None:
        """Free what it holds; nothing where there is none."""
        dropped = self._partitions.pop(partition, None)
        if dropped is not None:
            dropped.free()

    def drop_topic(self, topic: int) -> None:
        for partition in [each for each in list(self._partitions) if each[0] == topic]:
            self.drop(partition)

    def close(self) -> None:
        """Nothing is to be given back: what it holds goes with the last reference."""
