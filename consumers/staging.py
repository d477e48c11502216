"""What of the weights has come and is not sealed: chunks as received, and parts.

Chunks and parts only stage. A part ends with a commit of its version or a higher one, or with a rewind; it comes back if that
commit is lost. A chunk's bytes are only a cache of the log: dropped when memory is short, and when a commit has used them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..errors import StorageFull
from ..events.codec import EventFrame
from ..events.kinds import Chunk, Commit, Part, PartRef
from ..tiers.store import TieredStore

Writer = tuple[str, int]
"""(producer, incarnation): sequences count within one."""


@dataclass(slots=True)
class StagedChunk:
    writer: Writer
    sequence: int
    position: int
    version: int
    frame: EventFrame | None
    """None where its bytes were dropped: the log has them."""
    ended_at: int = 0
    """As of a part."""


@dataclass(slots=True)
class StagedPart:
    ref: PartRef
    position: int
    part: Part
    ended_at: int = 0
    """The position of the commit that ended it; 0 while it is open."""


class Staging:
    """Of one weight partition. Bytes of chunks are charged to the store while they are kept."""

    def __init__(self, store: TieredStore) -> None:
        self._store = store
        self._chunks: dict[Writer, dict[int, StagedChunk]] = {}
        self._parts: dict[PartRef, StagedPart] = {}

    def stage_chunk(self, frame: EventFrame) -> None:
        """Keep a chunk; where the budget has no room, only where it stands."""
        assert isinstance(frame.payload, Chunk)
        writer = (frame.head.producer, frame.head.incarnation)
        chunk = StagedChunk(writer, frame.head.sequence, frame.position, frame.payload.version, frame)
        try:
            self._store.charge_staging(frame.nbytes)
        except StorageFull:
            chunk.frame = None
        known = self._chunks.setdefault(writer, {})
        before = known.get(chunk.sequence)
        if before is not None:
            self._drop_bytes(before)
        known[chunk.sequence] = chunk

    def stage_part(self, frame: EventFrame) -> None:
        assert isinstance(frame.payload, Part)
        ref = PartRef(frame.head.producer, frame.head.incarnation, frame.head.sequence)
        self._parts[ref] = StagedPart(ref, frame.position, frame.payload)

    def part(self, ref: PartRef) -> StagedPart | None:
        return self._parts.get(ref)

    def chunks(self, writer: Writer) -> list[StagedChunk]:
        """All of a writer's staged chunks, by sequence."""
        known = self._chunks.get(writer, {})
        return [known[sequence] for sequence in sorted(known)]

    def end(self, commit: Commit, position: int) -> None:
        """`commit`, at `position`, was applied: parts of its version and lower ones end; a rewind ends all."""
        for staged in self._parts.values():
            if staged.ended_at == 0 and (commit.rewind or staged.part.version <= commit.version):
                staged.ended_at = position
        for chunk in self._all_chunks():
            if chunk.ended_at == 0 and (commit.rewind or chunk.version <= commit.version):
                chunk.ended_at = position
                self._drop_bytes(chunk)

    def settle(self, durable: int) -> None:
        """A commit up to `durable` can no longer be lost: the parts that it ended are forgotten with their chunks."""
        for ref in [ref for ref, staged in self._parts.items() if 0 < staged.ended_at <= durable]:
            del self._parts[ref]
        self._forget(lambda chunk: 0 < chunk.ended_at <= durable)

    def undo(self, end: int) -> None:
        """What stands above `end` is lost; parts that a lost commit ended are open again."""
        for ref in [ref for ref, staged in self._parts.items() if staged.position > end]:
            del self._parts[ref]
        staged: list[StagedPart | StagedChunk] = [*self._parts.values(), *self._all_chunks()]
        for held in staged:
            if held.ended_at > end:
                held.ended_at = 0
        self._forget(lambda chunk: chunk.position > end)

    def oldest_open(self) -> int | None:
        """The position of the first chunk or part that a later commit may need."""
        positions = [staged.position for staged in self._parts.values() if staged.ended_at == 0]
        positions += [chunk.position for chunk in self._all_chunks() if chunk.frame is not None]
        return min(positions, default=None)

    def clear(self) -> None:
        self._forget(lambda _: True)
        self._parts.clear()

    def _forget(self, gone: Callable[[StagedChunk], bool]) -> None:
        for writer, known in list(self._chunks.items()):
            for sequence in [sequence for sequence, chunk in known.items() if gone(chunk)]:
                self._drop_bytes(known.pop(sequence))
            if not known:
                del self._chunks[writer]

    def _drop_bytes(self, chunk: StagedChunk) -> None:
        if chunk.frame is not None:
            self._store.refund_staging(chunk.frame.nbytes)
            chunk.frame = None

    def _all_chunks(self) -> Iterator[StagedChunk]:
        for known in self._chunks.values():
            yield from known.values()


def within(chunks: list[StagedChunk], first: int, last: int) -> list[StagedChunk]:
    """Those of `chunks` (sorted by sequence) from sequence `first` to `last`, inclusive."""
    low = bisect_left(chunks, first, key=lambda chunk: chunk.sequence)
    return chunks[low : bisect_right(chunks, last, key=lambda chunk: chunk.sequence)]
