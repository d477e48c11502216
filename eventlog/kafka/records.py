"""How a frame stands in Kafka: one record whose value is the very frame, or, for a large base, several that follow directly on each other.

The first record of every batch carries a *mark* as its key: where the last base stands that its writer had read back as
counting, and how many bytes stood before. So the newest base is found from the log's end, and each older one from the one
behind it. A mark names what lies before it in a log that only grows: whoever wrote it, and however late, it stays true.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ...consistency.vector import PartitionId
from ...errors import CorruptLog
from ...events.codec import MAGIC, MAX_BASE_BYTES, PREFIX_BYTES, Prefix, check_frame
from ...events.digest import checksum

MAX_VALUE_BYTES = 960 * 1024
"""Of one record. A batch with it stays below 1 MiB, which is what a Kafka takes that nobody has set up."""

MAX_BATCH_BYTES = 1_000_000
"""Of the records of one batch, `RECORD_OVERHEAD` for each included."""

RECORD_OVERHEAD = 64
"""More than a record takes beside its value: lengths, offset and time as variable-length numbers, and the key."""

MAX_PIECES = -(-MAX_BASE_BYTES // MAX_VALUE_BYTES)
"""Of the largest frame."""

_MARK = struct.Struct("<4sHHqQQ")
_MAGIC = b"PSK1"


class Mark(NamedTuple):
    """The key of a batch's first record."""

    piece: int
    """Which one of the frame's the record holds, from 0."""
    pieces: int
    """So many the frame has; 1: the value is the frame."""
    base: int
    """The offset of the last base that the writer knew to count; -1 where it knew none."""
    nbytes: int
    """Bytes of all frames appended to the partition before this batch, since it was made."""
    frame: int = 0
    """Which frame the piece is of, by a checksum: pieces of two owners' bases may stand side by side."""

    def encode(self) -> bytes:
        return _MARK.pack(_MAGIC, *self)

    @classmethod
    def decode(cls, key: bytes | None) -> Mark | None:
        """None where it is no mark."""
        if key is None or len(key) != _MARK.size:
            return None
        magic, *values = _MARK.unpack(key)
        return cls(*values) if magic == _MAGIC else None


class Record(NamedTuple):
    """As it is read from Kafka."""

    offset: int
    key: bytes | None
    value: bytes


class Whole(NamedTuple):
    """A whole frame of the partition, whether it counts or not."""

    offset: int
    """Of its first record."""
    end: int
    """The offset behind its last record."""
    prefix: Prefix
    frame: memoryview
    mark: Mark | None
    """Of its first record."""


def mark_of(frame: memoryview, piece: int, pieces: int, base: int, nbytes: int) -> Mark:
    return Mark(piece, pieces, base, nbytes, checksum(frame[:PREFIX_BYTES]) if pieces > 1 else 0)


def pieces_of(frame: memoryview) -> list[memoryview]:
    """The values of the records that hold the frame."""
    return [frame[at : at + MAX_VALUE_BYTES] for at in range(0, len(frame), MAX_VALUE_BYTES)]


class Assembler:
    """Makes whole frames of records in the log's order.

    Pieces count only where they follow directly on each other, so that a base is all that stands between two offsets. What is
    none of our frames, or one of another partition, is passed over: somebody else wrote it.
    """

    def __init__(self, partition: PartitionId) -> None:
        self._partition = partition
        self._pieces = list[bytes]()
        self._first: tuple[int, Mark] | None = None

    def take(self, record: Record) -> Whole | None:
        """Raises `CorruptLog` naming the offset where one of our frames is damaged."""
        mark = Mark.decode(record.key)
        if mark is None or mark.pieces == 1:
            self._forget()
            return self._whole(record.offset, record.offset + 1, record.value, mark)
        if mark.piece == 0:
            self._pieces, self._first = [record.value], (record.offset, mark)
            return None
        if not self._follows(record.offset, mark):
            self._forget()
            return None
        assert self._first is not None
        self._pieces.append(record.value)
        if len(self._pieces) < mark.pieces:
            return None
        (offset, first), value = self._first, b"".join(self._pieces)
        self._forget()
        return self._whole(offset, record.offset + 1, value, first)

    def _follows(self, offset: int, mark: Mark) -> bool:
        if self._first is None:
            return False
        first, begun = self._first
        held = len(self._pieces)
        # No frame has more pieces than the largest base, whatever a mark says.
        is_next = mark.piece == held < MAX_PIECES and offset == first + held
        return is_next and (mark.pieces, mark.frame) == (begun.pieces, begun.frame)

    def _forget(self) -> None:
        self._pieces, self._first = [], None

    def _whole(self, offset: int, end: int, value: bytes, mark: Mark | None) -> Whole | None:
        if not value.startswith(MAGIC):
            return None
        try:
            prefix = check_frame(value)
        except CorruptLog as error:
            raise CorruptLog(
                f"the record at Kafka's offset {offset}: {error.problem}",
                partition=self._partition[1],
                remedy=error.remedy or "What stands before it can be restored",
            ) from error
        if (prefix.topic, prefix.partition) != self._partition:
            return None
        return Whole(offset, end, prefix, memoryview(value), mark)
