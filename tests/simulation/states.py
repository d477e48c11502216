"""What every replica must hold at each position that any replica has reached, from the events alone.

A position never names two events, and what stands before an event never changes. So the state at a position is one, whoever
looks, even where the log has lost that position since; a replica is compared with it after each of its steps.
"""

from __future__ import annotations

from collections.abc import Mapping

from paramstream.consistency.position import START
from paramstream.consistency.vector import PartitionId
from paramstream.events.codec import EventFrame
from paramstream.events.kinds import Commit, Delete, Put
from paramstream.events.validate import put_values
from paramstream.tiers.entries import Entry

from .rows import Row, change_rows

Entries = Mapping[bytes | int, Entry | Row]
"""Entries by their keys, and rows by theirs."""


def changed_by(entries: Entries, frame: EventFrame) -> Entries:
    """The entries of a state partition after one more event."""
    changed = dict(entries)
    match frame.payload:
        case Put():
            for item, value in put_values(frame.payload, frame.bulk):
                deadline = None if item.ttl_ns is None else frame.time + item.ttl_ns
                valid = None if item.valid_for is None else (item.valid_for.version, item.valid_for.commit)
                changed[item.key] = Entry(bytes(value), frame.position, deadline, valid)
        case Delete():
            for key in frame.payload.keys:
                changed.pop(key, None)
        case _:
            change_rows(changed, frame)
    return expired_by(changed, frame.time)


def expired_by(entries: Entries, time: int) -> Entries:
    """What is left when an event or epoch record was stamped with `time`."""
    return {
        key: entry
        for key, entry in entries.items()
        if isinstance(entry, Row) or not (entry.deadline or time + 1) <= time
    }


class States:
    """Of all partitions of a world. What cannot be known, because nobody was there before it, is None."""

    def __init__(self) -> None:
        self._entries: dict[tuple[PartitionId, int], Entries] = {}
        self._commits: dict[tuple[PartitionId, int], int] = {}
        self._writers: dict[tuple[PartitionId, int], tuple[str, int, int]] = {}

    def entries(self, partition: PartitionId, position: int) -> Entries | None:
        return {} if position == START else self._entries.get((partition, position))

    def commit(self, partition: PartitionId, position: int) -> int | None:
        """Of the newest version at a position of a weight partition; `START` where there is none yet."""
        return START if position == START else self._commits.get((partition, position))

    def event(self, partition: PartitionId, before: int, frame: EventFrame) -> bool:
        """Somebody who stood at `before` applied it. False where another event had that position."""
        at = partition, frame.position
        writer = frame.head.producer, frame.head.incarnation, frame.head.sequence
        if self._writers.setdefault(at, writer) != writer:
            return False
        entries = self.entries(partition, before)
        if entries is not None and at not in self._entries:
            self._entries[at] = changed_by(entries, frame)
        if isinstance(frame.payload, Commit):
            self._commits[at] = frame.position
        else:
            self._moved(partition, before, frame.position)
        return True

    def epoch(self, partition: PartitionId, before: int, position: int, time: int) -> None:
        """Somebody who stood at `before`, where an epoch ended, applied the record of the next one."""
        entries = self.entries(partition, before)
        if entries is not None and (partition, position) not in self._entries:
            self._entries[partition, position] = expired_by(entries, time)
        self._moved(partition, before, position)

    def _moved(self, partition: PartitionId, before: int, position: int) -> None:
        commit = self.commit(partition, before)
        if commit is not None:
            self._commits.setdefault((partition, position), commit)
