"""What `__meta` holds, and the calls that change it.

`__meta` is an ordinary partition (topic id 0, number 0) whose puts and deletes keep entries:

    topic/NAME            a TopicRecord
    table/TOPIC ID/TABLE  a Table, as it was last created or altered
    producer/NAME         the newest incarnation of a producer name
    replica/NAME          of a replica name
    snapshot/TOPIC ID/KEEPER  the AnnouncedSnapshots of a topic that a keeper holds, oldest first
    counter/incarnation   the last incarnation given, over all names

A call becomes an `Entry` to write, which takes effect as it is written, and an answer to give once it is durable. Where
nothing is to be written the answer may still rest on an entry that is not durable yet: it waits for `__meta`'s head too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from ..errors import CorruptLog, InvalidEvent, TopicExists, UnknownTopic
from ..events.kinds import Delete, Put, PutItem, Table
from ..events.limits import check_name
from ..events.validate import check_table
from ..transport.calls import AnnouncedSnapshot, AnnounceSnapshots, CreateTable, CreateTopic, TopicRecord

MAX_PARTITIONS = 1024
"""State partitions of a topic: each costs a log of its own."""

MAX_RETAINED_VERSIONS = 1 << 20

RESERVED_PREFIX = "__"
"""Names of topics that begin so are the broker's own."""

PLACE = re.compile(r"[^/\0]{1,250}-[0-9a-f]{16}/snapshot-[0-9]{8,20}")
"""Where a snapshot lies in its keeper's folder: never outside of it."""

_COUNTER = b"counter/incarnation"
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Entry:
    """What to write to `__meta`: the arguments of `PartitionCore.write`."""

    payload: Put | Delete
    bulk: tuple[bytes, ...] = ()


class MetaState:
    """A view of `__meta`'s entries: cheap to make, and always as the partition stands."""

    def __init__(self, entries: Mapping[bytes, bytes], epoch: int = 0) -> None:
        """`epoch`: of `__meta` now; incarnations begin above it, so that none is given twice where a log was lost."""
        self._entries = entries
        self._epoch = epoch

    # --- what is known ---

    def topics(self) -> list[TopicRecord]:
        """All topics, sorted by name."""
        return sorted((self._read(key, TopicRecord) for key in self._keys("topic/")), key=lambda topic: topic.name)

    def topic(self, name: str) -> TopicRecord:
        """Raises `UnknownTopic`."""
        found = self._entries.get(_topic_key(name))
        if found is None:
            known = ", ".join(topic.name for topic in self.topics()) or "none"
            raise UnknownTopic(f"no topic {name!r}", topic=name, remedy=f"Create it first; there are: {known}")
        return self._read(_topic_key(name), TopicRecord)

    def topic_by_id(self, topic_id: int) -> TopicRecord | None:
        return next((topic for topic in self.topics() if topic.id == topic_id), None)

    def tables(self, topic_id: int) -> list[Table]:
        """The topic's tables: under persistence "none" the owner writes them first in each epoch."""
        return [self._read(key, Table) for key in self._keys(f"table/{topic_id:016x}/")]

    def producer_incarnation(self, name: str) -> int:
        """The newest incarnation of a producer name, 0 if none was opened."""
        return self._number(_name_key("producer", name))

    def replica_incarnation(self, name: str) -> int:
        return self._number(_name_key("replica", name))

    def snapshots(self, topic_id: int, keeper: str) -> list[AnnouncedSnapshot]:
        """What a keeper holds of a topic, oldest first. Any thread, as long as nothing but this one key is looked up."""
        key = _snapshot_key(topic_id, keeper)
        return self._read(key, list[AnnouncedSnapshot]) if key in self._entries else []

    def keepers(self, topic_id: int) -> list[str]:
        """The keepers that have announced snapshots of a topic."""
        prefix = f"snapshot/{topic_id:016x}/"
        return [_text(key).removeprefix(prefix) for key in self._keys(prefix)]

    # --- calls: what to write, and what to answer once it is durable ---

    def create_topic(self, call: CreateTopic, topic_id: int) -> tuple[Entry | None, TopicRecord]:
        """`topic_id` is random and not 0. Raises `TopicExists`, or `InvalidEvent` for impossible settings."""
        check_name("topic", call.name)
        if call.name.startswith(RESERVED_PREFIX):
            problem = f"topic names that begin with {RESERVED_PREFIX!r} are reserved"
            raise InvalidEvent(problem, topic=call.name, remedy="Choose another name")
        _check_settings(call)
        record = TopicRecord(call.name, topic_id, call.partitions, call.persistence, call.retain_versions)
        found = self._entries.get(_topic_key(call.name))
        if found is None:
            assert topic_id and self.topic_by_id(topic_id) is None
            return _put({_topic_key(call.name): record}), record
        existing = self._read(_topic_key(call.name), TopicRecord)
        if not call.exist_ok or _settings(existing) != _settings(record):
            raise TopicExists(
                f"it exists with {_settings(existing)}, asked for was {_settings(record)}",
                topic=call.name,
                remedy="Use it as it is with exist_ok=True and the same settings, or delete it first",
            )
        return None, existing

    def delete_topic(self, name: str) -> tuple[Entry, TopicRecord]:
        """Forgets the topic and its tables. Raises `UnknownTopic`."""
        record = self.topic(name)
        of_topic = (f"table/{record.id:016x}/", f"snapshot/{record.id:016x}/")
        keys = (_topic_key(name), *(key for prefix in of_topic for key in self._keys(prefix)))
        return Entry(Delete(keys=keys)), record

    def create_table(self, call: CreateTable) -> Entry | None:
        """None where `__meta` has the definition already; the partitions that lack it get it all the same.

        Raises `UnknownTopic`; `TopicExists` for a table with another definition, or without `exist_ok`; `InvalidEvent` for
        an impossible one, or an alter of dim or dtype.
        """
        topic = self.topic_by_id(call.topic)
        if topic is None:
            raise UnknownTopic(f"no topic with the id {call.topic:016x}", remedy="It was deleted: look it up again")
        table = call.table
        check_table(table)
        key = f"table/{call.topic:016x}/{table.table}".encode()
        existing = self._read(key, Table) if key in self._entries else None
        if call.alter:
            _check_alter(existing, table, topic.name)
        elif existing is not None and (not call.exist_ok or existing != table):
            raise TopicExists(
                f"the table {table.table!r} exists with dim {existing.dim} and dtype {existing.dtype}",
                topic=topic.name,
                item=table.table,
                remedy="Use it as it is with exist_ok=True and the same settings, or alter it",
            )
        return _put({key: table}) if existing != table else None

    def announce(self, call: AnnounceSnapshots) -> Entry:
        """Raises `UnknownTopic`, or `InvalidEvent` for what is no snapshot of the topic."""
        topic = self.topic_by_id(call.topic)
        if topic is None:
            raise UnknownTopic(f"no topic with the id {call.topic:016x}", remedy="It was deleted")
        check_name("keeper", call.keeper)
        for snapshot in call.snapshots:
            _check_snapshot(snapshot, topic)
        return _put({_snapshot_key(call.topic, call.keeper): call.snapshots})

    def open_producer(self, name: str) -> tuple[Entry, int]:
        """The next incarnation, for a session of the producer name. Raises `InvalidEvent` for an impossible name."""
        return self._open_name("producer", name)

    def open_replica(self, name: str) -> tuple[Entry, int]:
        return self._open_name("replica", name)

    def forget_names(self, producers: Collection[str], replicas: Collection[str]) -> Entry | None:
        """Drops the names that are not among these, which somebody may come back under; None where there are none."""
        kept = {
            _name_key(kind, name) for kind, names in (("producer", producers), ("replica", replicas)) for name in names
        }
        gone = tuple(key for key in (*self._keys("producer/"), *self._keys("replica/")) if key not in kept)
        return Entry(Delete(keys=gone)) if gone else None

    # --- inside ---

    def _open_name(self, kind: str, name: str) -> tuple[Entry, int]:
        check_name(kind, name)
        incarnation = max(self._number(_COUNTER), self._epoch) + 1
        return _put({_COUNTER: incarnation, _name_key(kind, name): incarnation}), incarnation

    def _keys(self, prefix: str) -> list[bytes]:
        start = prefix.encode()
        return [key for key in self._entries if key.startswith(start)]

    def _read(self, key: bytes, kind: type[_Value]) -> _Value:
        """Raises `CorruptLog` for what no broker wrote."""
        try:
            return msgspec.msgpack.decode(self._entries[key], type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise CorruptLog(f"the entry {key!r} of `__meta` cannot be decoded: {error}", item=repr(key)) from error

    def _number(self, key: bytes) -> int:
        return self._read(key, int) if key in self._entries else 0


def _put(values: Mapping[bytes, Any]) -> Entry:
    encoded = {key: msgspec.msgpack.encode(value) for key, value in values.items()}
    items = tuple(PutItem(key, len(value)) for key, value in encoded.items())
    return Entry(Put(items=items), tuple(encoded.values()))


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise CorruptLog(f"the entry {key!r} of `__meta` has no name: {error}", item=repr(key)) from error


def _topic_key(name: str) -> bytes:
    return f"topic/{name}".encode()


def _name_key(kind: str, name: str) -> bytes:
    return f"{kind}/{name}".encode()


def _snapshot_key(topic_id: int, keeper: str) -> bytes:
    return f"snapshot/{topic_id:016x}/{keeper}".encode()


def _check_snapshot(snapshot: AnnouncedSnapshot, topic: TopicRecord) -> None:
    spans = snapshot.partitions
    if not PLACE.fullmatch(snapshot.place) or f"-{topic.id:016x}/" not in snapshot.place:
        raise InvalidEvent(f"{snapshot.place!r} is no place of a snapshot", topic=topic.name)
    if any(not 0 <= number < topic.partitions or not 0 <= floor <= ceiling for number, floor, ceiling in spans):
        raise InvalidEvent("a snapshot names partitions or positions that cannot be", topic=topic.name)


def _settings(topic: TopicRecord) -> str:
    return f"partitions={topic.partitions}, persistence={topic.persistence!r}, retain_versions={topic.retain_versions}"


def _check_settings(call: CreateTopic) -> None:
    if not 1 <= call.partitions <= MAX_PARTITIONS:
        problem = f"a topic has 1 to {MAX_PARTITIONS} state partitions, not {call.partitions}"
    elif call.persistence not in ("none", "write_back", "write_through"):
        problem = f'persistence is "none", "write_back" or "write_through", not {call.persistence!r}'
    elif not 1 <= call.retain_versions <= MAX_RETAINED_VERSIONS:
        problem = f"a topic retains 1 to {MAX_RETAINED_VERSIONS} versions, not {call.retain_versions}"
    else:
        return
    raise InvalidEvent(problem, topic=call.name)


def _check_alter(existing: Table | None, table: Table, topic: str) -> None:
    if existing is None:
        raise UnknownTopic(f"the topic has no table {table.table!r}", topic=topic, item=table.table)
    if (existing.dim, existing.dtype) != (table.dim, table.dtype):
        raise InvalidEvent(
            f"a table of dim {existing.dim} and dtype {existing.dtype} cannot become one of dim {table.dim} and {table.dtype}",
            topic=topic,
            item=table.table,
            remedy="Create another table and import the rows",
        )
