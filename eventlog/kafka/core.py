"""What an owner believes of its partition in Kafka: the log's one rule as a state machine, without I/O.

    core.append(frame)               a frame that is to stand behind all before
    work = core.work()               `Send` a batch, `Reread` the tail, or None: nothing to do now
    stood = core.acked(offset)       the batch's ack came, with the offset of its first record; None where that says too little
    core.look()                      nothing is pending, and yet the tail is to be read
    core.unsure()                    it may stand or not: an error, a timeout
    stood = core.met(whole)          in a reread: a frame that stands in the log; raises `Fenced`
    core.others                      what earlier owners have written before this one's claim, found by rereading
    core.reread_to(end)              the reread has come to the log's end

An ack is believed only if its records follow directly on the last record that this owner knows of: then nobody else has
written between. In every other case the tail is read back, and what is missing goes again, under the same positions and in
the same order. One batch is under way at a time.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from itertools import islice
from typing import NamedTuple

from ...consistency.position import epoch_of, show
from ...consistency.vector import PartitionId
from ...errors import CorruptLog, Fenced
from ...events.codec import Buffer, Prefix, read_prefix
from ...events.kinds import LOG_ONLY_KINDS, Kind
from ..counting import Counting, Point
from .records import MAX_BATCH_BYTES, RECORD_OVERHEAD, Mark, Whole, mark_of, pieces_of

_TURNS = frozenset({Kind.CLAIM, Kind.EPOCH, Kind.BASE})
"""What changes more than the position that is reached."""


class Pending(NamedTuple):
    """A frame that counts once it stands, and is not known to stand."""

    frame: memoryview
    prefix: Prefix
    nbytes_before: int
    """Of all frames appended before it."""


class Stood(NamedTuple):
    """Frames of this owner that are known to stand, one behind the other, and count."""

    offset: int
    """Of the first record of the first one."""
    before: Point
    """What is reached before it."""
    frames: list[Pending]
    """Several, or one that takes several records. A base is always the first."""


class Send(NamedTuple):
    records: list[tuple[bytes | None, memoryview]]
    """(key, value), to be sent as one batch."""


class Reread(NamedTuple):
    offset: int
    """Read from here to the log's end."""


Work = Send | Reread


class _State(Enum):
    READY = auto()
    SENDING = auto()
    UNSURE = auto()


class OwnerCore:
    """One partition, from what its owner has read to the end of its tenure. Not thread-safe."""

    def __init__(self, partition: PartitionId, point: Point, next_offset: int, base: int = -1, nbytes: int = 0) -> None:
        """`point` is reached at `next_offset`, the log's end as it was read; `base` and `nbytes` as in `Mark`."""
        self._partition = partition
        self._state = _State.READY
        self._ahead = Counting(point)
        """Where the log will be once all that is pending stands."""
        self._known = Counting(point)
        """Where it is for sure."""
        self._next_offset = next_offset
        self._base = base
        self._pending = deque[Pending]()
        self._pieces_sent = 0
        """Of the first pending frame, where it takes several records."""
        self._under_way = 0
        """So many frames the batch under way holds; 0: a piece of the first one."""
        self._max_batch_bytes = MAX_BATCH_BYTES
        self.others = list[memoryview]()
        """Events, notes and epoch records that count and stand between what was read and this owner's claim, in order."""
        self.nbytes = nbytes
        """Of all frames appended to the partition since it was made."""
        self.pending_nbytes = 0
        self.appended = 0
        """So many frames were appended that count."""
        self.stood = 0
        """So many of them are known to stand."""

    @property
    def known(self) -> Point:
        """What the log has reached for sure."""
        return self._known.point

    @property
    def ahead(self) -> Point:
        """What it will have reached once all that is pending stands."""
        return self._ahead.point

    @property
    def next_offset(self) -> int:
        """The offset behind the last record that this owner knows of."""
        return self._next_offset

    def pending(self) -> list[Pending]:
        return list(self._pending)

    def append(self, frame: Buffer) -> Prefix | None:
        """None where the frame will not count: then it is not sent at all. Keeps the frame, without a copy."""
        view = memoryview(frame)
        prefix = read_prefix(view)
        if prefix.nbytes != len(view):
            raise CorruptLog(f"a frame says {prefix.nbytes} bytes and has {len(view)}", position=prefix.position)
        if not self._ahead.takes(prefix, view):
            return None
        self._pending.append(Pending(view, prefix, self.nbytes))
        self.nbytes += len(view)
        self.pending_nbytes += len(view)
        self.appended += 1
        return prefix

    # Sending.

    def work(self) -> Work | None:
        """What to do next; a `Send` is under way from then on."""
        if self._state is _State.UNSURE:
            return Reread(self._next_offset)
        if self._state is _State.SENDING or not self._pending:
            return None
        self._state = _State.SENDING
        first = self._pending[0]
        pieces = pieces_of(first.frame)
        if len(pieces) > 1:
            self._under_way = 0
            mark = mark_of(first.frame, self._pieces_sent, len(pieces), self._base, first.nbytes_before)
            return Send([(mark.encode(), pieces[self._pieces_sent])])
        batch = self._batch()
        self._under_way = len(batch)
        mark = Mark(0, 1, self._base, first.nbytes_before)
        return Send([(None if at else mark.encode(), each.frame) for at, each in enumerate(batch)])

    def _batch(self) -> list[Pending]:
        """As many frames as fit. A base begins a batch, so that a log which is cut before it begins with a mark."""
        batch, nbytes = [self._pending[0]], len(self._pending[0].frame) + RECORD_OVERHEAD
        for each in islice(self._pending, 1, None):
            nbytes += len(each.frame) + RECORD_OVERHEAD
            if nbytes > self._max_batch_bytes or each.prefix.kind is Kind.BASE:
                break
            batch.append(each)
        return batch

    def acked(self, offset: int) -> Stood | None:
        """The batch under way stands from `offset` on. Returns what is known to stand by that; None where the ack says too little."""
        assert self._state is _State.SENDING
        if offset != self._next_offset:
            self._state = _State.UNSURE
            return None
        self._state = _State.READY
        if self._under_way:
            self._next_offset += self._under_way
            return self._confirmed(offset, self._under_way)
        self._next_offset += 1
        self._pieces_sent += 1
        pieces = len(pieces_of(self._pending[0].frame))
        return self._confirmed(self._next_offset - pieces, 1) if self._pieces_sent == pieces else None

    def unsure(self) -> None:
        """Whether the batch under way stands is not known."""
        self._state = _State.UNSURE

    def look(self) -> None:
        """Have the tail read, though nothing is pending: another owner's claim may stand there."""
        if self._state is _State.READY and not self._pending:
            self._state = _State.UNSURE

    def too_large(self) -> bool:
        """Kafka refused the batch under way for its size. False where it is a single record: it cannot be made smaller."""
        assert self._state is _State.SENDING
        self._state = _State.READY
        if self._under_way <= 1:
            return False
        nbytes = sum(len(each.frame) + RECORD_OVERHEAD for each in islice(self._pending, self._under_way))
        self._max_batch_bytes = nbytes // 2
        return True

    def _confirmed(self, offset: int, count: int) -> Stood:
        """The first `count` pending frames stand from there on, directly behind what is known: so they count."""
        before = self._known.point
        frames = list(islice(self._pending, count))
        if any(frame.prefix.kind in _TURNS for frame in frames):
            for frame in frames:
                counts = self._known.takes(frame.prefix, frame.frame)
                assert counts, "what follows directly on what is known counts"
        else:
            self._known = Counting(before._replace(reached=frames[-1].prefix.position))
        return self._stand(offset, before, frames)

    def _stand(self, offset: int, before: Point, frames: list[Pending]) -> Stood:
        claimed = self._claims
        for frame in frames:
            self._pending.popleft()
            self.pending_nbytes -= len(frame.frame)
        self.stood += len(frames)
        self._pieces_sent = 0
        if claimed:
            self._ahead = Counting(self._known.point)
        if frames[0].prefix.kind is Kind.BASE:
            self._base = offset
        return Stood(offset, before, frames)

    # Rereading.

    def met(self, whole: Whole) -> Stood | None:
        """The next whole frame that stands in the log behind what is known. Returns it where it is this owner's and counts.

        Raises `Fenced` where another owner's claim stands there: what was not durable by then never will be.
        """
        assert self._state is _State.UNSURE
        before = self._known.point
        # At every moment what is known stands before it, so that a read amidst a reread misses nothing.
        self._next_offset = whole.end
        if not self._known.takes(whole.prefix, whole.frame):
            return None
        if self._pending and self._pending[0].prefix == whole.prefix:
            return self._stand(whole.offset, before, [self._pending[0]])
        if whole.prefix.kind is Kind.BASE and self._known.point == before:
            if self._claims:
                self._base = whole.offset
            return None  # Else one that is known already, once more.
        if not self._claims or self._known.last_claim >= epoch_of(self._pending[0].prefix.position):
            raise Fenced(
                f"another owner has claimed the partition behind {show(before.reached)}",
                partition=self._partition[1],
                position=before.reached,
            )
        if whole.prefix.kind not in LOG_ONLY_KINDS:
            self.others.append(whole.frame)
        self.nbytes += len(whole.frame)
        return None

    @property
    def _claims(self) -> bool:
        """This owner's claim is all that is pending: an earlier owner may still write before it."""
        return len(self._pending) == 1 and self._pending[0].prefix.kind is Kind.CLAIM

    def reread_to(self, end: int) -> None:
        """All before the offset `end`, which is the log's end, was met. What is still pending goes again."""
        assert self._state is _State.UNSURE
        self._next_offset = end
        self._pieces_sent = 0
        self._state = _State.READY
