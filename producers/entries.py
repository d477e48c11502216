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
    if type(value) is bytes:
        return memoryview(value)
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


def pairs_of(items: Mapping[Any, Any] | Iterable[tuple[Key, Any]]) -> Iterable[tuple[object, object]]:
    """The pairs of a mapping, or of an iterable of (key, value). Raises `InvalidEvent` for anything else."""
    if isinstance(items, Mapping):
        return cast(Mapping[object, object], items).items()
    given = cast(object, items)
    if not isinstance(given, Iterable):
        raise InvalidEvent(f"a mapping, or pairs of (key, value), can be put, not {type(given).__name__}")
    return map(_pair, cast(Iterable[object], given))


def _pair(given: object) -> tuple[object, object]:
    both = cast(tuple[object, ...], given)
    if not isinstance(given, tuple | list) or len(both) != 2:
        raise InvalidEvent("each item is a pair of (key, value)", item=repr(both)[:64])
    return both[0], both[1]


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
    for entry in entries:
        by_partition.setdefault(partition_of(entry[0].key, topic.partitions), []).append(entry)
    return [draft for number, own in by_partition.items() for draft in _drafts_of((topic.id, number), own)]


def delete_draft(topic: TopicRecord, key: Key) -> Draft:
    """Raises `InvalidEvent` for what is no key."""
    name = key_bytes(key)
    check_key(name)
    return Draft.of((topic.id, partition_of(name, topic.partitions)), Delete((name,)), (), len(name) + _DELETE_BYTES)


def _drafts_of(partition: PartitionId, entries: Sequence[Entry]) -> Iterator[Draft]:
    held, nbytes, meta_nbytes = list[Entry](), 0, 0
    for entry in entries:
        more, meta = entry[0].nbytes, _meta_nbytes(entry[0])
        if held and nbytes + meta_nbytes + more + meta > MAX_CHUNK_BYTES:
            yield _put_draft(partition, held, meta_nbytes)
            held, nbytes, meta_nbytes = [], 0, 0
        held.append(entry)
        nbytes += more
        meta_nbytes += meta
    if held:
        yield _put_draft(partition, held, meta_nbytes)


def _put_draft(partition: PartitionId, held: Sequence[Entry], meta_nbytes: int) -> Draft:
    items, values = zip(*held, strict=True)
    return Draft.of(partition, Put(items), values, meta_nbytes)


def _meta_nbytes(item: PutItem) -> int:
    return len(item.key) + _ITEM_BYTES + (_VALID_FOR_BYTES if item.valid_for is not None else 0)
