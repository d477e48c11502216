"""What of the weights has come and is not sealed: chunks, in their place or as received, and parts.

Chunks and parts only stage. A part ends with a commit of its version or a higher one, or with a rewind; it comes back if that
commit is lost. A chunk's bytes are only a cache of the log: dropped when memory is short, and when a commit has used them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..errors import StorageFull
from ..events.codec import EventFrame
from ..events.kinds import Chunk, Commit, Part, PartRef, Segment
from ..tiers.arena import Slot
from ..tiers.dense import Extent, lay_out
from ..tiers.store import TieredStore
from .ahead import Ahead
from .early import EarlySlot

Writer = tuple[str, int]
"""(producer, incarnation): sequences count within one."""


@dataclass(slots=True)
class StagedChunk:
    writer: Writer
    sequence: int
    position: int
    version: int
    segments: tuple[Segment, ...]
    frame: EventFrame | None = None
    """As it was received, where its bytes are held so."""
    early: EarlySlot | None = None
    """Where its bytes were put in place."""

    @classmethod
    def of(cls, frame: EventFrame) -> StagedChunk:
        """A chunk without its bytes."""
        assert isinstance(frame.payload, Chunk)
        head, payload = frame.head, frame.payload
        writer = (head.producer, head.incarnation)
        return cls(writer, head.sequence, frame.position, payload.version, payload.segments)

    @property
    def is_held(self) -> bool:
        """Its bytes are here; otherwise they were dropped, and the log has them."""
        return self.frame is not None or (self.early is not None and not self.early.is_gone)

    def pieces(self) -> Iterator[tuple[Segment, memoryview]]:
        """Each segment with its bytes, which are held."""
        at = 0
        for segment in self.segments:
            if self.frame is not None:
                yield segment, self.frame.bulk[at : at + segment.nbytes]
            else:
                assert self.early is not None
                yield segment, self.early.view(segment)
            at += segment.nbytes


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
        self._early: EarlySlot | None = None
        self._expected: dict[str, Extent] = {}
        self._expected_nbytes = 0
        self._ahead: Ahead | None = None
        """What will be the slot of the version whose chunk comes first."""
        self._no_room_for: int | None = None
        """A version that found no room for a slot of its own before its commit."""
        self.staged = 0
        """How many chunks have come."""

    def expect(self, sizes: Mapping[str, int]) -> None:
        """The next version will have these tensors (name → bytes, tied ones left out), as far as anybody knows."""
        self._give_up_ahead()
        self._expected, self._expected_nbytes = lay_out(sizes)
        self._no_room_for = None

    def prepare(self, sizes: Mapping[str, int]) -> None:
        """As `expect`, and it will come soon: its memory is taken meanwhile. Chunks that come before that are kept as received."""
        self.expect(sizes)
        self._ahead = Ahead(self._store, self._expected_nbytes)

    def stage_chunk(self, frame: EventFrame) -> None:
        """Keep a chunk; where the budget has no room, only where it stands."""
        self.staged += 1
        chunk = StagedChunk.of(frame)
        early = self._early_for(chunk.version)
        if early is not None and early.place(chunk.segments, frame.bulk):
            chunk.early = early
        else:
            try:
                self._store.charge_staging(frame.nbytes)
                chunk.frame = frame
            except StorageFull:
                pass
        known = self._chunks.setdefault(chunk.writer, {})
        before = known.get(chunk.sequence)
        if before is not None:
            self._drop_bytes(before)
        known[chunk.sequence] = chunk

    def early(self, version: int, sizes: Mapping[str, int]) -> EarlySlot | None:
        """What was put in place of a version, if that is laid out as these tensors are. The caller seals it or gives it up."""
        early = self._early_for(version, wait=True) if self._ahead is not None else self._early
        if early is None or early.version != version or not early.fits(sizes):
            return None
        self._early = None
        return early

    def _early_for(self, version: int, *, wait: bool = False) -> EarlySlot | None:
        """There is one at a time, for the version whose chunk came first, once there is memory for it; `wait` for that."""
        is_due = self._ahead is None or wait or self._ahead.is_ready
        if self._early is None and self._expected and version != self._no_room_for and is_due:
            slot = self._take_slot()
            if slot is None:
                self._no_room_for = version
            else:
                self._early = EarlySlot(version, self._expected, slot)
        return self._early if self._early is not None and self._early.version == version else None

    def _take_slot(self) -> Slot | None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            return ahead.slot()
        try:
            return self._store.allocate(self._expected_nbytes)
        except StorageFull:
            return None

    def _give_up_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        slot = None if ahead is None else ahead.slot()
        if slot is not None:
            slot.release()

    def _give_up_early(self) -> None:
        if self._early is not None:
            self._early.give_up()
            self._early = None

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
        if self._early is not None and (commit.rewind or self._early.version <= commit.version):
            self._give_up_early()

    def settle(self, durable: int) -> None:
        """A commit up to `durable` can no longer be lost: the parts that it ended are forgotten with their chunks."""
        while self._ended and self._ended[0].position <= durable:
            self._ended.popleft()

    def undo(self, end: int) -> None:
        """What stands above `end` is lost; parts that a lost commit ended are open again."""
        # It may hold what is lost, and what comes instead of that begins anew.
        self._give_up_early()
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
        self._give_up_early()
        self._give_up_ahead()

    def begun(self) -> list[tuple[int, str]]:
        """(version, producer) of everything that is staged and not sealed, sorted."""
        parts = {(held.part.version, held.ref.producer) for held in self._parts.values()}
        return sorted(parts | {(chunk.version, chunk.writer[0]) for chunk in self._all_chunks()})

    def oldest_open(self) -> int | None:
        """The position of the first chunk or part that a later commit may need."""
        positions = [held.position for held in self._parts.values()]
        positions += [chunk.position for chunk in self._all_chunks()]
        return min(positions, default=None)

    def clear(self) -> None:
        self._take(lambda _: True)
        self._give_up_early()
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
        chunk.early = None

    def _all_chunks(self) -> Iterator[StagedChunk]:
        for known in self._chunks.values():
            yield from known.values()


def within(chunks: list[StagedChunk], first: int, last: int) -> list[StagedChunk]:
    """Those of `chunks` (sorted by sequence) from sequence `first` to `last`, inclusive."""
    low = bisect_left(chunks, first, key=lambda chunk: chunk.sequence)
    return chunks[low : bisect_right(chunks, last, key=lambda chunk: chunk.sequence)]
