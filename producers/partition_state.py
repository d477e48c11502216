"""What a session knows of one partition: its epoch, its unanswered events, its heads, and what a publish is checked against."""

from __future__ import annotations

from bisect import insort
from collections.abc import Container, Iterator

from ..consistency.epochs import EpochEnds
from ..consistency.position import epoch_of
from ..consistency.vector import PartitionId
from ..events.kinds import Commit, Table, TensorSpec
from ..transport.calls import JoinedPartition, SealedVersion
from .again import Kept
from .calls import Call, Event


class PartitionState:
    """One partition of a session; the core alone changes it."""

    def __init__(self, partition: PartitionId) -> None:
        self.id = partition
        self.epoch = 0
        """The epoch joined; every event names it."""
        self.flight: dict[int, Event] = {}
        """Events without an answer by their sequence, in order."""
        self.last = 0
        """The sequence of the session's last event that stands: what the first event in flight names as the one before."""
        self.next_sequence = 1
        """Above every sequence ever given here."""
        self.durable = 0
        self.awaiting: list[tuple[int, int, Call]] = []
        """(position, serial, call) of what is accepted and not known durable, by position."""
        self.kept = Kept()
        """Under `lost="again"`."""
        self.schema: tuple[TensorSpec, ...] | None = None
        self.sealed: tuple[SealedVersion, ...] = ()
        self.tables: dict[str, Table] = {}

    @property
    def confirmed(self) -> int:
        """Every event up to this sequence has its answer."""
        return next(iter(self.flight), self.next_sequence) - 1

    def before(self, sequence: int) -> int:
        """The sequence of the session's event before `sequence` in this partition."""
        previous = self.last
        for other in self.flight:
            if other >= sequence:
                break
            previous = other
        return previous

    @property
    def newest(self) -> int:
        """The sequence of the session's newest event that stands or is in flight."""
        return next(reversed(self.flight), self.last)

    def unanswered(self) -> Iterator[Event]:
        """Events on the wire that this connection still has to answer."""
        return (event for event in self.flight.values() if event.on_wire)

    def is_durable(self, position: int) -> bool:
        """By what is known now: the durable head has passed it, or its epoch is over."""
        if epoch_of(position) < self.epoch:
            return True
        return epoch_of(position) == epoch_of(self.durable) and position <= self.durable

    def wait_for_durable(self, position: int, call: Call) -> None:
        if self.awaiting and position < self.awaiting[-1][0]:
            insort(self.awaiting, (position, call.serial, call), key=lambda entry: entry[0])
        else:
            self.awaiting.append((position, call.serial, call))

    def take_durable(self, durable: int) -> list[Call]:
        """The calls whose events of the durable head's epoch the head has passed, one mention an event."""
        self.durable = durable
        epoch, count = epoch_of(durable), 0
        if not self.awaiting or epoch_of(self.awaiting[0][0]) != epoch:
            return []
        for position, _, _ in self.awaiting:
            if position > durable:
                break
            count += 1
        taken = [call for _, _, call in self.awaiting[:count]]
        del self.awaiting[:count]
        return taken

    def take_ended(self, ends: EpochEnds, epoch: int) -> tuple[list[Call], list[tuple[int, Call]]]:
        """(durable, lost) among what was accepted in epochs before `epoch`, by where those ended."""
        durable: list[Call] = []
        lost: list[tuple[int, Call]] = []
        rest: list[tuple[int, int, Call]] = []
        for entry in self.awaiting:
            position, _, call = entry
            if ends.is_lost(position):
                lost.append((position, call))
            elif epoch_of(position) < epoch:
                durable.append(call)
            else:
                rest.append(entry)
        self.awaiting = rest
        return durable, lost

    def stop_waiting(self, positions: Container[int]) -> list[Call]:
        """The calls that waited for one of `positions` to be durable, one mention an event; they wait no more."""
        stopped = [call for position, _, call in self.awaiting if position in positions]
        self.awaiting = [entry for entry in self.awaiting if entry[0] not in positions]
        return stopped

    def learn(self, record: JoinedPartition) -> None:
        """Take schema, sealed versions and tables anew from a join's answer."""
        self.schema = record.schema
        self.sealed = record.sealed
        self.tables = {table.table: table for table in record.tables}

    def sealed_as(self, version: int) -> SealedVersion | None:
        return next((sealed for sealed in self.sealed if sealed.version == version), None)

    def seal(self, commit: Commit, schema: tuple[TensorSpec, ...] | None, position: int) -> None:
        """The session's own commit is sealed: later publishes are checked against it before a byte leaves."""
        if schema is not None and (self.schema is None or commit.schema == "replace"):
            self.schema = schema
        kept = (s for s in self.sealed if s.version < commit.version or not commit.rewind)
        others = (s for s in kept if s.version != commit.version)
        self.sealed = (*others, SealedVersion(commit.version, commit.digest, position))
