"""Rows, gradients and keys as events: checked against their table, split by partition, cut to the event limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..consistency.vector import PartitionId
from ..errors import InvalidEvent
from ..events.arrays import DTYPES, describe, row_major
from ..events.kinds import DeleteRows, Gradients, Rows, Table
from ..events.limits import MAX_CHUNK_BYTES
from ..events.row_keys import Keys, by_partition
from ..events.validate import ROW_KEY_BYTES
from ..transport.calls import TopicRecord
from .calls import Draft

NAMED_KEYS = 8
"""How many of the keys that are wrong an error names."""


def row_values(definition: Table, keys: Keys, rows: Any) -> npt.NDArray[np.uint8]:
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


def gradient_values(definition: Table, keys: Keys, grads: Any, nonfinite: str) -> npt.NDArray[np.uint8]:
    """The gradients as `row_values`. Raises `InvalidEvent` also, under `nonfinite="refuse"`, for NaN and infinities, naming the keys."""
    if nonfinite not in ("refuse", "pass"):
        raise InvalidEvent(f"nonfinite must be 'refuse' or 'pass', not {nonfinite!r}", item=definition.table)
    values = row_values(definition, keys, grads)
    if nonfinite == "refuse" and len(keys):
        finite = np.isfinite(values.view(DTYPES[definition.dtype]))
        if not finite.all():
            bad = keys[~finite.all(axis=1)]
            named = ", ".join(map(str, bad[:NAMED_KEYS].tolist())) + (", …" if len(bad) > NAMED_KEYS else "")
            raise InvalidEvent(
                f"the gradients of {len(bad)} keys have NaN or infinities: {named}",
                item=definition.table,
                remedy='Leave these out or clip them, or say nonfinite="pass"',
            )
    return values


def row_drafts(
    topic: TopicRecord, definition: Table, kind: type[Rows | Gradients], keys: Keys,
    values: npt.NDArray[np.uint8],
) -> list[Draft]:  # fmt: skip
    """One event or more for each partition that a key goes to; the order of the keys within a partition is kept."""

    def make(partition: PartitionId, some: Keys, chosen: npt.NDArray[np.uint8]) -> Draft:
        payload = kind(definition.table, len(some), definition.dim, definition.dtype)
        bulk = (_bytes(some), _bytes(chosen))
        return Draft.of(partition, payload, bulk, _meta_nbytes(definition.table))

    return list(_split(topic, keys, values, make))


def delete_drafts(topic: TopicRecord, table: str, keys: Keys) -> list[Draft]:
    def make(partition: PartitionId, some: Keys, _: npt.NDArray[np.uint8]) -> Draft:
        return Draft.of(partition, DeleteRows(table, len(some)), (_bytes(some),), _meta_nbytes(table))

    return list(_split(topic, keys, np.empty((len(keys), 0), np.uint8), make))


def _split(
    topic: TopicRecord, keys: Keys, values: npt.NDArray[np.uint8],
    make: Callable[[PartitionId, Keys, npt.NDArray[np.uint8]], Draft],
) -> Iterator[Draft]:  # fmt: skip
    step = max(1, MAX_CHUNK_BYTES // (ROW_KEY_BYTES + values.shape[1]))
    for number, places in by_partition(keys, topic.partitions):
        some, rows = (keys, values) if places is None else (keys[places], values.take(places, axis=0))
        for at in range(0, len(some), step):
            yield make((topic.id, number), some[at : at + step], rows[at : at + step])


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat) if array.size else memoryview(b"")


def _meta_nbytes(table: str) -> int:
    return len(table.encode()) + 64
