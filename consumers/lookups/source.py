"""A replica as its look-ups are answered from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...consistency.vector import PartitionId
from ...errors import UnknownTopic
from ...events.row_keys import Keys
from ..applying import TopicState
from ..entry_reads import EntryReads
from ..live_state import LiveState
from ..row_reads import FoundRows
from ..tables import Tables
from .answers import Standing


class ReplicaSource:
    """An `answers.Source`."""

    def __init__(self, live: LiveState, entries: EntryReads, tables: Tables) -> None:
        self._core = live.core
        self._sink = live.sink
        self._applier = live.applier
        self._state_partitions = live.scope.state_partitions
        self._entries = entries
        self._tables = tables

    def partitions(self, topic: int) -> Sequence[int] | None:
        state = self._applier.topics.get(topic)
        return None if state is None else self._state_partitions(state.record)

    def standing(self, topic: int, numbers: Iterable[int]) -> Standing:
        partitions = [(topic, number) for number in numbers]
        sink = self._sink
        with sink.changed:
            if sink.fenced is not None:
                raise sink.fenced
            for partition in partitions:
                if partition in sink.stopped:
                    raise sink.stopped[partition]
            applied = self._core.positions()
            undone = sum(sink.undone.get(partition, 0) for partition in partitions)
        return Standing(
            {number: applied[topic, number] for _, number in partitions if (topic, number) in applied}, undone
        )

    def is_lost(self, partition: PartitionId, position: int) -> bool:
        with self._sink.changed:
            return self._core.is_lost(partition, position)

    def table(self, topic: int, numbers: Iterable[int], name: str) -> tuple[int, str] | None:
        found = None
        for number in numbers:
            defined = self._applier.tables((topic, number)).get(name)
            if defined is None:
                return None
            found = defined.definition.dim, defined.definition.dtype
        return found

    def lookup(self, topic: int, table: str, keys: Keys) -> FoundRows:
        return self._tables.look_up(self._state(topic).record, table, keys)

    def get(self, topic: int, key: bytes) -> bytes | None:
        return self._entries.get(self._state(topic), key)

    def _state(self, topic: int) -> TopicState:
        state = self._applier.topics.get(topic)
        if state is None:
            raise UnknownTopic("this replica does not follow the topic any more")
        return state
