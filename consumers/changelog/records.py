"""How a changelog's records are written: an item under its kind and key, and one marker, which each flush moves.

The marker says what the items together are the state of: as a snapshot's manifest does, and by the same words.
"""

from __future__ import annotations

import msgspec

from ...consistency.vector import VersionVector
from ...errors import CorruptLog
from ...eventlog.changelog import ChangelogRecord
from ...events.codec import decode_vector, encode_vector
from ...tiers.entries import Entry

FORMAT = 1
_ENTRY = b"k"
_MARKER = b"m"


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    position: int
    value: bytes
    deadline: int | None = None
    valid_for: tuple[int, int] | None = None


class Marker(msgspec.Struct, array_like=True, frozen=True):
    """Ends each flush: with the log behind `floor`, the items are the partition's whole state from `ceiling` on."""

    floor: int
    ceiling: int
    context: bytes
    """The closed vector of all that the items rest on, encoded."""
    skipped: int = 0
    """Events of tables of rows that the writer did not apply: the log must keep them."""
    format: int = FORMAT

    @property
    def vector(self) -> VersionVector[int]:
        return decode_vector(self.context)


def marker(floor: int, ceiling: int, context: VersionVector[int], skipped: int) -> Marker:
    return Marker(floor, ceiling, encode_vector(context), skipped)


def entry_record(key: bytes, entry: Entry | None) -> ChangelogRecord:
    """The record of an entry as it is now; None: there is none any more."""
    if entry is None:
        return ChangelogRecord(_ENTRY + key, None)
    stored = _Stored(entry.position, entry.value, entry.deadline, entry.valid_for)
    return ChangelogRecord(_ENTRY + key, msgspec.msgpack.encode(stored))


def marker_record(marked: Marker) -> ChangelogRecord:
    return ChangelogRecord(_MARKER, msgspec.msgpack.encode(marked))


def read_record(record: ChangelogRecord, place: str) -> Marker | tuple[bytes, Entry | None]:
    """What a record says: the marker, or a key and its entry (None: a tombstone).

    Raises `CorruptLog` that names `place` where it is none of ours.
    """
    kind, key = record.key[:1], record.key[1:]
    try:
        if kind == _MARKER and not key and record.value is not None:
            return _known(msgspec.msgpack.decode(record.value, type=Marker), place)
        if kind == _ENTRY:
            if record.value is None:
                return key, None
            stored = msgspec.msgpack.decode(record.value, type=_Stored)
            return key, Entry(stored.value, stored.position, stored.deadline, stored.valid_for)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptLog(f"a record of the changelog {place} cannot be decoded: {error}", item=place) from error
    raise CorruptLog(f"the changelog {place} holds a record of an unknown kind {kind!r}", item=place)


def _known(marked: Marker, place: str) -> Marker:
    if marked.format > FORMAT:
        raise CorruptLog(
            f"the changelog {place} is of format {marked.format}, this reader knows {FORMAT}",
            item=place,
            remedy="Upgrade this reader",
        )
    return marked
