"""What a replica records of itself in a history: what it applies, in which order, and what its users read.

A replica reads what it applies, as it applies it; a user's read is one of the write that the item's position names. A life of a replica is
a process: after a restart it reads the log, or a snapshot, once more from further back. Nothing is recorded where the promise of order does
not hold, or where it is not known which write was seen: of state that it began with, of a version that is pinned, stale or being
jumped over, of rows that a deletion may have spared, and of items whose later write was lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ..consistency.gate import Ordering
from ..consistency.history import Apply, Epoch, Follow, Line, Lost, Read, Write
from ..consistency.history import Jump as JumpLine
from ..consistency.history import Undo as UndoLine
from ..consistency.position import START, show
from ..consistency.vector import EMPTY, PartitionId, VersionVector
from ..events.kinds import Delete, DeleteRows, Gradients, Put, Rows
from ..events.recording import (
    HistoryFile,
    Item,
    Token,
    item_key,
    items_written,
    partition_label,
    process_name,
    rows_named,
    topic_label,
)
from ..tiers.entries import Entry
from .applying import Applier, TopicState
from .effects import Deliver, EpochBegan, Jump, Step, Undo
from .subscription_core import SubscriptionCore
from .versions import Sealed

_Item = tuple[PartitionId, Item]
"""An item with its partition."""


class _Applied(NamedTuple):
    """An event that wrote items."""

    position: int
    value: str
    writer: str
    items: list[Item]
    removes: bool
    hides: bool
    """It may have removed them: what is read of them says nothing of who wrote it."""
    stays: bool
    """What it wrote is there until it is written again."""


class ReplicaRecorder:
    """Records one replica. Every call comes under the replica's lock, so that each line stands where it happened."""

    def __init__(
        self,
        file: HistoryFile,
        process: str,
        ordering: Ordering,
        core: SubscriptionCore,
        applier: Applier,
        name_of: Callable[[int], str | None],
    ) -> None:
        """`process`: what this life of the replica is called. `name_of`: the name of a topic id."""
        self._file = file
        self._life = self._process = process
        self._shrunk = 0
        self._ordering = ordering
        self._core = core
        self._applier = applier
        self._name_of = name_of
        self._undurable: dict[PartitionId, deque[_Applied]] = {}
        """By position."""
        self._last: dict[_Item, list[_Applied]] = {}
        """What wrote the item: the last event that can no longer be lost, and those that can, by position."""
        self._lost: dict[PartitionId, int] = {}
        """The highest position that an event which was applied rests on, and that is lost: who wrote it may not have said so, and
        then an item that was last written before it looks old."""
        self._empty: set[PartitionId] = set()
        """Partitions that are followed from their beginning: what was not written since has its initial value."""
        self._begin()

    def begins_anew(self) -> None:
        """A topic was replaced, which takes some of what was applied out of the replica's vector: from here on it is another process."""
        self._shrunk += 1
        self._process = f"{self._life}+{self._shrunk}"
        self._begin()

    def _begin(self) -> None:
        self._labels = {p: partition_label(self._name_of, p) for p in self._core.partitions()}
        self._seen = Token(self._process, 0, EMPTY)
        for partition in [partition for partition in self._undurable if partition not in self._labels]:
            del self._undurable[partition]
        self._last = {item: stack for item, stack in self._last.items() if item[0] in self._labels}
        for partition in self._labels:
            if partition not in self._undurable:
                self._undurable[partition] = deque()
                if self._is_empty(partition):
                    self._empty.add(partition)
        self._file.append(
            Follow(self._process, self._ordering, label, self._core.counted(partition))
            for partition, label in self._labels.items()
        )

    # --- what the replica applies -----------------------------------------------------------------------------------------

    def applied(self, step: Step) -> None:
        """The step is done, shown and confirmed."""
        label = self._labels.get(step.partition)
        if label is None:
            return
        match step:
            case Deliver():
                self._file.append(self._delivered(step, label))
            case EpochBegan():
                self._file.append([Epoch(self._process, label, step.position)])
            case Undo():
                self._file.append([UndoLine(self._process, label, step.end), *self._undone(step)])
            case Jump():
                self._file.append([self._jumped(step, label)])

    def _jumped(self, step: Jump, label: str) -> Line:
        """One that begins with a snapshot may go back to what the newest version needs: it follows from further back then."""
        if step.start < self._core.position(step.partition):
            return Follow(self._process, self._ordering, label, step.start)
        return JumpLine(self._process, label, step.start)

    def _delivered(self, step: Deliver, label: str) -> list[Line]:
        partition, frame, stamp = step.partition, step.frame, step.stamp
        if step.passed:
            return [JumpLine(self._process, label, frame.position)]
        for other, at in stamp.dependencies().items():
            if at > self._lost.get(other, START) and self._core.is_lost(other, at):
                self._lost[other] = at
        lines: list[Line] = [
            Apply(self._process, label, frame.position, self._followed(stamp.own), self._followed(stamp.observed))
        ]
        payload = frame.payload
        hides = isinstance(payload, DeleteRows) and payload.up_to is not None
        if isinstance(payload, DeleteRows):
            items = rows_named(payload, frame.bulk)
        else:
            items = items_written(payload, frame.bulk)
        if not items or not self._shows(partition, frame.position, items):
            return lines
        writer = process_name(stamp.producer, stamp.incarnation)
        applied = _Applied(
            frame.position,
            f"{writer}/{stamp.sequence}",
            writer,
            items,
            removes=isinstance(frame.payload, Delete | DeleteRows) and not hides,
            hides=hides,
            stays=isinstance(frame.payload, Rows | Gradients)
            or (isinstance(frame.payload, Put) and all(item.ttl_ns is None for item in frame.payload.items)),
        )
        self._keep(partition, applied)
        if hides:
            return lines
        topic = topic_label(self._name_of, partition[0])
        return [*lines, *(self._read(item_key(topic, item), applied) for item in items)]

    def _shows(self, partition: PartitionId, position: int, items: list[Item]) -> bool:
        """A commit may have been passed over for want of its chunks."""
        kept = self._applier.topics[partition[0]].versions.kept
        return items != [None] or any(sealed.position == position for sealed in kept)

    def _followed(self, vector: Mapping[PartitionId, int]) -> dict[str, int]:
        """Nothing is asked of partitions that are not followed."""
        return {self._labels[partition]: at for partition, at in vector.items() if partition in self._labels}

    def _undone(self, step: Undo) -> list[Line]:
        topic, undurable = topic_label(self._name_of, step.partition[0]), self._undurable[step.partition]
        lines: list[Line] = []
        while undurable and undurable[-1].position > step.end:
            applied = undurable.pop()
            for item in applied.items:
                self._last[step.partition, item].pop()
                if not applied.hides:
                    lines.append(Lost(self._process, item_key(topic, item), applied.value))
        return lines

    def _keep(self, partition: PartitionId, applied: _Applied) -> None:
        undurable, durable = self._undurable[partition], self._durable(partition)
        while undurable and undurable[0].position <= durable:
            for item in undurable.popleft().items:
                stack = self._last[partition, item]
                while len(stack) > 1 and stack[1].position <= durable:
                    del stack[0]
        undurable.append(applied)
        for item in applied.items:
            self._last.setdefault((partition, item), []).append(applied)

    def _durable(self, partition: PartitionId) -> int:
        """Up to there nothing can be lost. Under persistence "none" an epoch's end takes all with it."""
        lasts = self._applier.topics[partition[0]].record.persistence != "none"
        return self._core.settled(partition) if lasts else START

    def _is_empty(self, partition: PartitionId) -> bool:
        topic = self._applier.topics[partition[0]]
        return (
            topic.record.persistence != "none"
            and partition != topic.weight_partition
            and self._core.counted(partition) == START
        )

    # --- what its users do ------------------------------------------------------------------------------------------------

    def reads_entry(self, partition: PartitionId, key: bytes, entry: Entry | None) -> None:
        """A user asked for a key, and there was this entry; None: there was none, or its time was over."""
        self._reads(partition, key, None if entry is None else entry.position)

    def reads_row(self, partition: PartitionId, table: str, key: int, position: int) -> None:
        """A user looked a row up, and it was last written at `position`; 0: there was none."""
        self._reads(partition, (table, key), position or None)

    def _reads(self, partition: PartitionId, item: Item, position: int | None) -> None:
        """`position` of the write that was seen; None where there was nothing."""
        if partition not in self._labels:
            return
        found = self._last.get((partition, item))
        last = found[-1] if found else None
        name = item_key(topic_label(self._name_of, partition[0]), item)
        if found and last is not None:
            if last.position <= self._lost.get(partition, START) or last.hides:
                return
            if position is not None and position < last.position:
                self._file.append([self._stale(name, found, position)])
            elif position is None and last.stays:
                self._file.append([Read(self._process, name, None)])
            elif last.position == position if position is not None else last.removes:
                self._file.append([self._read(name, last)])
        elif position is None and partition in self._empty and partition not in self._lost:
            self._file.append([Read(self._process, name, None)])

    def reads_weights(self, topic: TopicState, sealed: Sealed) -> None:
        """A user was given this version as the one that is served. One that is pinned is not what was applied last, if it is old."""
        partition = topic.weight_partition
        found = self._last.get((partition, None))
        if (
            not found
            or found[-1].position <= self._lost.get(partition, START)
            or topic.is_stale
            or self._core.jumping_to(partition) is not None
        ):
            return
        last, name = found[-1], item_key(topic_label(self._name_of, partition[0]), None)
        if sealed.position == last.position:
            self._file.append([self._read(name, last)])
        elif sealed.position < last.position and topic.pinned is None and self._shows(partition, last.position, [None]):
            self._file.append([self._stale(name, found, sealed.position)])

    def observed(self, vector: VersionVector[int]) -> Token:
        """The replica is observed, and `vector` is its closed vector now."""
        if vector != self._seen.vector:
            self._seen = Token(self._process, self._seen.number + 1, vector)
            self._file.append([Write(self._process, self._seen.key, self._seen.number)])
        return self._seen

    def _stale(self, key: str, applied: list[_Applied], position: int) -> Read:
        """A user was given what a later write had replaced already. Nothing excuses that: where it is not known any more who wrote it,
        it is a value that nobody wrote.
        """
        for each in applied:
            if each.position == position:
                return self._read(key, each)
        return Read(self._process, key, f"what stands at {show(position)}")

    def _read(self, key: str, applied: _Applied) -> Read:
        return Read(self._process, key, applied.value, applied.writer)
