"""Which outputs of a processor's task a sink holds already, and which are to be sent. A core: no clock, socket or thread.

Every output event carries (source position, index): the input it was made from, and its place among the outputs that this
input gave to the same sink partition. A join answers the last such mark of the name in each partition. `step` is
deterministic, so an output at or below the mark of its partition is there, and all above it is not.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..consistency.vector import PartitionId

Mark = tuple[int, int]
"""(source position, index)."""


class Marks:
    """Numbers the outputs of one input after the other. `begin` comes first for each; positions only go up."""

    def __init__(self, held: Mapping[PartitionId, Mark]) -> None:
        """`held`: the last mark that each sink partition has of the name."""
        self._held = dict(held)
        self._position = 0
        self._next: dict[PartitionId, int] = {}

    def begin(self, position: int) -> None:
        """The outputs that come now are of the input at `position`."""
        self._position = position
        self._next = {}

    def take(self, partition: PartitionId) -> Mark | None:
        """The mark of the next output in `partition`, None where the sink holds that output."""
        mark = self.number(partition)
        return None if mark <= self._held.get(partition, (0, 0)) else mark

    def number(self, partition: PartitionId) -> Mark:
        """The mark of the next output in `partition`, whether or not the sink holds it."""
        index = self._next.get(partition, 0)
        self._next[partition] = index + 1
        return self._position, index

    def is_past(self, partition: PartitionId) -> bool:
        """The sink holds all that the present input gives to `partition`: an output of a later input stands there."""
        return self._held.get(partition, (0, 0))[0] > self._position

    def holds_next(self, partition: PartitionId) -> bool:
        """The sink holds the next output in `partition`."""
        return self._held.get(partition, (0, 0)) >= (self._position, self._next.get(partition, 0))

    def pass_run(self, partition: PartitionId, count: int) -> bool:
        """Pass over the next `count` outputs in `partition` if the sink holds the last of them; else nothing is passed.

        Of a version only its commit counts: what is staged without it can be staged again.
        """
        end = self._next.get(partition, 0) + count
        if self._held.get(partition, (0, 0)) < (self._position, end - 1):
            return False
        self._next[partition] = end
        return True
