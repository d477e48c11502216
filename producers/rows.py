"""Rows, gradients and keys as events: checked against their table, split by partition, cut to the event limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..consistency.vector import PartitionId
from ..errors import InvalidEvent
from ..events.arrays import describe, is_torch, row_major
from ..events.digest import partition_of
from ..events.kinds import DeleteRows, Gradients, Rows, Table
from ..events.limits import MAX_CHUNK_BYTES
from ..transport.calls import TopicRecord
from .calls import Draft

_KEY = np.dtype("<i8")


def row_keys(table: str, keys: object) -> npt.NDArray[np.int64]:
    """`keys` as a flat int64 array. Raises `InvalidEvent` for another dtype or shape: keys are never cast."""
    if isinstance(keys, list | tuple | range):
        keys = np.asarray(cast(Any, keys))
        keys = keys if keys.size else np.empty(0, np.int64)
    dtype, shape = describe(table, keys)
    if dtype != "int64" or len(shape) != 1:
        raise InvalidEvent(
            f"row keys are int64 of one dimension, not {dtype} {shape}", item=table, remedy="Convert them first"
        )
    flat = keys.detach().cpu().numpy() if is_torch(keys) else np.asarray(keys)  # type: ignore[attr-defined]
    return np.ascontiguousarray(flat, dtype=_KEY)


def row_values(definition: Table, keys: npt.NDArray[np.int64], rows: Any) -> npt.NDArray[np.uint8]:
    """The rows as (count, bytes of a row). Raises `InvalidEvent` where shape or dtype differ from the table's."""
    dtype, shape = describe(definition.table, rows)
    expected = (len(keys), definition.dim)
    if dtype != definition.dtype or shape != expected:
        raise InvalidEvent(
            f"the rows are {dtype} {shape}; the table needs {definition.dtype} {expected}",
            item=definition.table,
            remedy="One row for each key, of the table's dim and dtype",
        )
    flat = np.frombuffer(row_major(definition.table, rows), np.uint8)
    return flat.reshape(len(keys), -1) if len(keys) else flat.reshape(0, 0)


def row_drafts(
    topic: TopicRecord, definition: Table, kind: type[Rows | Gradients], keys: npt.NDArray[np.int64],
    values: npt.NDArray[np.uint8],
) -> list[Draft]:  # fmt: skip
    """One event or more for each partition that a key goes to; the order of the keys within a partition is kept."""

    def make(partition: PartitionId, some: npt.NDArray[np.int64], chosen: npt.NDArray[np.uint8]) -> Draft:
        payload = kind(definition.table, len(some), definition.dim, definition.dtype)
        bulk = (_bytes(some), _bytes(chosen))
        return Draft.of(partition, payload, bulk, _meta_nbytes(definition.table))

    return list(_split(topic, keys, values, make))


def delete_drafts(topic: TopicRecord, table: str, keys: npt.NDArray[np.int64]) -> list[Draft]:
    def make(partition: PartitionId, some: npt.NDArray[np.int64], _: npt.NDArray[np.uint8]) -> Draft:
        return Draft.of(partition, DeleteRows(table, len(some)), (_bytes(some),), _meta_nbytes(table))

    return list(_split(topic, keys, np.empty((len(keys), 0), np.uint8), make))


def _split(
    topic: TopicRecord, keys: npt.NDArray[np.int64], values: npt.NDArray[np.uint8],
    make: Callable[[PartitionId, npt.NDArray[np.int64], npt.NDArray[np.uint8]], Draft],
) -> Iterator[Draft]:  # fmt: skip
    for number, chosen in _by_partition(topic.partitions, keys):
        some, rows = (keys, values) if chosen is None else (keys[chosen], values[chosen])
        step = max(1, MAX_CHUNK_BYTES // (_KEY.itemsize + values.shape[1]))
        for at in range(0, len(some), step):
            yield make((topic.id, number), some[at : at + step], rows[at : at + step])


def _by_partition(partitions: int, keys: npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.int64] | None]]:
    """(partition, places of its keys), None for all of them."""
    if partitions == 1:
        yield 0, None
        return
    data = keys.tobytes()
    size = _KEY.itemsize
    numbers = np.fromiter(
        (partition_of(data[at : at + size], partitions) for at in range(0, len(data), size)), np.int64, len(keys)
    )
    for number in np.unique(numbers):
        yield int(number), np.flatnonzero(numbers == number)


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat) if array.size else memoryview(b"")


def _meta_nbytes(table: str) -> int:
    return len(table.encode()) + 64
