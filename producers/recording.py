"""What a session records of itself in a history: the writes of its events, what it observed, and what became of the writes.

A write stands where its event first leaves, which is when its vectors are fixed: what the session had observed and written by then, it
rests on. The parts of one call over several partitions go side by side, so each partition has a *lane*, a process of its own. A lane
begins behind all that the session did before the call, and all that it does after the call comes behind the lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..consistency.epochs import EpochEnds
from ..consistency.history import Line, Lost, Read, Write
from ..consistency.position import epoch_of
from ..consistency.vector import PartitionId, VersionVector
from ..events.recording import HistoryFile, Token, item_key, items_written, process_name, topic_label
from ..transport.calls import JoinedPartition, PartitionRecord
from ..transport.messages import Heads
from .calls import Event


@dataclass(slots=True)
class _Written:
    """An event whose writes are in the file, until it is durable or declared lost."""

    value: str
    keys: list[str]
    lasts: bool
    """Its topic makes it durable."""
    position: int = 0
    """Where it was accepted."""
    is_lost: bool = False
    """It was declared lost; if it goes all the same it is not written again."""


class SessionRecorder:
    """Records one session. Every call comes under the session's lock."""

    def __init__(
        self, file: HistoryFile, producer: str, incarnation: int, name_of: Callable[[int], str | None]
    ) -> None:
        """`name_of`: the name of a topic id."""
        self._file = file
        self._writer = process_name(producer, incarnation)
        self._name_of = name_of
        self._shrunk = 0
        self._process = self._writer
        self._written: dict[PartitionId, dict[int, _Written]] = {}
        """By sequence, in order."""
        self._seen: dict[str, int] = {}
        """Replica → the last token of it that was read."""
        self._forks = 0
        self._forked_by = 0
        """The serial of the call that the open lanes belong to."""
        self._lanes: list[str] = []
        """Those that have begun for that call."""

    @property
    def error(self) -> OSError | None:
        """Why the file takes nothing at the moment: nothing is sent meanwhile."""
        return self._file.error

    # --- what the session does --------------------------------------------------------------------------------------------

    def sends(self, event: Event) -> bool:
        """The event is to leave. False where its writes are not in the file, because that takes nothing: it must not leave then."""
        items = items_written(event.payload, event.bulk[0] if event.bulk else b"")
        if not items:
            return True
        written = self._written.setdefault(event.partition, {})
        if event.sequence in written:
            return self._file.flush()
        topic = topic_label(self._name_of, event.partition[0])
        keys = [item_key(topic, item) for item in items]
        value = f"{self._writer}/{event.sequence}"
        written[event.sequence] = _Written(value, keys, event.calls[0].persistence != "none")
        lines: list[Line] = []
        process = self._place(event, lines)
        lines += [Write(process, key, value) for key in keys]
        return self._file.append(lines)

    def observes(self, token: Token, vector: VersionVector[int]) -> None:
        """Whatever leaves from here on rests on `vector`, which is what the replica of the token had seen.

        Where a topic was deleted in between it is less than that: then nothing is said. A token that is older than one that was
        read already, by another thread, adds nothing.
        """
        if token.number > self._seen.get(token.process, 0) and token.vector <= vector:
            self._seen[token.process] = token.number
            self._file.append([Read(self._process, token.key, token.number, token.process)])

    def begins_anew(self) -> None:
        """What the session's next events rest on has shrunk: they are another process's. What is on its way may be sent again, with
        the smaller past; it is left out.
        """
        self._declare_lost(
            each for partition in self._written.values() for each in partition.values() if not each.position
        )
        self._shrunk += 1
        self._process = f"{self._writer}+{self._shrunk}"
        self._seen.clear()
        self._lanes.clear()
        self._forked_by = 0

    # --- what becomes of its events ---------------------------------------------------------------------------------------

    def dropped(self, event: Event) -> None:
        """The event does not stand, and is not sent again."""
        written = self._written.get(event.partition, {}).pop(event.sequence, None)
        if written is not None:
            self._declare_lost([written])

    def accepted(self, partition: PartitionId, answers: Iterable[tuple[int, int]]) -> None:
        """(sequence, position) of events that stand."""
        written = self._written.get(partition, {})
        for sequence, position in answers:
            found = written.get(sequence)
            if found is not None:
                found.position = position

    def stand(self, partitions: Iterable[JoinedPartition | PartitionRecord]) -> None:
        """Where partitions stand, as brokers say. Comes before anything is sent that no longer rests on what is lost."""
        for at in partitions:
            partition = at.topic, at.partition
            if isinstance(at, JoinedPartition):
                self.accepted(partition, at.positions)
            self._ended(partition, at.epoch, EpochEnds(at.ends))

    def durable(self, heads: Iterable[Heads]) -> None:
        """What is durable in the epoch of a head stays."""
        for head in heads:
            written = self._written.get((head.topic, head.partition), {})
            epoch, done = epoch_of(head.durable), list[int]()
            for sequence, each in written.items():
                if not (
                    each.lasts and each.position and epoch_of(each.position) == epoch and each.position <= head.durable
                ):
                    break
                done.append(sequence)
            for sequence in done:
                del written[sequence]

    # --- inside -----------------------------------------------------------------------------------------------------------

    def _ended(self, partition: PartitionId, epoch: int, ends: EpochEnds) -> None:
        """The partition is in `epoch`: what was accepted in the epochs before it is lost, or durable."""
        written = self._written.get(partition, {})
        for sequence, each in list(written.items()):
            if ends.is_lost(each.position):
                self._declare_lost([written.pop(sequence)])
            elif each.position and epoch_of(each.position) < epoch:
                del written[sequence]

    def _declare_lost(self, events: Iterable[_Written]) -> None:
        lines: list[Line] = []
        for each in events:
            if not each.is_lost:
                each.is_lost = True
                lines += [Lost(self._process, key, each.value) for key in each.keys]
        if lines:
            self._file.append(lines)

    def _place(self, event: Event, lines: list[Line]) -> str:
        """The process that the event's writes belong to, after what ties its lane to the session's other lines."""
        call, process = event.calls[0], self._process
        if len(call.partitions) == 1:
            self._join(lines)
            return process
        fork = f"fork/{process}"
        if call.serial != self._forked_by:
            self._join(lines)
            self._forked_by = call.serial
            self._forks += 1
            lines.append(Write(process, fork, self._forks))
        lane = f"{process}:{topic_label(self._name_of, event.partition[0])}/{event.partition[1]}"
        if lane not in self._lanes:
            self._lanes.append(lane)
            lines.append(Read(lane, fork, self._forks))
        return lane

    def _join(self, lines: list[Line]) -> None:
        """Rule 1: by now all of the call is answered, or comes before the next event in the partition of that."""
        for lane in self._lanes:
            join = f"join/{lane}"
            lines += [Write(lane, join, self._forks), Read(self._process, join, self._forks)]
        self._lanes.clear()
        self._forked_by = 0
