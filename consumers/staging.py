"""What of the weights has come and is not sealed: chunks as received, and parts.

Chunks and parts only stage. A part ends with a commit of its version or a higher one, or with a rewind; it comes back if that
commit is lost. A chunk's bytes are only a cache of the log: dropped when memory is short, and when a commit has used them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
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


@dataclass(slots=True)
class StagedPart:
    ref: PartRef
    position: int
    part: Part


@dataclass(frozen=True, slots=True)
class _Ended:
    """What the commit at `position` ended. It comes back if that commit is lost."""

    position: int
    parts: list[StagedPart]
    chunks: list[StagedChunk]


class Staging:
    """Of one weight partition. Bytes of chunks are charged to the store while they are kept."""

    def __init__(self, store: TieredStore) -> None:
        self._store = store
        self._chunks: dict[Writer, dict[int, StagedChunk]] = {}
        self._parts: dict[PartRef, StagedPart] = {}
        self._ended: deque[_Ended] = deque()

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
        parts = [held for held in self._parts.values() if commit.rewind or held.part.version <= commit.version]
        for held in parts:
            del self._parts[held.ref]
        chunks = self._take(lambda chunk: commit.rewind or chunk.version <= commit.version)
        self._ended.append(_Ended(position, parts, chunks))

    def settle(self, durable: int) -> None:
        """A commit up to `durable` can no longer be lost: the parts that it ended are forgotten with their chunks."""
        while self._ended and self._ended[0].position <= durable:
            self._ended.popleft()

    def undo(self, end: int) -> None:
        """What stands above `end` is lost; parts that a lost commit ended are open again."""
        while self._ended and self._ended[-1].position > end:
            ended = self._ended.pop()
            self._parts.update((held.ref, held) for held in ended.parts)
            for chunk in ended.chunks:
                self._chunks.setdefault(chunk.writer, {})[chunk.sequence] = chunk
        for ref in [ref for ref, held in self._parts.items() if held.position > end]:
            del self._parts[ref]
        self._take(lambda chunk: chunk.position > end)

    def drop_bytes(self) -> None:
        """Give the memory of all chunks back: the log has them."""
        for chunk in self._all_chunks():
            self._drop_bytes(chunk)

    def oldest_open(self) -> int | None:
        """The position of the first chunk or part that a later commit may need."""
        positions = [held.position for held in self._parts.values()]
        positions += [chunk.position for chunk in self._all_chunks()]
        return min(positions, default=None)

    def clear(self) -> None:
        self._take(lambda _: True)
        self._parts.clear()
        self._ended.clear()

    def _take(self, wanted: Callable[[StagedChunk], bool]) -> list[StagedChunk]:
        """Remove the chunks that are `wanted`, without their bytes, and return them."""
        taken: list[StagedChunk] = []
        for writer, known in list(self._chunks.items()):
            found = [chunk for chunk in known.values() if wanted(chunk)]
            for chunk in found:
                self._drop_bytes(known.pop(chunk.sequence))
            if not known:
                del self._chunks[writer]
            taken += found
        return taken

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
