"""One file of a local log: a header, then whole event frames, one behind the other.

The header says where reading may begin without the files before it: the point reached (`counting.Point`), and which file
comes before this one and where that one ends. What a file holds behind that end is void: bytes that a failed write or sync
left there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..consistency.position import START, show
from ..consistency.vector import PartitionId
from ..errors import CorruptLog
from ..events.codec import FORMAT, MAGIC, MAX_BASE_BYTES, PREFIX_BYTES, Prefix, check_frame, read_prefix
from ..events.digest import checksum
from ..events.kinds import LOG_ONLY_KINDS
from .counting import Counting, Point

SUFFIX = ".segment"
SEGMENT_FORMAT = 1
_MAGIC = b"PSEG"
_HEADER = struct.Struct("<4sHHQIQQQQI")
_CHECKSUM = struct.Struct("<Q")
HEADER_NBYTES = 64
_BEGINS_WITH_BASE = 1
assert _HEADER.size + _CHECKSUM.size == HEADER_NBYTES

READ_NBYTES = 256 * 1024
"""Read at a time at first: a system call is cheap against it, and a fetch of one event does not wait for it."""

MAX_READ_NBYTES = 4 * 1024 * 1024
"""Read at a time by whoever goes on reading: what is cut at a read's end, and is read once more, is little of it."""

ReadAt = Callable[[int, int], bytes]
"""(nbytes, offset) → the bytes there, fewer only at the file's end."""

ViewAt = Callable[[int, int], bytes | memoryview]
"""The same without a copy, perhaps."""


@dataclass(frozen=True, slots=True)
class Header:
    partition: PartitionId
    number: int
    """Of the file; grows from file to file, not always by one."""
    previous: int
    """The number of the file before it, 0 for the first of all."""
    previous_end: int
    """Where that file ends, in bytes."""
    point: Point
    """What is reached before its first record."""
    begins_with_base: bool

    def encode(self) -> bytes:
        flags = _BEGINS_WITH_BASE if self.begins_with_base else 0
        body = _HEADER.pack(
            _MAGIC, SEGMENT_FORMAT, flags, self.partition[0], self.partition[1],
            self.number << 32 | self.previous, self.previous_end, self.point.epoch, self.point.reached, self.point.nonce,
        )  # fmt: skip
        return body + _CHECKSUM.pack(checksum(body))

    @classmethod
    def decode(cls, data: bytes) -> Header:
        """Raises `CorruptLog` that says what is wrong with the first bytes of a file."""
        if len(data) < HEADER_NBYTES:
            raise CorruptLog(f"a segment's header of {len(data)} bytes is shorter than {HEADER_NBYTES}")
        magic, version, flags, topic, partition, numbers, previous_end, epoch, reached, nonce = _HEADER.unpack_from(
            data
        )
        if magic != _MAGIC:
            raise CorruptLog(f"a segment begins with {magic!r}, not {_MAGIC!r}")
        if version != SEGMENT_FORMAT:
            raise CorruptLog(
                f"a segment has format {version}, this reader knows format {SEGMENT_FORMAT}",
                remedy="Upgrade this reader",
            )
        if _CHECKSUM.unpack_from(data, _HEADER.size)[0] != checksum(data[: _HEADER.size]):
            raise CorruptLog("the checksum of a segment's header does not match its bytes")
        return cls(
            (topic, partition), numbers >> 32, numbers & 0xFFFFFFFF, previous_end,
            Point(epoch, nonce, reached), bool(flags & _BEGINS_WITH_BASE),
        )  # fmt: skip


class Record(NamedTuple):
    """A whole frame found in a file."""

    prefix: Prefix
    frame: memoryview
    offset: int
    counts: bool
    before: Point
    """What was reached before it."""

    @property
    def is_read(self) -> bool:
        """Whether readers get it: it counts, and is not of the log's own kinds."""
        return self.counts and self.prefix.kind not in LOG_ONLY_KINDS


@dataclass(frozen=True, slots=True)
class Damage:
    """Where a file stops making sense."""

    path: Path
    offset: int
    reached: int
    """The position of the last record before it that counts."""
    reason: str
    resumes_at: int
    """Where whole frames could stand behind it, at the earliest."""
    is_foreign: bool = False
    """It is whole, but of a newer release or another place: never to be cut."""

    def error(self, partition: int, behind: str = "") -> CorruptLog:
        return CorruptLog(
            f"{self.path} is damaged at offset {self.offset}, behind position {show(self.reached)}: {self.reason}{behind}",
            partition=partition,
            position=self.reached,
            remedy="Upgrade this reader" if self.is_foreign else "Restore the file from a copy",
        )


Glimpse = Callable[[Prefix, int], memoryview | None]
"""(prefix, offset) → the record there, where it is believed without being proved."""


class Scan:
    """The records of a file from `offset` to `end`, each proved whole before it is given.

    It ends at the first damage and leaves it in `damage`. `offset` and `counting` stand behind the last whole record.
    Of records up to the position `passed`, which nobody asked for, only the prefix is proved: one whose rest is damaged keeps
    nobody from those behind it.
    """

    def __init__(
        self,
        path: Path,
        read: ViewAt,
        offset: int,
        end: int,
        point: Point,
        passed: int = START,
        glimpse: Glimpse | None = None,
    ) -> None:
        """`glimpse` may give records that are believed as they are, little of them read; what it does not give is proved."""
        self.offset = offset
        self._glimpse = glimpse
        self._passed = passed
        self.counting = Counting(point)
        self.damage: Damage | None = None
        self._path = path
        self._read = read
        self._end = end
        self._buffer = memoryview(b"")
        self._buffer_at = offset
        self._read_nbytes = READ_NBYTES if glimpse is None else PREFIX_BYTES

    def __iter__(self) -> Iterator[Record]:
        while self.offset < self._end:
            record = self._next()
            if record is None:
                return
            self.offset += record.prefix.nbytes
            yield record

    def _next(self) -> Record | None:
        head = self._view(PREFIX_BYTES)
        try:
            prefix = read_prefix(head)
        except CorruptLog as error:
            newer = len(head) > 2 and bytes(head[:2]) == MAGIC and head[2] > FORMAT
            self._damaged(error.problem, self.offset + 1, newer)
            return None
        before = self.counting.point
        seen = None if self._glimpse is None else self._glimpse(prefix, self.offset)
        if seen is not None:
            return Record(prefix, seen, self.offset, self.counting.takes(prefix, seen), before)
        frame = self._view(prefix.nbytes)
        if len(frame) < prefix.nbytes:
            self._damaged(f"a record of {prefix.nbytes} bytes has only {len(frame)}", self._end)
            return None
        try:
            if prefix.position > self._passed or prefix.kind in LOG_ONLY_KINDS:
                check_frame(frame)
            counts = self.counting.takes(prefix, frame)
        except CorruptLog as error:
            self._damaged(error.problem, self.offset + prefix.nbytes)
            return None
        return Record(prefix, frame, self.offset, counts, before)

    def _view(self, nbytes: int) -> memoryview:
        """The bytes from `offset` on; fewer than asked only at the end."""
        nbytes = min(nbytes, self._end - self.offset)
        at = self.offset - self._buffer_at
        if at + nbytes > len(self._buffer):
            wanted = min(max(nbytes, self._read_nbytes), self._end - self.offset)
            if self._glimpse is None:
                self._read_nbytes = min(2 * self._read_nbytes, MAX_READ_NBYTES)
            self._buffer, self._buffer_at, at = memoryview(self._read(wanted, self.offset)), self.offset, 0
        return self._buffer[at : at + nbytes]

    def _damaged(self, reason: str, resumes_at: int, is_foreign: bool = False) -> None:
        self.damage = Damage(self._path, self.offset, self.counting.reached, reason, resumes_at, is_foreign)


def find_whole_record(read: ReadAt, damage: Damage, end: int, partition: PartitionId) -> int | None:
    """The offset of a whole record of the same partition behind `damage`, or None.

    A value may hold a copy of an event. What could be one, because its position was reached already, is passed over.
    """
    at, overlap = damage.resumes_at, PREFIX_BYTES - 1
    while at < end:
        window = read(min(READ_NBYTES, end - at), at)
        found = window.find(MAGIC)
        while found >= 0:
            if _is_whole_record(read, at + found, end, damage.reached, partition):
                return at + found
            found = window.find(MAGIC, found + 1)
        if len(window) <= overlap:
            return None
        at += len(window) - overlap
    return None


def _is_whole_record(read: ReadAt, offset: int, end: int, reached: int, partition: PartitionId) -> bool:
    try:
        prefix = read_prefix(read(PREFIX_BYTES, offset))
        if (prefix.topic, prefix.partition) != partition or prefix.nbytes > min(end - offset, MAX_BASE_BYTES):
            return False
        check_frame(read(prefix.nbytes, offset))
    except CorruptLog:
        return False
    return prefix.position > reached or prefix.kind in LOG_ONLY_KINDS
