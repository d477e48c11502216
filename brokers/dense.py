"""The weights of a topic as its owner sees them: what is staged, what is open, what is sealed.

Chunks and parts only stage. A commit seals a version if all its parts, and the chunks that these name, stand before it in
the partition; so a durable commit has them. Chunks are kept as runs in which sequences and positions go up together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import msgspec

from ..errors import EventLost, InvalidEvent, VersionConflict
from ..events.codec import Head
from ..events.digest import version_digest
from ..events.kinds import Chunk, Commit, Part, PartRef, TensorSpec
from ..transport.calls import PreparedCommit, SealedVersion, VersionRecord
from .schema import as_schema, check_digest, check_schema, complete, union_of

PartKey = tuple[str, int, int]
"""(producer, incarnation, sequence)."""


class ChunkRun(msgspec.Struct, array_like=True):
    """`count` staged chunks of one producer and version: their sequences and positions both go up by one."""

    producer: str
    incarnation: int
    version: int
    sequence: int
    position: int
    count: int = 1


class OpenPart(msgspec.Struct, array_like=True, frozen=True):
    """A part that no commit has ended."""

    producer: str
    incarnation: int
    sequence: int
    position: int
    version: int
    tensors: tuple[TensorSpec, ...]

    @property
    def key(self) -> PartKey:
        return self.producer, self.incarnation, self.sequence


class Sealed(msgspec.Struct, array_like=True, frozen=True):
    """A sealed version and where its events stand."""

    version: int
    digest: bytes
    position: int
    """Of its commit."""
    time: int
    tensors: int
    nbytes: int
    parts: tuple[int, ...]
    """Positions of its parts."""
    chunks: tuple[tuple[int, int], ...]
    """(first, last) positions of runs of its chunks, both inclusive."""
    superseded: bool = False
    """A rewind to this number or a lower one came later."""
    refs: tuple[PartRef, ...] = ()
    """Its parts, as its commit named them."""
    context: bytes = b""
    """The encoded vector of all that events before the commit rest on: who begins with this version has not seen those."""

    @property
    def first(self) -> int:
        """The lowest position that the version needs."""
        return min((self.position, *self.parts, *(first for first, _ in self.chunks)))


class DenseState(msgspec.Struct, array_like=True):
    """Mutable; changed by `apply` and `forget` only. Lists are in order of position."""

    schema: tuple[TensorSpec, ...] | None = None
    """Sorted by name; None before the first commit. Digests and chunks are left out."""
    sealed: list[Sealed] = []
    parts: list[OpenPart] = []
    staged: list[ChunkRun] = []
    rewinds: list[tuple[int, int]] = []
    """(position, version) of commits with `rewind`, both growing: what a later one to a number as low or lower covers is left out."""

    # --- asked before a commit is taken ---

    def current(self, version: int) -> Sealed | None:
        """What is sealed under that number and not superseded."""
        return next((s for s in reversed(self.sealed) if s.version == version and not s.superseded), None)

    def sealed_before(self, commit: Commit) -> Sealed | None:
        """The same version with the same digest, if it is sealed: the commit's outcome is that one's.

        With `rewind` only the newest counts: going back to an older one seals it anew, above those that it supersedes.
        """
        found = self.sealed[-1] if commit.rewind and self.sealed else self.current(commit.version)
        same = found is not None and (found.version, found.digest) == (commit.version, commit.digest)
        return found if same else None

    def check(self, commit: Commit) -> None:
        """Raises what speaks against sealing: `VersionConflict`, `EventLost`, `InvalidEvent` or `SchemaMismatch`."""
        union = self._joined(commit.version, commit.parts, commit.schema, commit.rewind)
        check_digest(union, self.schema, commit)

    def prepare(self, version: int, parts: Sequence[PartRef], schema: str, rewind: bool) -> PreparedCommit:
        """What a commit of these parts must say, for a committer that has not seen their tensors. Raises as `check` does.

        The digest is over the union with the tied names that it left out: the same however ranks share a version out.
        """
        found = self.sealed[-1] if rewind and self.sealed else self.current(version)
        if found is not None and found.version == version and set(found.refs) == set(parts):
            return PreparedCommit(found.digest, position=found.position)
        union = self._joined(version, parts, schema, rewind)
        if self.schema is None or schema == "replace":
            return PreparedCommit(version_digest(union.values()), as_schema(union))
        return PreparedCommit(version_digest(complete(union, self.schema).values()))

    # --- the one way in ---

    def apply(self, head: Head, payload: Chunk | Part | Commit, position: int, time: int, context: bytes = b"") -> None:
        """`context`: of a commit, what the partition's events before it rest on, as an encoded vector."""
        match payload:
            case Chunk():
                self._stage(head, payload.version, position)
            case Part():
                part = OpenPart(
                    head.producer, head.incarnation, head.sequence, position, payload.version, payload.tensors
                )
                self.parts.append(part)
            case Commit():
                self._seal(payload, position, time, context)

    def forget(self, start: int) -> None:
        """The log begins after `start`: parts and chunks there are gone, and so are versions sealed there, but the newest."""
        self.parts = [part for part in self.parts if part.position > start]
        self.staged = [run for run in self.staged if run.position > start]
        self.sealed = [each for each in self.sealed if each.position > start or each is self.sealed[-1]]

    # --- what others are told ---

    def lineage(self) -> tuple[SealedVersion, ...]:
        """Sealed and not superseded, oldest first."""
        return tuple(SealedVersion(s.version, s.digest, s.position) for s in self.sealed if not s.superseded)

    def versions(self, retained: int, start: int, *, contexts: bool = False) -> list[VersionRecord]:
        """All that are known, oldest first. Restorable by number: among the newest `retained`, whole, not superseded."""
        oldest = len(self.sealed) - retained
        return [
            VersionRecord(
                s.version, s.position, s.time, s.tensors, s.nbytes, s.digest,
                restorable=index >= oldest and s.first > start and not s.superseded,
                first=s.first, superseded=s.superseded, context=s.context if contexts else b"",
            )
            for index, s in enumerate(self.sealed)
        ]  # fmt: skip

    def newest(self, durable: int) -> Sealed | None:
        """Sealed last at or below `durable`."""
        return next((sealed for sealed in reversed(self.sealed) if sealed.position <= durable), None)

    def open_from(self) -> int | None:
        """The lowest position of an open part or a staged chunk."""
        return min([part.position for part in self.parts[:1]] + [run.position for run in self.staged[:1]], default=None)

    # --- inside ---

    def _joined(self, version: int, refs: Sequence[PartRef], schema: str, rewind: bool) -> dict[str, TensorSpec]:
        """The tensors of the parts that would seal `version`, by name. Raises what speaks against it."""
        self._check_number(version, rewind)
        parts = self._standing(version, refs)
        chunks = _Chunks(self.staged)
        for part in parts:
            for spec in part.tensors:
                if not chunks.hold(part, spec):
                    raise _lost(part.key, version, f"chunks {spec.first_chunk} to {spec.last_chunk} of", spec.name)
        _check_apart(version, parts)
        union = union_of(part.tensors for part in parts)
        if schema != "replace" and self.schema is not None:
            check_schema(union, self.schema, version)
        return union

    def _check_number(self, version: int, rewind: bool) -> None:
        if rewind or not self.sealed:
            return
        newest = self.sealed[-1].version
        if version > newest:
            return
        if self.current(version) is not None:
            problem = f"version {version} is sealed already, with another digest"
        else:
            problem = f"version {version} is lower than the newest, {newest}"
        raise VersionConflict(
            problem,
            version=version,
            remedy="Publish a higher number, or say rewind=True to supersede what is above",
        )

    def _standing(self, version: int, refs: Iterable[PartRef]) -> list[OpenPart]:
        """The open parts that `refs` name."""
        standing = {part.key: part for part in self.parts}
        named: list[OpenPart] = []
        for ref in refs:
            part = standing.get(_key(ref))
            if part is None:
                raise _lost(_key(ref), version, "part", "")
            if part.version != version:
                raise InvalidEvent(
                    f"{_show(part)} is of version {part.version}, not {version}",
                    item=_item(part.key),
                    version=version,
                    remedy="Commit parts of one version only",
                )
            named.append(part)
        return named

    def _stage(self, head: Head, version: int, position: int) -> None:
        if self.staged:
            run = self.staged[-1]
            same = (run.producer, run.incarnation, run.version) == (head.producer, head.incarnation, version)
            if same and head.sequence == run.sequence + run.count and position == run.position + run.count:
                run.count += 1
                return
        self.staged.append(ChunkRun(head.producer, head.incarnation, version, head.sequence, position))

    def _seal(self, commit: Commit, position: int, time: int, context: bytes) -> None:
        parts = self._standing(commit.version, commit.parts)
        union = union_of(part.tensors for part in parts)
        chunks = _Chunks(self.staged)
        if commit.rewind:
            self.rewinds = [each for each in self.rewinds if each[1] < commit.version]
            self.rewinds.append((position, commit.version))
            self.sealed = [
                msgspec.structs.replace(s, superseded=True) if s.version >= commit.version else s for s in self.sealed
            ]
        self.sealed.append(
            Sealed(
                commit.version, commit.digest, position, time, len(union),
                sum(spec.nbytes for spec in union.values() if not spec.tied_to),
                tuple(part.position for part in parts),
                tuple(sorted({span for part in parts for span in chunks.spans_of(part)})),
                refs=commit.parts,
                context=context,
            )
        )  # fmt: skip
        if self.schema is None or commit.schema == "replace":
            self.schema = as_schema(union)
        below = commit.version if not commit.rewind else None
        self.parts = [part for part in self.parts if below is not None and part.version > below]
        self.staged = [run for run in self.staged if below is not None and run.version > below]


class _Chunks:
    """Staged chunks, found by the sequence that their producer gave them."""

    def __init__(self, staged: Iterable[ChunkRun]) -> None:
        self._runs: dict[tuple[str, int], list[ChunkRun]] = {}
        for run in staged:
            self._runs.setdefault((run.producer, run.incarnation), []).append(run)

    def hold(self, part: OpenPart, spec: TensorSpec) -> bool:
        """Every chunk that the tensor names stands, and is of the part's version."""
        sequence = spec.first_chunk
        while 0 < sequence <= spec.last_chunk:
            run = self._run(part, sequence)
            if run is None or run.version != part.version:
                return False
            sequence = run.sequence + run.count
        return True

    def spans_of(self, part: OpenPart) -> Iterable[tuple[int, int]]:
        """(first, last) positions of the chunks that the part's tensors name, cut at the ends of runs."""
        for first, last in sorted({(spec.first_chunk, spec.last_chunk) for spec in part.tensors if spec.first_chunk}):
            sequence = first
            while sequence <= last and (run := self._run(part, sequence)) is not None:
                end = min(last, run.sequence + run.count - 1)
                shift = run.position - run.sequence
                yield sequence + shift, end + shift
                sequence = end + 1

    def _run(self, part: OpenPart, sequence: int) -> ChunkRun | None:
        runs = self._runs.get((part.producer, part.incarnation), [])
        index = bisect_right(runs, sequence, key=lambda run: run.sequence) - 1
        return runs[index] if index >= 0 and sequence < runs[index].sequence + runs[index].count else None


def _key(ref: PartRef) -> PartKey:
    return ref.producer, ref.incarnation, ref.sequence


def _check_apart(version: int, parts: Iterable[OpenPart]) -> None:
    """No two parts have a tensor of the same name, whatever its values."""
    owners: dict[str, OpenPart] = {}
    for part in parts:
        for spec in part.tensors:
            if spec.name in owners:
                raise InvalidEvent(
                    f"two parts have it, {_show(owners[spec.name])} and {_show(part)}",
                    item=spec.name,
                    version=version,
                    remedy="Publish each tensor from one producer only",
                )
            owners[spec.name] = part


def _show(part: OpenPart) -> str:
    return f"part {part.sequence} of producer {part.producer!r} (incarnation {part.incarnation})"


def _item(part: PartKey) -> str:
    producer, incarnation, sequence = part
    return f"{producer}/{incarnation}/{sequence}"


def _lost(part: PartKey, version: int, what: str, tensor: str) -> EventLost:
    producer, incarnation, sequence = part
    inside = f" {tensor!r} in part" if tensor else ""
    return EventLost(
        f"{what}{inside} {sequence} of producer {producer!r} (incarnation {incarnation}) does not stand: "
        "it is lost, or a commit has ended it",
        item=_item(part),
        version=version,
        remedy="Publish what is missing again, and commit that",
    )
