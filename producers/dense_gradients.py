"""Dense gradients as events: a mapping of arrays, cut to the event limit, all in one state partition and in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, cast

import numpy as np

from ..consistency.vector import PartitionId
from ..errors import InvalidEvent
from ..events.arrays import DTYPES, as_numpy, row_major
from ..events.digest import tensor_digest
from ..events.kinds import DenseGradients, GradientPiece
from ..events.limits import MAX_CHUNK_BYTES, check_version
from ..events.tensors import Tensor, describe_tensors
from ..transport.calls import TopicRecord
from .calls import Draft

NonFinite = Literal["refuse", "pass"]

PARTITION = 0
"""All of them go to the first state partition of their topic: whoever sums them needs all."""

META_BYTES = 32 * 1024
"""What the descriptions of an event's pieces may take: with the bulk and two vectors the event stays under its limit."""


def dense_gradient_drafts(topic: TopicRecord, mapping: object, step: int, nonfinite: str) -> list[Draft]:
    """One call's events. The bulk is the arrays' own memory, or a copy of one that is not row-major.

    Raises `InvalidEvent` naming the tensor for what is no dense, supported array, and under `nonfinite="refuse"` for NaN and infinities.
    """
    check_version(step)
    if nonfinite not in ("refuse", "pass"):
        raise InvalidEvent(f"nonfinite must be 'refuse' or 'pass', not {nonfinite!r}", version=step)
    if hasattr(mapping, "state_dict"):
        raise InvalidEvent(
            "a module holds weights, and gradients are published as a mapping of arrays",
            version=step,
            remedy="Give {name: p.grad for name, p in module.named_parameters() if p.grad is not None}",
        )
    try:
        tensors = describe_tensors(mapping)
        events = list(_cut(tensors.values(), nonfinite == "refuse"))
    except InvalidEvent as error:
        error.topic, error.version = topic.name, step
        raise
    partition = topic.id, PARTITION
    return [
        _draft(partition, DenseGradients(step, number, len(events), tuple(piece for piece, _ in event)), event)
        for number, event in enumerate(events)
    ]


_Piece = tuple[GradientPiece, memoryview]


def _cut(tensors: Iterable[Tensor], finite: bool) -> Iterator[list[_Piece]]:
    """The pieces of each event: small tensors share one, large ones are cut at whole elements."""
    event: list[_Piece] = []
    room, meta_room = MAX_CHUNK_BYTES, META_BYTES
    for tensor in tensors:
        data = row_major(tensor.name, tensor.value)
        if finite:
            _check_finite(tensor, data)
        size, meta_nbytes, digest = DTYPES[tensor.dtype].itemsize, _meta_nbytes(tensor), tensor_digest(data)
        at = 0
        while True:
            if event and (meta_room < meta_nbytes or (at < len(data) and room < size)):
                yield event
                event, room, meta_room = [], MAX_CHUNK_BYTES, META_BYTES
            piece = data[at : at + room // size * size]
            event.append((GradientPiece(tensor.name, tensor.dtype, tensor.shape, digest, at, len(piece)), piece))
            at += len(piece)
            room, meta_room = room - len(piece), meta_room - meta_nbytes
            if at == len(data):
                break
    yield event


def _check_finite(tensor: Tensor, data: memoryview) -> None:
    dtype = DTYPES[tensor.dtype]
    if dtype.kind in "biu":
        return
    values = as_numpy(data, tensor.dtype, (len(data) // dtype.itemsize,))
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        place = tuple(map(int, cast(Any, np.unravel_index(int(bad[0]), tensor.shape))))
        raise InvalidEvent(
            f"the gradient has {bad.size} values that are NaN or infinite, the first at {place}",
            item=tensor.name,
            remedy='Leave the step out or clip it, or say nonfinite="pass"',
        )


def _draft(partition: PartitionId, payload: DenseGradients, event: list[_Piece]) -> Draft:
    meta_nbytes = 64 + sum(_meta_nbytes(piece) for piece, _ in event)
    return Draft.of(partition, payload, tuple(data for _, data in event), meta_nbytes)


def _meta_nbytes(tensor: Tensor | GradientPiece) -> int:
    return len(tensor.name.encode()) + 9 * len(tensor.shape) + 64
