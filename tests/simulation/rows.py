"""Rows of the simulation: one table in each state partition, under gradient descent at a rate of 1, whose sums are worked out by hand.

What is written tells who wrote it: a number made of the call is the first value of a row, or what a gradient adds to it.
"""

from __future__ import annotations

import struct
from typing import Final, Literal, NamedTuple

import numpy as np

from paramstream.brokers.effects import Effect
from paramstream.brokers.partition import PartitionCore
from paramstream.consistency.vector import PartitionId
from paramstream.events.codec import EventFrame
from paramstream.events.kinds import DeleteRows, Gradients, Initializer, Optimizer, Rows, Table
from paramstream.producers.calls import Draft
from paramstream.tiers.entries import Entry
from paramstream.tiers.store import TieredStore

from .writes import Write

TABLE: Final = Table("t", 2, "float64", Optimizer("sgd", {"lr": 1.0}), Initializer("constant", {"value": 0.5}))
FIRST: Final = (0.5, 0.5)

RowHow = Literal["write", "gradients", "delete"]
"""What is done to a row. "gradients": of one key that repeats."""

_DELETED_BY: Final = 1 << 62
"""Keys from here on are never written: what a deletion names beside its own, so that it can be known. Each is of one partition."""
_PARTITIONS: Final = 8
"""More than a topic has."""


class Row(NamedTuple):
    position: int
    values: tuple[float, float]


def row_keys_of(partition: PartitionId) -> list[int]:
    """What users write there. A key has one partition."""
    return [-1 - partition[1], 7 + partition[1]]


def table_of(core: PartitionCore, now_ns: int) -> list[Effect]:
    """Define the table in a partition that was opened, where it has none yet."""
    lacks = core.settings.role == "state" and core.table(TABLE.table) is None
    return core.write(TABLE, (), now_ns) if lacks else []


def number_of(write: Write) -> int:
    """Below 2⁵³, so that float64 holds it."""
    producer, incarnation, number = write
    return (incarnation * 1000 + number) * 10 + int(producer[1:])


def write_of_number(number: int) -> Write:
    rest, producer = divmod(number, 10)
    return f"p{producer}", *divmod(rest, 1000)


def row_draft(partition: PartitionId, key: int, write: Write, how: RowHow) -> Draft:
    number = number_of(write)
    if how == "delete":
        mark = _DELETED_BY + number * _PARTITIONS + partition[1]
        return Draft.of(partition, DeleteRows(TABLE.table, 2), (struct.pack("<2q", key, mark),), 64)
    if how == "write":
        bulk = struct.pack("<q2d", key, number, 1.0)
        return Draft.of(partition, Rows(TABLE.table, 1, TABLE.dim, TABLE.dtype), (bulk,), 64)
    bulk = struct.pack("<2q4d", key, key, -number, -1.0, 0.25, -1.0)
    return Draft.of(partition, Gradients(TABLE.table, 2, TABLE.dim, TABLE.dtype), (bulk,), 64)


def writes_of_rows(frame: EventFrame) -> list[Write]:
    """Who wrote what an event does to rows; nobody where it does nothing to any."""
    payload = frame.payload
    if isinstance(payload, DeleteRows):
        keys = struct.unpack(f"<{payload.count}q", frame.bulk)
        return [write_of_number((key - _DELETED_BY) // _PARTITIONS) for key in keys if key >= _DELETED_BY]
    if not isinstance(payload, Rows | Gradients):
        return []
    first = struct.unpack_from("<d", frame.bulk, 8 * payload.count)[0]
    return [write_of_number(int(abs(first)))]


def change_rows(held: dict[bytes | int, Entry | Row], frame: EventFrame) -> None:
    """What an event does to the rows among what is held of its partition."""
    payload = frame.payload
    if not isinstance(payload, Rows | Gradients | DeleteRows):
        return
    keys = struct.unpack_from(f"<{payload.count}q", frame.bulk)
    if isinstance(payload, DeleteRows):
        for key in keys:
            held.pop(key, None)
        return
    given = list(struct.iter_unpack("<2d", frame.bulk[8 * payload.count :]))
    for key in dict.fromkeys(keys):
        of_key = [values for at, values in zip(keys, given, strict=True) if at == key]
        before = held.get(key)
        if isinstance(payload, Rows):
            first, second = of_key[-1]
        else:
            start = before.values if isinstance(before, Row) else FIRST
            first, second = (
                value - sum(column) for value, column in zip(start, zip(*of_key, strict=True), strict=True)
            )
        held[key] = Row(frame.position, (first, second))


def rows_held(store: TieredStore, partition: PartitionId) -> dict[bytes | int, Row]:
    """What a replica has of them."""
    table = store.row_tables(partition).get(TABLE.table)
    if table is None:
        return {}
    batch = table.read(np.sort(table.keys()))
    return {
        int(key): Row(int(position), (float(values[0]), float(values[1])))
        for key, values, position in zip(batch.keys, batch.values, batch.positions, strict=True)
        if position
    }
