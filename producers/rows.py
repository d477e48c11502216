"""Rows, gradients and keys as events: checked against their table, split by partition, cut to the event limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InvalidEvent
from ..events.arrays import DTYPES, describe, nbytes_of, row_major
from ..events.kinds import DeleteRows, Gradients, Rows, Table
from ..events.limits import MAX_CHUNK_BYTES
from ..events.row_keys import Keys, by_partition, in_groups
from ..events.validate import ROW_KEY_BYTES
from ..transport.calls import TopicRecord
from .calls import Draft

Bytes = npt.NDArray[np.uint8]
"""(count, bytes of a row)."""

FILLED_ROWS = 512
"""Where an event holds fewer rows, parts by hash would be too unequal."""

MAX_GROUPS = 65_535
NAMED_KEYS = 8
"""How many of the keys that are wrong an error names."""


def row_values(definition: Table, keys: Keys, rows: Any) -> Bytes:
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


def gradient_values(definition: Table, keys: Keys, grads: Any, nonfinite: str) -> Bytes:
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
                f"NaN or infinities in the gradients of {len(bad)} key{'s' if len(bad) > 1 else ''}: {named}",
                item=definition.table,
                remedy='Leave these out or clip them, or say nonfinite="pass"',
            )
    return values


def row_drafts(
    topic: TopicRecord, definition: Table, kind: type[Rows | Gradients], keys: Keys, values: Bytes
) -> list[Draft]:
    """One event or more for each partition that a key goes to. The order of a key's rows is kept, and all gradients of a key go in one
    event, so that they make one step; where there are more of them than an event holds, their sum goes, in the table's dtype.
    """
    step = _rows_in_an_event(definition)

    def draft(number: int, some: Keys, rows: Bytes) -> Draft:
        payload = kind(definition.table, len(some), definition.dim, definition.dtype)
        return Draft.of((topic.id, number), payload, (_bytes(some), _bytes(rows)), _meta_nbytes(definition.table))

    drafts: list[Draft] = []
    for number, places in by_partition(keys, topic.partitions):
        for some, rows in _groups(kind, keys, values, places, step):
            ends: Iterable[int] = range(step, len(some) + step, step)
            if kind is Gradients and len(some) > step:
                some, rows = _key_by_key(definition, some, rows, step)
                ends = _ends_of_runs(some, step)
            begin = 0
            for end in ends:
                drafts.append(draft(number, some[begin:end], rows[begin:end]))
                begin = end
    return drafts


def delete_drafts(topic: TopicRecord, definition: Table, keys: Keys, up_to: int | None = None) -> list[Draft]:
    """As many keys in an event as there would be rows: a replica has all that an event changes in memory at once, and what it was too
    until that is durable. *Cut by their own bytes alone, a hundred thousand rows had to fit into any DRAM tier.*
    """
    table, step, drafts = definition.table, _rows_in_an_event(definition), list[Draft]()
    for number, places in by_partition(keys, topic.partitions):
        own = keys if places is None else keys[places]
        for at in range(0, len(own), step):
            some = own[at : at + step]
            payload = DeleteRows(table, len(some), up_to)
            drafts.append(Draft.of((topic.id, number), payload, (_bytes(some),), _meta_nbytes(table)))
    return drafts


def _rows_in_an_event(definition: Table) -> int:
    return max(1, MAX_CHUNK_BYTES // (ROW_KEY_BYTES + nbytes_of(definition.dtype, (definition.dim,))))


def _groups(
    kind: type[Rows | Gradients], keys: Keys, values: Bytes, places: Keys | None, step: int
) -> Iterator[tuple[Keys, Bytes]]:
    """What goes to one partition, in parts that have all places of their keys. Gradients for many events come in parts that fill one
    each, as a rule: what a part has too much is sorted.
    """
    own = keys if places is None else keys[places]
    if kind is Gradients and len(own) > step >= FILLED_ROWS:
        groups = min(-(-len(own) * 10 // (9 * step)), MAX_GROUPS)
        for chosen in in_groups(own, groups):
            where = chosen if places is None else places[chosen]
            yield keys[where], values.take(where, axis=0)
    else:
        yield own, values if places is None else values.take(places, axis=0)


def _key_by_key(definition: Table, keys: Keys, grads: Bytes, step: int) -> tuple[Keys, Bytes]:
    """Sorted by key, those of one key in their order; of a key with more than `step` gradients their sum alone."""
    order = np.argsort(keys, kind="stable")
    keys, grads = keys[order], grads.take(order, axis=0)
    begins = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    counts = np.diff(begins, append=len(keys))
    long = counts > step
    if not long.any():
        return keys, grads
    stays = np.ones(len(keys), np.bool_)
    exact = np.float64 if definition.dtype == "float64" else np.float32
    for begin, count in zip(begins[long].tolist(), counts[long].tolist(), strict=True):
        numbers = grads[begin : begin + count].view(DTYPES[definition.dtype])
        # Along the first axis numpy adds row by row, in their order.
        total = np.add.reduce(numbers.astype(exact), axis=0).astype(numbers.dtype)
        grads[begin] = total.view(np.uint8)
        stays[begin + 1 : begin + count] = False
    return keys[stays], grads[stays]


def _ends_of_runs(keys: Keys, step: int) -> Iterator[int]:
    """Where sorted keys are cut so that none is in two pieces, and no piece has more than `step`; no key has more."""
    ends = np.flatnonzero(np.concatenate((keys[1:] != keys[:-1], [True]))) + 1
    begin = 0
    while begin < len(keys):
        begin = int(ends[np.searchsorted(ends, begin + step, side="right") - 1])
        yield begin


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat) if array.size else memoryview(b"")


def _meta_nbytes(table: str) -> int:
    return len(table.encode()) + 64
