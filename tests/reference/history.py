"""The reference for a restore: a topic's state at any cut of its history, worked out from the records by plain rules.

It reads the log's records, and shares no code with what applies them: entries are a dict, a cut is lowered by looking at every
event again until nothing changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paramstream.consistency.vector import PartitionId
from paramstream.eventlog.reading import FolderReader
from paramstream.events.codec import EventFrame, decode_vector
from paramstream.events.kinds import Commit, Delete, Kind, Put, ValidFor
from paramstream.events.validate import put_values

from .rows import ReferenceTable
from .rows import apply as apply_to_rows

Cut = dict[int, int]
"""Partition number → the last position in it."""


@dataclass
class Entry:
    value: bytes
    position: int
    deadline: int | None
    valid_for: ValidFor | None


@dataclass
class State:
    """What a replica has at a cut."""

    commit: EventFrame | None = None
    entries: dict[bytes, tuple[int, Entry]] = field(default_factory=dict[bytes, tuple[int, Entry]])
    """Key → (its partition, what it holds)."""
    tables: dict[int, dict[str, ReferenceTable]] = field(default_factory=dict[int, dict[str, ReferenceTable]])
    """Partition number → its tables."""

    def get(self, key: bytes) -> bytes | None:
        if key not in self.entries:
            return None
        number, entry = self.entries[key]
        wanted, commit = entry.valid_for, self.commit
        if wanted is None:
            return entry.value
        if commit is None:
            return None
        assert isinstance(commit.payload, Commit)
        if wanted.commit:
            return entry.value if wanted.commit == commit.position else None
        named = {of: at for (_, of), at in decode_vector(commit.payload.needs).items()}.get(number, 0)
        return entry.value if wanted.version == commit.payload.version and entry.position <= named else None


class History:
    """Every record of a topic with `partitions` state partitions, in a log that was never cut."""

    def __init__(self, folder: Path, partitions: int) -> None:
        self.partitions = partitions
        self.records: dict[int, list[EventFrame]] = {}
        with FolderReader(folder) as reader:
            for partition in reader.partitions():
                if partition[0]:
                    self.topic = partition[0]
                    self.records[partition[1]] = [r for r in reader.read(partition).records if r.kind is not Kind.BASE]

    def commits(self) -> list[EventFrame]:
        return [record for record in self.records[self.partitions] if isinstance(record.payload, Commit)]

    def standing(self) -> dict[int, EventFrame]:
        """Version → the commit that its number stands for."""
        found: dict[int, EventFrame] = {}
        for record in self.commits():
            assert isinstance(record.payload, Commit)
            if record.payload.rewind:
                found = {v: commit for v, commit in found.items() if v < record.payload.version}
            found[record.payload.version] = record
        return found

    def at_commit(self, commit: EventFrame) -> Cut:
        """The closed cut of a commit: it holds all that any event at or below it rests on."""
        cut = {self.partitions: commit.position}
        while True:
            higher: Cut = {}
            for number, records in self.records.items():
                for record in records:
                    for other, at in self._needs(record).items() if record.position <= cut.get(number, 0) else ():
                        higher[other] = max(at, higher.get(other, 0))
            if all(at <= cut.get(number, 0) for number, at in higher.items()):
                return cut
            cut |= {number: max(at, cut.get(number, 0)) for number, at in higher.items()}

    def at_time(self, moment_ns: int) -> Cut:
        return {
            number: max((record.position for record in records if record.time <= moment_ns), default=0)
            for number, records in self.records.items()
        }

    def lowered(self, bounds: Mapping[int, int]) -> Cut:
        """The greatest closed cut at or below the bounds."""
        cut = dict(bounds)
        while True:
            lower = {
                number: record.position - 1
                for number, records in self.records.items()
                for record in records[::-1]
                if record.position <= cut.get(number, 0)
                and any(at > cut.get(other, 0) for other, at in self._needs(record).items() if other != number)
            }
            if not lower:
                return cut
            cut |= lower

    def state(self, cut: Mapping[int, int]) -> State:
        state = State()
        for number, records in self.records.items():
            for record in records:
                if record.position > cut.get(number, 0):
                    break
                if number == self.partitions:
                    state.commit = record if isinstance(record.payload, Commit) else state.commit
                else:
                    self._apply(state.entries, record, number)
                    apply_to_rows(state.tables.setdefault(number, {}), record)
        return state

    def _apply(self, entries: dict[bytes, tuple[int, Entry]], record: EventFrame, number: int) -> None:
        match record.payload:
            case Put() as put:
                for item, value in put_values(put, record.bulk):
                    deadline = None if item.ttl_ns is None else record.time + item.ttl_ns
                    entries[item.key] = number, Entry(bytes(value), record.position, deadline, item.valid_for)
            case Delete() as delete:
                for key in delete.keys:
                    entries.pop(key, None)
            case _:
                pass
        # An entry is removed by the first event or epoch record of its partition that is stamped past its deadline.
        for key, (home, entry) in list(entries.items()):
            if home == number and entry.deadline is not None and entry.deadline <= record.time:
                del entries[key]

    def _needs(self, record: EventFrame) -> dict[int, int]:
        """Partition of the topic → what the record rests on there."""
        if not record.head.producer:
            return {}
        rests_on: dict[PartitionId, int] = dict(record.stamp().dependencies())
        if isinstance(record.payload, Commit) and record.payload.needs:
            for partition, at in decode_vector(record.payload.needs).items():
                rests_on[partition] = max(at, rests_on.get(partition, 0))
        return {number: at for (topic, number), at in rests_on.items() if topic == self.topic}
