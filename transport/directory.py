"""What a client knows of topics: names and ids, both ways, and their tables.

Everything inside goes by ids, because a name that gets another id is a new topic; users see names. What is not known yet is
asked of the broker, once; after a new connection names are looked up afresh, since the broker may have other topics now.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ..consistency.vector import PartitionId, VersionVector, check_named
from ..errors import UnknownTopic
from ..events.kinds import Table
from .calls import Call, JoinedPartition, ListTopics, TopicRecord

ASK_S = 30.0
"""How long a look at an unknown topic may take."""

Answer = TypeVar("Answer")

Ask = Callable[[Call, Any, float], Any]


class Directory:
    """Topics by name and by id. Thread-safe; only `topic` and `refresh` may ask the broker, everything else never blocks."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._by_name: dict[str, TopicRecord] = {}
        self._by_id: dict[int, TopicRecord] = {}
        self._tables: dict[int, dict[str, Table]] = {}

    def request(self, call: Call, kind: Any, timeout: float) -> Any:
        """Ask the broker and wait; raises its error or `ParamstreamTimeout`."""
        return self._ask(call, kind, timeout)

    def topic(self, name: str) -> TopicRecord:
        """The topic called `name`; asks the broker where it is not known. Raises `UnknownTopic`."""
        with self._lock:
            record = self._by_name.get(name)
        if record is None:
            self.refresh()
            with self._lock:
                record = self._by_name.get(name)
        if record is None:
            raise UnknownTopic(f"there is no topic {name!r}", topic=name, remedy="Create it with client.create_topic")
        return record

    def refresh(self, timeout: float = ASK_S) -> list[TopicRecord]:
        """All topics, as the broker has them now."""
        records: list[TopicRecord] = self._ask(ListTopics(), list[TopicRecord], timeout)
        with self._lock:
            self._by_name = {record.name: record for record in records}
            self._by_id.update((record.id, record) for record in records)
        return records

    def learn(self, record: TopicRecord) -> None:
        """The broker said this of a topic: its name stands for this id from now on."""
        with self._lock:
            self._by_name[record.name] = self._by_id[record.id] = record

    def forget_names(self) -> None:
        """A new connection: which topics a name stands for is asked again."""
        with self._lock:
            self._by_name.clear()

    def forget(self, topic: int) -> None:
        """The broker said that the topic was deleted: what its name stands for is asked again."""
        with self._lock:
            self._by_name = {name: record for name, record in self._by_name.items() if record.id != topic}

    def was_replaced(self, record: TopicRecord) -> bool:
        """Its name is known to stand for another topic now."""
        now = self._by_name.get(record.name)
        return now is not None and now.id != record.id

    def of_topics(self, names: Sequence[str], ask: Callable[[], Answer]) -> Answer:
        """What `ask` gives, which goes by the ids of these topics: asked once more where one of them is another topic by now.

        Somebody else may have deleted it and made it again. Raises `UnknownTopic` for a name that is no topic's.
        """
        known = [self.topic(name) for name in names]
        try:
            return ask()
        except UnknownTopic:
            for record in known:
                self.forget(record.id)
            if [self.topic(name).id for name in names] == [record.id for record in known]:
                raise
            return ask()

    def name_of(self, topic: int) -> str | None:
        """The name of a topic id, or None where it was never heard of."""
        record = self._by_id.get(topic)
        return record.name if record is not None else None

    def tables(self, topic: int) -> Mapping[str, Table]:
        """The topic's tables by name, as newly as a join has told."""
        return self._tables.get(topic, {})

    def learn_tables(self, partitions: Iterable[JoinedPartition]) -> None:
        for partition in partitions:
            if partition.tables:
                self._tables[partition.topic] = {table.table: table for table in partition.tables}

    def learn_table(self, topic: int, table: Table) -> None:
        self._tables[topic] = {**self.tables(topic), table.table: table}

    def to_names(self, vector: Mapping[PartitionId, int]) -> VersionVector[str]:
        """The same vector as users see it; entries of topics that were never heard of are left out."""
        named: dict[tuple[str, int], int] = {}
        for (topic, number), position in vector.items():
            name = self.name_of(topic)
            if name is not None:
                named[name, number] = max(position, named.get((name, number), 0))
        return VersionVector(named)

    def to_ids(self, vector: Mapping[tuple[str, int], int]) -> VersionVector[int]:
        """The same vector as events carry it. Raises `UnknownTopic` that names the topic."""
        return VersionVector({(self.topic(name).id, number): position for (name, number), position in vector.items()})

    def standing_ids(self, vector: Mapping[tuple[str, int], int], *, must_be_known: bool = False) -> VersionVector[int]:
        """`to_ids` of what somebody has seen: without the topics that were deleted since, because nothing rests on those now.

        `must_be_known`, for a user's own vector: raises `InvalidEvent` for an entry that is none, `UnknownTopic` for a name that never
        was a topic's as far as is known here.
        """
        if must_be_known:
            check_named(vector)
        standing: dict[str, TopicRecord] = {}
        for name in {name for name, _ in vector}:
            try:
                standing[name] = self.topic(name)
            except UnknownTopic:
                if must_be_known and all(known.name != name for known in list(self._by_id.values())):
                    raise
        return VersionVector(
            {(standing[name].id, number): position for (name, number), position in vector.items() if name in standing}
        )
