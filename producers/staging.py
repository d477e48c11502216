"""The chunks and parts of a publish of weights, sent one by one in the order in which they are cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..consistency.vector import PartitionId
from ..events.digest import version_digest
from ..events.kinds import Commit, PartRef, TensorSpec
from .calls import Draft
from .weights import Group, cut, part_meta_nbytes, parts_of, segment_meta_nbytes, specs_of

Send = Callable[[Draft], int]
"""Sends the next event of the call; returns its sequence, 0 where the call has failed."""


def stage(
    weights: PartitionId, version: int, groups: Sequence[Group], send: Send, progress: Callable[[int], None]
) -> tuple[tuple[int, ...], tuple[TensorSpec, ...]]:
    """Send the chunks, then the parts of `groups`; returns the sequences of the parts, and all their tensors.

    `progress` is told of the bytes of each chunk that was sent.
    """
    digests: dict[str, bytes] = {}
    chunks: dict[str, tuple[int, int]] = {}
    for chunk, bulk in cut(version, groups, digests):
        sequence = send(Draft.of(weights, chunk, bulk, segment_meta_nbytes(chunk)))
        for segment in chunk.segments:
            first, _ = chunks.get(segment.name, (sequence, sequence))
            chunks[segment.name] = first, sequence
        progress(sum(len(piece) for piece in bulk))
    parts = list(parts_of(version, (specs_of(group, digests, chunks) for group in groups)))
    sequences = tuple(send(Draft.of(weights, part, (), part_meta_nbytes(part))) for part in parts)
    return sequences, tuple(spec for part in parts for spec in part.tensors)


def commit_draft(
    weights: PartitionId,
    version: int,
    parts: tuple[PartRef, ...],
    specs: Sequence[TensorSpec],
    schema: str,
    rewind: bool,
) -> Draft:
    """The commit that seals all of `specs`, of the publish that sent `parts`."""
    commit = Commit(version, parts, version_digest(specs), schema, rewind)
    return Draft.of(weights, commit, (), 64 + 64 * len(parts))
