"""`lost="again"`: what a session keeps of its events until they are durable, and how lost ones are made anew.

A loss takes a suffix of what the session has in a partition. All of that suffix goes again as new events, in the order in which
it was called: what was lost, and what stood behind it and nobody has seen. Parts and commits name chunks and parts by their
sequences, so those are named anew; a tensor's chunks have sequences without a gap, so where one of them is lost, those before
it go again too. A core: no clock, socket or thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from ..consistency.vector import PartitionId
from ..events.kinds import Chunk, Commit, Part, PartRef, Payload, TensorSpec
from .calls import Event


class Kept:
    """The events of one partition that could still be lost, and the chunks before them that would go again with them."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()

    def add(self, event: Event) -> None:
        self._events.append(event)

    def discard(self, event: Event) -> None:
        """It was refused, or given up: it does not go again. One that is not kept changes nothing."""
        if event in self._events:
            self._events.remove(event)

    def settle(self, is_durable: Callable[[int], bool]) -> int:
        """Let go of what can no longer be lost; returns the bytes of what became so."""
        nbytes = count = 0
        for event in self._events:
            if not event.position or not is_durable(event.position):
                break
            count += 1
            if event.is_awaited:
                event.is_awaited = False
                nbytes += event.nbytes
        for _ in range(self._before(count)):
            self._events.popleft()
        return nbytes

    def take_lost(self, is_lost: Callable[[Event], bool]) -> list[Event]:
        """What goes again, newest first, and is no longer kept: all from the first lost event on; empty where none is."""
        first = next((index for index, event in enumerate(self._events) if is_lost(event)), None)
        if first is None:
            return []
        first = self._before(first)
        return [self._events.pop() for _ in range(len(self._events) - first)]

    def clear(self) -> None:
        self._events.clear()

    def _before(self, index: int) -> int:
        """The index from which on events go again if the one at `index` does (it may be one that is still to come)."""
        if index and index == len(self._events):
            if not self._events[-1].is_partial:
                return index
            index -= 1
        while index and _goes_on(self._events[index].payload):
            index -= 1
        return index


class Renewals:
    """What waits to go again, and the new sequences of what has gone."""

    def __init__(self, producer: str, incarnation: int) -> None:
        self._writer = (producer, incarnation)
        self.waiting: deque[Event] = deque()
        """In the order of the calls that made them."""
        self._sequences: dict[tuple[PartitionId, int], int] = {}

    @property
    def nbytes(self) -> int:
        return sum(event.nbytes for event in self.waiting)

    def add(self, events: list[Event]) -> None:
        """More that was lost; what waits already may come after it."""
        self.waiting = deque(sorted((*self.waiting, *events), key=lambda event: event.turn))

    def became(self, old: Event, new: Event) -> None:
        """`old` goes again as `new`."""
        new.turn = old.turn
        self._sequences[old.partition, old.sequence] = new.sequence
        if isinstance(new.payload, Part):
            for call in new.calls:
                call.parts = self.refs(old.partition, call.parts)

    def renamed(self, partition: PartitionId, payload: Payload) -> Payload:
        """The payload with the sequences that its chunks and parts have now."""
        if not self._sequences:
            return payload
        match payload:
            case Part():
                specs = tuple(self._spec(partition, spec) for spec in payload.tensors)
                return msgspec.structs.replace(payload, tensors=specs)
            case Commit():
                return msgspec.structs.replace(payload, parts=self.refs(partition, payload.parts))
            case _:
                return payload

    def refs(self, partition: PartitionId, parts: tuple[PartRef, ...]) -> tuple[PartRef, ...]:
        """The parts, those of this session under the sequences that they have now."""
        return tuple(
            PartRef(part.producer, part.incarnation, self._now(partition, part.sequence))
            if (part.producer, part.incarnation) == self._writer
            else part
            for part in parts
        )

    def _spec(self, partition: PartitionId, spec: TensorSpec) -> TensorSpec:
        first, last = self._now(partition, spec.first_chunk), self._now(partition, spec.last_chunk)
        return msgspec.structs.replace(spec, first_chunk=first, last_chunk=last)

    def _now(self, partition: PartitionId, sequence: int) -> int:
        """What was lost once may be lost again."""
        while (new := self._sequences.get((partition, sequence))) is not None:
            sequence = new
        return sequence


def _goes_on(payload: Payload) -> bool:
    """A chunk that begins in the midst of a tensor."""
    return isinstance(payload, Chunk) and bool(payload.segments) and payload.segments[0].offset > 0
