"""How a changelog's records are written: an item under its kind and key, and one marker, which each flush moves.

    k KEY                                   an entry
    d TABLE                                 what a table was defined as at the floor
    r KIND POSITION, ROW KEY, TABLE         a row, of a table whose optimizer is of its kind since that position
    m                                       the marker

The marker says what the items together are the state of: as a snapshot's manifest does, and by the same words. Rows of another kind
position than their table's definition are passed over: they are on their way in, or left over.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec
import numpy as np

from ...consistency.vector import VersionVector
from ...errors import CorruptLog, InvalidEvent
from ...eventlog.changelog import ChangelogRecord
from ...events.codec import decode_vector, encode_vector
from ...events.kinds import Table
from ...events.validate import check_table
from ...tiers.entries import Entry
from ...tiers.rows.batch import RowBatch
from ..definitions import Defined

FORMAT = 2
"""Format 1 knew no rows."""

_ENTRY = b"k"
_TABLE = b"d"
_ROW = b"r"
_MARKER = b"m"
_ROW_KEY = struct.Struct(">Qq")
_POSITION = struct.Struct("<Q")


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    position: int
    value: bytes
    deadline: int | None = None
    valid_for: tuple[int, int] | None = None


class _Table(msgspec.Struct, array_like=True, frozen=True):
    definition: Table
    position: int
    kind_position: int


class Marker(msgspec.Struct, array_like=True, frozen=True):
    """Ends each flush: with the log behind `floor`, the items are the partition's whole state from `ceiling` on."""

    floor: int
    ceiling: int
    context: bytes
    """The closed vector of all that the items rest on, encoded."""
    lacking: int = 0
    """Of format 1: events of tables that its writer passed over. Where there are any the items are not the whole state, and the
    partition's log was never cut."""
    format: int = FORMAT

    @property
    def vector(self) -> VersionVector[int]:
        return decode_vector(self.context)


class RowsOf(NamedTuple):
    """Which rows a record is one of."""

    table: str
    kind_position: int


class RowRecord(NamedTuple):
    """A row as a record has it."""

    of: RowsOf
    key: int
    position: int
    """0: a tombstone."""
    data: bytes
    """Its values, then its state, as they lie in memory."""


class EntryRecord(NamedTuple):
    """An entry as a record has it."""

    key: bytes
    entry: Entry | None
    """None: a tombstone."""


def marker(floor: int, ceiling: int, context: VersionVector[int]) -> Marker:
    return Marker(floor, ceiling, encode_vector(context))


def entry_record(key: bytes, entry: Entry | None) -> ChangelogRecord:
    """The record of an entry as it is now; None: there is none any more."""
    if entry is None:
        return ChangelogRecord(_ENTRY + key, None)
    stored = _Stored(entry.position, entry.value, entry.deadline, entry.valid_for)
    return ChangelogRecord(_ENTRY + key, msgspec.msgpack.encode(stored))


def table_record(defined: Defined) -> ChangelogRecord:
    stored = _Table(defined.definition, defined.position, defined.kind_position)
    return ChangelogRecord(_TABLE + defined.definition.table.encode(), msgspec.msgpack.encode(stored))


def row_records(of: RowsOf, batch: RowBatch) -> list[ChangelogRecord]:
    """A record for each row of the batch, a tombstone where it is not there."""
    count, name = len(batch.keys), of.table.encode()
    columns = [batch.positions[:, None], batch.values, batch.state]
    data = np.concatenate([each.view(np.uint8).reshape(count, -1) for each in columns], axis=1).tobytes()
    width = len(data) // max(1, count)
    pack, kind_position = _ROW_KEY.pack, of.kind_position
    return [
        ChangelogRecord(
            _ROW + pack(kind_position, key) + name, data[at * width : (at + 1) * width] if position else None
        )
        for at, (key, position) in enumerate(zip(batch.keys.tolist(), batch.positions.tolist(), strict=True))
    ]


def marker_record(marked: Marker) -> ChangelogRecord:
    return ChangelogRecord(_MARKER, msgspec.msgpack.encode(marked))


AnyRecord = Marker | EntryRecord | Defined | RowRecord


def read_record(record: ChangelogRecord, place: str) -> AnyRecord:
    """What a record says. Raises `CorruptLog` that names `place` where it is none of ours."""
    kind, key, value = record.key[:1], record.key[1:], record.value
    try:
        if kind == _ROW:
            return _row(key, value)
        if kind == _ENTRY:
            return EntryRecord(key, None if value is None else _entry(value))
        if kind == _TABLE and value is not None:
            return _defined(key, value)
        if kind == _MARKER and not key and value is not None:
            return _known(msgspec.msgpack.decode(value, type=Marker), place)
    except (msgspec.DecodeError, struct.error, ValueError, RecursionError, InvalidEvent) as error:
        raise CorruptLog(f"a record of the changelog {place} cannot be decoded: {error}", item=place) from error
    raise CorruptLog(f"the changelog {place} holds a record of an unknown kind {kind!r}", item=place)


def _entry(value: bytes) -> Entry:
    stored = msgspec.msgpack.decode(value, type=_Stored)
    return Entry(stored.value, stored.position, stored.deadline, stored.valid_for)


def _row(key: bytes, value: bytes | None) -> RowRecord:
    kind_position, row = _ROW_KEY.unpack_from(key)
    of = RowsOf(key[_ROW_KEY.size :].decode(), kind_position)
    if value is None:
        return RowRecord(of, row, 0, b"")
    (position,) = _POSITION.unpack_from(value)
    if not position:
        raise ValueError(f"row {row} of table {of.table!r} has no position")
    return RowRecord(of, row, position, value[_POSITION.size :])


def _defined(key: bytes, value: bytes) -> Defined:
    stored = msgspec.msgpack.decode(value, type=_Table)
    check_table(stored.definition)
    if key.decode() != stored.definition.table or not 0 < stored.kind_position <= stored.position < 1 << 64:
        raise ValueError(f"the definition of table {key!r} does not hold together")
    return Defined(stored.definition, stored.position, stored.kind_position)


def _known(marked: Marker, place: str) -> Marker:
    if marked.format > FORMAT:
        raise CorruptLog(
            f"the changelog {place} is of format {marked.format}, this reader knows {FORMAT}",
            item=place,
            remedy="Upgrade this reader",
        )
    return marked
