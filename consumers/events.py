"""An event as users see it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..consistency.position import show
from ..consistency.stamp import Stamp
from ..consistency.vector import PartitionId, VersionVector
from ..events.arrays import DTYPES, as_numpy
from ..events.codec import EventFrame
from ..events.kinds import Chunk, Commit, Delete, DeleteRows, DenseGradients, Gradients, Part, Put, Rows
from ..events.validate import ROW_KEY_BYTES, gradient_pieces, put_values

ToNames = Callable[[Mapping[PartitionId, int]], VersionVector[str]]


@dataclass(frozen=True, slots=True, eq=False)
class GradientSlice:
    """Neighbouring values of one dense gradient, as many as its event holds."""

    name: str
    """Of the tensor."""
    dtype: str
    shape: tuple[int, ...]
    """Of the whole gradient."""
    offset: int
    """Which of its values, in row-major order, is the first here."""
    values: npt.NDArray[Any]
    """Shape (n,), read-only."""
    digest: str
    """xxh3_128 of all its row-major bytes, hexadecimal."""

    @property
    def whole(self) -> bool:
        """All of the gradient is here."""
        return self.values.size == math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Event:
    """One event of a topic. The fields below `vector` are set by kind; arrays are read-only."""

    topic: str
    partition: int
    position: int
    """Of a "lost" event: where the partition's epoch ended. What was yielded of earlier epochs above it is lost."""
    kind: str
    """"chunk" "part" "commit" "rows" "delete_rows" "gradients" "dense_gradients" "put" "delete" "lost"."""
    producer: str = ""
    incarnation: int = 0
    sequence: int = 0
    time: int = 0
    """Of sequencing, ns since 1970."""
    vector: VersionVector[str]
    """Closed: all that the event depends on, and itself."""
    items: tuple[tuple[bytes, bytes | None, float | None], ...] = ()
    """"put": (key, value, TTL in seconds); "delete": (key, None, None)."""
    table: str | None = None
    keys: npt.NDArray[np.int64] | None = None
    """"rows", "delete_rows", "gradients": shape (n,)."""
    rows: npt.NDArray[Any] | None = None
    """"rows": shape (n, dim)."""
    grads: npt.NDArray[Any] | None = None
    """"gradients": shape (n, dim). "dense_gradients": where it is about one tensor only, its gradient in its shape, or of one that was cut the
    values that are here, flat."""
    version: int | None = None
    """"chunk", "part", "commit". "dense_gradients": the step."""
    name: str | None = None
    """"chunk", "part", "dense_gradients": the tensor's name, where it is about one only."""
    digest: str | None = None
    """"commit": of the version; "part", "dense_gradients": of the whole tensor, where it is about one only. Hexadecimal."""
    slices: tuple[GradientSlice, ...] = ()
    """"dense_gradients": what it holds, in the order published; a tensor's slices follow each other."""
    number: int = 0
    """"dense_gradients": which event it is, from 0 on, of the `count` that one call made; they come in order."""
    count: int = 0

    def __repr__(self) -> str:
        return f"<Event {self.kind} of {self.topic!r}/{self.partition} at {show(self.position)} by {self.producer!r}>"


def event_of(frame: EventFrame, stamp: Stamp, topic: str, to_names: ToNames) -> Event | None:
    """The event in a frame, or None for an internal kind. Rows and gradients are views of the frame; values are copied."""
    fields = _fields(frame)
    if fields is None:
        return None
    return Event(
        topic=topic,
        partition=frame.partition,
        position=frame.position,
        kind=frame.kind.label,
        producer=stamp.producer,
        incarnation=stamp.incarnation,
        sequence=stamp.sequence,
        time=frame.time,
        vector=to_names(stamp.dependencies().merge({frame.partition_id: frame.position})),
        **fields,
    )


def lost_event(topic: str, partition: int, end: int) -> Event:
    """Says that the partition's events above `end` of earlier epochs are lost."""
    return Event(topic=topic, partition=partition, position=end, kind="lost", vector=VersionVector())


def _fields(frame: EventFrame) -> dict[str, Any] | None:
    bulk = frame.bulk.toreadonly()
    match frame.payload:
        case Put() as put:
            return {
                "items": tuple(
                    (item.key, bytes(value), None if item.ttl_ns is None else item.ttl_ns / 1e9)
                    for item, value in put_values(put, bulk)
                )
            }
        case Delete() as delete:
            return {"items": tuple((key, None, None) for key in delete.keys)}
        case Rows() as rows:
            return {"table": rows.table, "keys": _keys(bulk, rows.count), "rows": _values(bulk, rows)}
        case Gradients() as grads:
            return {"table": grads.table, "keys": _keys(bulk, grads.count), "grads": _values(bulk, grads)}
        case DenseGradients() as dense:
            return _dense_fields(dense, bulk)
        case DeleteRows() as gone:
            return {"table": gone.table, "keys": _keys(bulk, gone.count)}
        case Chunk() as chunk:
            names = {segment.name for segment in chunk.segments}
            return {"version": chunk.version, "name": names.pop() if len(names) == 1 else None}
        case Part() as part:
            only = part.tensors[0] if len(part.tensors) == 1 else None
            return {
                "version": part.version,
                "name": only.name if only is not None else None,
                "digest": only.digest.hex() if only is not None else None,
            }
        case Commit() as commit:
            return {"version": commit.version, "digest": commit.digest.hex()}
        case _:
            return None


def _dense_fields(dense: DenseGradients, bulk: memoryview) -> dict[str, Any]:
    slices = tuple(
        GradientSlice(
            piece.name,
            piece.dtype,
            piece.shape,
            piece.offset // DTYPES[piece.dtype].itemsize,
            as_numpy(data, piece.dtype, (len(data) // DTYPES[piece.dtype].itemsize,)),
            piece.digest.hex(),
        )
        for piece, data in gradient_pieces(dense, bulk)
    )
    fields: dict[str, Any] = {"version": dense.step, "slices": slices, "number": dense.number, "count": dense.count}
    if len(slices) == 1:
        only = slices[0]
        grads = only.values.reshape(only.shape) if only.whole else only.values
        fields |= {"name": only.name, "digest": only.digest, "grads": grads}
    return fields


def _keys(bulk: memoryview, count: int) -> npt.NDArray[np.int64]:
    return as_numpy(bulk[: count * ROW_KEY_BYTES], "int64", (count,))


def _values(bulk: memoryview, rows: Rows | Gradients) -> npt.NDArray[Any]:
    return as_numpy(bulk[rows.count * ROW_KEY_BYTES :], rows.dtype, (rows.count, rows.dim))
