"""KV as events: keys and values of any kind become the drafts of puts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np

from ..consistency.vector import PartitionId
from ..errors import InvalidEvent
from ..events.arrays import row_major
from ..events.kinds import Put, PutItem, ValidFor
from ..events.limits import MAX_CHUNK_BYTES
from ..events.validate import check_put
from .calls import Draft

Key = bytes | bytearray | memoryview | str
Entry = tuple[PutItem, memoryview]
"""What a put says of one key, and the value: still the caller's memory."""

_ITEM_BYTES = 24
_VALID_FOR_BYTES = 20


def key_bytes(key: object) -> bytes:
    """A str key is its UTF-8 bytes."""
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            raise InvalidEvent("a str key must be valid UTF-8", item=repr(key)) from error
    if not isinstance(key, bytes | bytearray | memoryview):
        raise InvalidEvent(f"a key is bytes or str, not {type(key).__name__}", item=repr(key))
    return bytes(cast(bytes, key))


def _value(key: bytes, value: Any) -> memoryview:
    """The bytes of any buffer, flat."""
    if isinstance(value, np.ndarray):
        return row_major(repr(key), cast(Any, value))
    try:
        view = memoryview(value)
    except TypeError as error:
        raise InvalidEvent(
            f"a value is a buffer, not {type(value).__name__}", item=repr(key[:64]), remedy="Encode it to bytes"
        ) from error
    return view if view.format == "B" and view.ndim == 1 and view.c_contiguous else memoryview(bytes(view))


def ttl_nanoseconds(ttl: float | None) -> int | None:
    if ttl is None:
        return None
    given = cast(object, ttl)
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise InvalidEvent(f"a TTL is a number of seconds, not {ttl!r}")
    return int(ttl * 1e9)


def entry_of(key: object, value: Any, ttl_ns: int | None, valid_for: ValidFor | None) -> Entry:
    """Raises `InvalidEvent` naming the key, and copies nothing that is flat already."""
    name = key_bytes(key)
    data = _value(name, value)
    item = PutItem(name, len(data), ttl_ns, valid_for)
    check_put(item)
    return item, data


def put_drafts(partition: PartitionId, entries: Sequence[Entry]) -> Iterable[Draft]:
    """As many events as the entries need, in their order."""
    held: list[Entry] = []
    nbytes = 0
    for item, value in entries:
        more = item.nbytes + _meta_nbytes(item)
        if held and nbytes + more > MAX_CHUNK_BYTES:
            yield _put_draft(partition, held)
            held, nbytes = [], 0
        held.append((item, value))
        nbytes += more
    if held:
        yield _put_draft(partition, held)


def _put_draft(partition: PartitionId, held: Sequence[Entry]) -> Draft:
    meta_nbytes = sum(_meta_nbytes(item) for item, _ in held)
    return Draft.of(partition, Put(tuple(item for item, _ in held)), tuple(value for _, value in held), meta_nbytes)


def _meta_nbytes(item: PutItem) -> int:
    return len(item.key) + _ITEM_BYTES + (_VALID_FOR_BYTES if item.valid_for is not None else 0)
