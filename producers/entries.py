"""KV as events: keys and values of any kind become the drafts of puts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from ..consistency.vector import PartitionId
from ..errors import InvalidEvent
from ..events.arrays import row_major
from ..events.digest import partition_of
from ..events.kinds import Delete, Put, PutItem, ValidFor
from ..events.limits import MAX_CHUNK_BYTES
from ..events.validate import check_key, check_put, key_bytes
from ..transport.calls import TopicRecord
from .calls import Draft

Key = bytes | bytearray | memoryview | str
Entry = tuple[PutItem, memoryview]
"""What a put says of one key, and the value: still the caller's memory."""

_ITEM_BYTES = 24
_DELETE_BYTES = 16
_VALID_FOR_BYTES = 20


def _value(key: bytes, value: Any) -> memoryview:
    """The bytes of any buffer, flat."""
    given = cast(object, value)
    try:
        if isinstance(given, np.ndarray) and not cast(Any, given).dtype.hasobject:
            return row_major(repr(key), cast(Any, given))
        view = memoryview(cast(Any, given))
        if view.format == "O":
            raise TypeError("references are no bytes")
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


def pairs_of(items: Mapping[Any, Any] | Iterable[tuple[Key, Any]]) -> Iterator[tuple[object, object]]:
    """The pairs of a mapping, or of an iterable of (key, value). Raises `InvalidEvent` for anything else."""
    given = cast(object, items.items() if isinstance(items, Mapping) else items)
    if not isinstance(given, Iterable):
        raise InvalidEvent(f"a mapping, or pairs of (key, value), can be put, not {type(given).__name__}")
    for pair in cast(Iterable[object], given):
        both = cast(tuple[object, ...], pair)
        if not isinstance(pair, tuple | list) or len(both) != 2:
            raise InvalidEvent("each item is a pair of (key, value)", item=repr(both)[:64])
        yield both[0], both[1]


def entry_of(key: object, value: Any, ttl_ns: int | None, valid_for: ValidFor | None) -> Entry:
    """Raises `InvalidEvent` naming the key, and copies nothing that is flat already."""
    name = key_bytes(key)
    data = _value(name, value)
    item = PutItem(name, len(data), ttl_ns, valid_for)
    check_put(item)
    return item, data


def put_drafts(topic: TopicRecord, entries: Iterable[Entry]) -> list[Draft]:
    """As many events as the entries need: partition by partition, within one in their order."""
    by_partition: dict[int, list[Entry]] = {}
    for item, value in entries:
        by_partition.setdefault(partition_of(item.key, topic.partitions), []).append((item, value))
    return [draft for number, own in by_partition.items() for draft in _drafts_of((topic.id, number), own)]


def delete_draft(topic: TopicRecord, key: Key) -> Draft:
    """Raises `InvalidEvent` for what is no key."""
    name = key_bytes(key)
    check_key(name)
    return Draft.of((topic.id, partition_of(name, topic.partitions)), Delete((name,)), (), len(name) + _DELETE_BYTES)


def _drafts_of(partition: PartitionId, entries: Sequence[Entry]) -> Iterator[Draft]:
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
