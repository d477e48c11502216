"""Whole versions: a commit's parts are put together in one slot, proved by their digests, and shown by one assignment.

Readers see all of 6 or all of 7. Versions of one topic are kept by the position of their commit: the newest `keep`, and beside
them the newest durable one, so that a commit which is lost brings back what was served before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..consistency.position import START
from ..consistency.vector import PartitionId, VersionVector
from ..errors import CorruptLog, StorageFull
from ..events.codec import EventFrame, decode_vector
from ..events.digest import version_digest
from ..events.kinds import Chunk, Commit, Part, Segment, TensorSpec
from ..tiers.arena import Slot
from ..tiers.dense import DenseVersion, Extent, lay_out
from ..tiers.store import TieredStore
from .early import EarlySlot
from .filling import Filling
from .staging import StagedChunk, StagedPart, Staging, Writer, within


@dataclass(frozen=True, slots=True, eq=False)
class Sealed:
    """One complete version as a replica holds it."""

    dense: DenseVersion
    specs: Mapping[str, TensorSpec]
    """By name; tied names too."""
    vector: VersionVector[int]
    """Closed, with the commit in it: what weights of this version had seen."""
    rewind: bool
    first: int
    """The position of the first event that it was made from."""
    time: int
    """When its commit was sequenced, ns since 1970."""
    needs: VersionVector[int]
    """The rows and KV that its commit names."""

    def may_be_read_beside(self, partition: PartitionId, position: int, version: int, commit: int) -> bool:
        """Whether an entry that `position` wrote, valid for the sealing of `version` at `commit`, belongs to this one.

        `commit` 0: the version was not sealed when the entry was put, and only a commit that names the entry will do.
        """
        if commit:
            return self.position == commit
        return self.version == version and position <= self.needs.get(partition, 0)

    @property
    def version(self) -> int:
        return self.dense.version

    @property
    def position(self) -> int:
        return self.dense.position

    @property
    def digest(self) -> str:
        return self.dense.digest.hex()


class Missing(Exception):
    """A commit cannot be put together: events after `after` must be fetched once more."""

    def __init__(self, after: int) -> None:
        self.after = after
        super().__init__(f"events after {after} are missing")


class Assembly:
    """A version on its way into its slot. Chunks may be fed in any order; only `finish` makes it a version."""

    def __init__(self, frame: EventFrame, parts: list[StagedPart], plan: Plan, slot: Slot | EarlySlot) -> None:
        """`slot`: its own from here on, empty or with chunks that were put in place before."""
        assert isinstance(frame.payload, Commit)
        self.frame = frame
        self.commit = frame.payload
        self.parts = parts
        self._early = slot if isinstance(slot, EarlySlot) else None
        self.slot = slot.slot if isinstance(slot, EarlySlot) else slot
        self.specs = plan.specs
        self.extents = plan.extents if self._early is None else plan.laid_out_as(self._early.extents)
        self._wanted: dict[Writer, dict[str, TensorSpec]] = {}
        for staged in parts:
            names = self._wanted.setdefault((staged.ref.producer, staged.ref.incarnation), {})
            names.update({spec.name: spec for spec in staged.part.tensors if not spec.tied_to and spec.nbytes})
        self._filling = Filling(self.extents, self.slot) if self._early is None else self._early.filling
        self._covered: dict[str, int] = dict.fromkeys((n for names in self._wanted.values() for n in names), 0)
        self._fed: set[tuple[Writer, int]] = set()
        self.first = min(staged.position for staged in parts)

    def feed(self, chunk: StagedChunk) -> None:
        """Take what a chunk, whose bytes are held, has of this version; anything else is passed over."""
        names = self._wanted.get(chunk.writer)
        if names is None or (chunk.writer, chunk.sequence) in self._fed or chunk.version != self.commit.version:
            return
        self._fed.add((chunk.writer, chunk.sequence))
        self.first = min(self.first, chunk.position)
        is_placed = chunk.early is not None and chunk.early is self._early
        for segment, data in ((segment, None) for segment in chunk.segments) if is_placed else chunk.pieces():
            spec = names.get(segment.name)
            if spec is not None and spec.first_chunk <= chunk.sequence <= spec.last_chunk:
                self._take(spec, segment, data)

    def missing(self, staged: list[StagedChunk]) -> int | None:
        """Where to fetch from again: the position before the first chunk that lacks; 0 if nobody knows; None if all is there.

        Raises `CorruptLog` where no chunk lacks, and they do not hold what the part says of them.
        """
        short = [name for name, covered in self._covered.items() if covered != self._spec(name).nbytes]
        if not short:
            return None
        for name in short:
            if self._has_all_chunks_of(name):
                raise self._wrong(f"the chunks that its part names for tensor {name!r} do not hold all of it", name)
        lacking = [c.position for c in staged if (c.writer, c.sequence) not in self._fed and c.writer in self._wanted]
        return min(lacking) - 1 if lacking else 0

    def finish(self, vector: VersionVector[int], store: TieredStore) -> Sealed:
        """Prove every digest and seal, in `store`, whose slot it is. Raises `CorruptLog`, after which it is to be dropped."""
        for name, spec in self.specs.items():
            if self._filling.digest(spec.tied_to or name) != spec.digest:
                raise self._wrong(f"the bytes of tensor {name!r} do not have the digest that its part names", name)
        listed = {spec.name for staged in self.parts for spec in staged.part.tensors}
        whole = version_digest(self.specs.values())
        if self.commit.digest not in (whole, version_digest(s for n, s in self.specs.items() if n in listed)):
            raise self._wrong("the parts do not have the digest that the commit names", None)
        dense = store.seal(self.commit.version, self.frame.position, self.commit.digest, self.extents, self.slot)
        if self._early is not None:
            self._early.hand_over()
        needs = decode_vector(self.commit.needs)
        return Sealed(dense, self.specs, vector, self.commit.rewind, self.first, self.frame.time, needs)

    def drop(self) -> None:
        """Give the slot back; no version comes of it."""
        if self._early is not None:
            self._early.give_up()
        else:
            self.slot.release()

    def _take(self, spec: TensorSpec, segment: Segment, data: memoryview | None) -> None:
        """`data` is None where the bytes are in their place already."""
        if segment.offset + segment.nbytes > spec.nbytes:
            raise self._wrong(f"a chunk reaches past the end of tensor {spec.name!r}", spec.name)
        if data is not None:
            self._filling.put(spec.name, segment.offset, data)
        self._covered[spec.name] += segment.nbytes

    def _has_all_chunks_of(self, name: str) -> bool:
        """False says nothing where other events of its writer lie between the chunks: only what lacks is certain to lack."""
        return any(
            spec is not None
            and all((writer, number) in self._fed for number in range(spec.first_chunk, spec.last_chunk + 1))
            for writer, names in self._wanted.items()
            for spec in [names.get(name)]
        )

    def _spec(self, name: str) -> TensorSpec:
        return self.specs[name]

    def _wrong(self, problem: str, name: str | None) -> CorruptLog:
        return CorruptLog(problem, item=name, position=self.frame.position, version=self.commit.version)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a version is made of, and where each tensor goes."""

    specs: Mapping[str, TensorSpec]
    """By name, tied names too."""
    extents: Mapping[str, Extent]
    """Tied names share one."""
    nbytes: int
    """What a slot for it takes."""

    @classmethod
    def of(cls, parts: list[StagedPart], ties: Mapping[str, str]) -> Plan:
        """Ties of the version before that this one leaves out are filled in from `ties` (each name of a tied group → the name
        that the group is known by).
        """
        specs = {spec.name: spec for staged in parts for spec in staged.part.tensors}
        for name in ties.keys() - specs.keys():
            present = next((other for other, root in ties.items() if root == ties[name] and other in specs), None)
            if present is not None:
                held = specs[present]
                specs[name] = TensorSpec(
                    name, held.dtype, held.shape, held.digest, held.nbytes, tied_to=held.tied_to or present
                )
        extents, nbytes = lay_out(_sizes(specs))
        return cls(specs, _with_ties(extents, specs), nbytes)

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of each tensor that is not tied to another."""
        return _sizes(self.specs)

    def laid_out_as(self, extents: Mapping[str, Extent]) -> dict[str, Extent]:
        """The extents of all names, where those that are not tied lie as in `extents`."""
        return _with_ties(extents, self.specs)


def _sizes(specs: Mapping[str, TensorSpec]) -> dict[str, int]:
    return {name: spec.nbytes for name, spec in specs.items() if not spec.tied_to}


def _with_ties(extents: Mapping[str, Extent], specs: Mapping[str, TensorSpec]) -> dict[str, Extent]:
    known = dict(extents)
    for name, spec in specs.items():
        if spec.tied_to:
            held = extents.get(spec.tied_to)
            if held is None or held.nbytes != spec.nbytes:
                raise CorruptLog(f"tensor {name!r} is tied to {spec.tied_to!r}, which is not there", item=name)
            known[name] = held
    return known


class Versions:
    """The weights of one topic: what is staged, what is kept, what is served. One thread applies; any may read `kept`."""

    def __init__(self, store: TieredStore, keep: int) -> None:
        self._store = store
        self._keep = keep
        self.like: Sealed | None = None
        """Whose ties a version fills in that is the first one here."""
        self._durable = 0
        self._assembly: Assembly | None = None
        self.staging = Staging(store)
        self.kept: tuple[Sealed, ...] = ()
        """By position of the commit, the newest last. Replaced as a whole, never changed: one assignment shows a version."""
        self._rewinds: tuple[tuple[int, int], ...] = ()
        """(position, version) of rewinds that were told, not all of them shown yet. Replaced as a whole."""
        self._given_up: tuple[int, ...] = ()
        """Positions of commits that a loss could bring back, whose memory the newest one needed. Replaced as a whole."""

    @property
    def served(self) -> Sealed | None:
        kept = self.kept
        return kept[-1] if kept else None

    @property
    def lacks_newest(self) -> bool:
        """After a loss the newest version that stands is one that was given up for want of memory, and an older one is served."""
        given_up, served = self._given_up, self.served
        return bool(given_up) and (served is None or served.position < given_up[-1])

    @property
    def durable(self) -> int:
        """Up to there nothing can be lost."""
        return self._durable

    def find(self, version: int) -> Sealed | None:
        """The version sealed last under that number, if it is kept and no rewind has superseded it. Any thread."""
        kept = self.kept
        for sealed in reversed(kept):
            if sealed.version == version:
                return None if self._is_superseded(sealed, kept[-1].position) else sealed
            if sealed.rewind and sealed.version < version:
                return None
        return None

    def begin_with(self, sealed: Sealed) -> None:
        """Serve a version that was put together elsewhere and can no longer be lost. Takes over the reference to it."""
        assert not self.kept
        self.kept = (sealed,)
        self.staging.expect(_sizes(sealed.specs))

    def prepare(self, frame: EventFrame) -> Assembly:
        """Put the version of a commit together. Raises `Missing` where chunks or parts must be fetched once more (call it
        again after that), `StorageFull`, or `CorruptLog`; what is served stays as it is.
        """
        assembly = self._assembly
        if assembly is None or assembly.frame.position != frame.position:
            assembly = self._begin(frame)
        known = [chunk for writer in _writers(assembly.parts) for chunk in self._chunks_of(writer, assembly)]
        for chunk in known:
            if chunk.is_held:
                assembly.feed(chunk)
        after = assembly.missing(known)
        if after is not None:
            raise Missing(after)
        return assembly

    def finish(self, assembly: Assembly, vector: VersionVector[int]) -> Sealed:
        """Prove the digests; the result is not shown yet."""
        self._assembly = None
        try:
            return assembly.finish(vector, self._store)
        except CorruptLog:
            assembly.drop()
            raise

    def show(self, sealed: Sealed, commit: Commit) -> None:
        """From here on readers get `sealed`: one assignment."""
        self.kept = (*self.kept, sealed)
        self._let_go(self._keep)
        self.staging.end(commit, sealed.position)
        self.staging.settle(self._durable)
        self.staging.expect(_sizes(sealed.specs))

    def refetched(self, frame: EventFrame) -> None:
        """An event behind which a commit was missing something: notes, epoch records and other commits are there too."""
        if self._assembly is not None and isinstance(frame.payload, Chunk):
            chunk = StagedChunk.of(frame)
            chunk.frame = frame
            self._assembly.feed(chunk)
        elif self._assembly is not None:
            pass
        elif isinstance(frame.payload, Chunk):
            self.staging.stage_chunk(frame)
        elif isinstance(frame.payload, Part):
            self.staging.stage_part(frame)

    def learn_rewinds(self, rewinds: tuple[tuple[int, int], ...]) -> None:
        """(position, version) of the commits that superseded older ones of that number and higher: a jump may pass them."""
        self._rewinds = rewinds

    def settle(self, durable: int) -> None:
        self._durable = max(self._durable, durable)
        self.staging.settle(durable)
        self._let_go(self._keep)

    def undo(self, end: int) -> None:
        """Versions sealed above `end` are lost: what was served before is served again."""
        lost = [sealed for sealed in self.kept if sealed.position > end]
        self.kept = tuple(sealed for sealed in self.kept if sealed.position <= end)
        self._rewinds = tuple(each for each in self._rewinds if each[0] <= end)
        self._given_up = tuple(position for position in self._given_up if position <= end)
        for sealed in lost:
            sealed.dense.release()
        self._drop_assembly()
        self.staging.undo(end)

    def begin_anew(self) -> None:
        """Keep the versions, forget what is staged."""
        self._drop_assembly()
        self.staging.clear()

    def clear(self) -> None:
        kept, self.kept = self.kept, ()
        self._given_up = ()
        for sealed in kept:
            sealed.dense.release()
        self._drop_assembly()
        self.staging.clear()
        self.staging.expect({})

    def _begin(self, frame: EventFrame) -> Assembly:
        self._drop_assembly()
        commit = frame.payload
        assert isinstance(commit, Commit)
        parts: list[StagedPart] = []
        for ref in commit.parts:
            staged = self.staging.part(ref)
            if staged is None:
                raise Missing(0)
            parts.append(staged)
        served = self.served or self.like
        ties = _ties(served) if served is not None and commit.schema == "same" else {}
        plan = Plan.of(parts, ties)
        early = self.staging.early(commit.version, plan.sizes)
        # What the new version will displace goes first: its memory is the new one's, or the next one's.
        self._let_go(max(1, self._keep - 1))
        self._assembly = Assembly(frame, parts, plan, early or self._allocate(plan.nbytes))
        return self._assembly

    def _allocate(self, nbytes: int) -> Slot:
        try:
            return self._store.allocate(nbytes)
        except StorageFull:
            # Staged bytes are a cache of the log: what the slot needs more is fetched once more, straight into it.
            self.staging.drop_bytes()
        try:
            return self._store.allocate(nbytes)
        except StorageFull:
            # Better to serve the newest now than to keep what only a loss would bring back.
            self._let_go(max(1, self._keep - 1), short_of_memory=True)
            return self._store.allocate(nbytes)

    def _let_go(self, keep: int, *, short_of_memory: bool = False) -> None:
        """The newest `keep` stay, and all that a loss could bring back: the newest durable one, and those above it.

        Short of memory, of those only the newest durable one, and what takes none, since it lies on SSD.
        """
        durable = [sealed for sealed in self.kept if sealed.position <= self._durable]
        above = [sealed for sealed in self.kept[len(durable) :] if not (short_of_memory and sealed.dense.is_resident)]
        stay = {id(sealed) for sealed in (*self.kept[-keep:], *durable[-1:], *above)}
        gone = [sealed for sealed in self.kept if id(sealed) not in stay]
        if gone:
            self.kept = tuple(sealed for sealed in self.kept if id(sealed) in stay)
            self._note_given_up(gone, durable[-1].position if durable else START)
            for sealed in gone:
                sealed.dense.release()

    def _note_given_up(self, gone: list[Sealed], settled: int) -> None:
        """No loss brings back what stands before the newest durable version, committed at `settled`."""
        positions = {*self._given_up, *(sealed.position for sealed in gone)}
        self._given_up = tuple(sorted(position for position in positions if position > settled))

    def _is_superseded(self, sealed: Sealed, served: int) -> bool:
        """A rewind between it and the version committed at `served` took its number away."""
        return any(sealed.position < at <= served and number <= sealed.version for at, number in self._rewinds)

    def _drop_assembly(self) -> None:
        if self._assembly is not None:
            self._assembly.drop()
            self._assembly = None

    def _chunks_of(self, writer: Writer, assembly: Assembly) -> list[StagedChunk]:
        chunks = self.staging.chunks(writer)
        ranges = {
            (spec.first_chunk, spec.last_chunk)
            for staged in assembly.parts
            if (staged.ref.producer, staged.ref.incarnation) == writer
            for spec in staged.part.tensors
            if spec.nbytes and not spec.tied_to
        }
        found = {chunk.sequence: chunk for first, last in ranges for chunk in within(chunks, first, last)}
        return [found[sequence] for sequence in sorted(found)]


def _ties(sealed: Sealed) -> dict[str, str]:
    roots = {spec.tied_to for spec in sealed.specs.values() if spec.tied_to}
    return {name: spec.tied_to or name for name, spec in sealed.specs.items() if spec.tied_to or name in roots}


def _writers(parts: list[StagedPart]) -> list[Writer]:
    return list(dict.fromkeys((staged.ref.producer, staged.ref.incarnation) for staged in parts))
