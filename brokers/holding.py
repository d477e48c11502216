"""Events that have come and whose turn has not: kept in the order in which they came, each partition for itself.

Two things hold an event up: its partition is *closed* (it moves, or begins a new segment), or the log is too far behind. Nobody
is answered meanwhile, so a session has at most its window here, and feels it; nothing is dropped. All else goes on.

    holding.close([partition])          # from now on its events wait
    ...
    holding.open([partition])           # `ready` gives them out, before any that come later
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ..consistency.vector import PartitionId
from ..events.codec import EventFrame
from .peers import Peer


class HeldEvent(NamedTuple):
    peer: Peer
    """The connection that it came over."""
    frame: EventFrame


class Holding:
    """Not thread-safe: the broker's loop has it."""

    def __init__(self, log_is_behind: Callable[[PartitionId], bool]) -> None:
        """`log_is_behind`: whether the partition's log may take no more events for now; asked before each."""
        self._log_is_behind = log_is_behind
        self._held: dict[PartitionId, deque[HeldEvent]] = {}
        """Never an empty one."""
        self._closed: dict[PartitionId, int] = {}
        self.nbytes = 0
        """Of all that is held."""

    def close(self, partitions: Iterable[PartitionId]) -> None:
        """Events of these partitions wait until `open`. Each `close` of a partition needs an `open` of its own."""
        for partition in partitions:
            self._closed[partition] = self._closed.get(partition, 0) + 1

    def open(self, partitions: Iterable[PartitionId]) -> None:
        """What waited may go, with `ready`. One that was not closed changes nothing."""
        for partition in partitions:
            left = self._closed.pop(partition, 1) - 1
            if left:
                self._closed[partition] = left

    def must_wait(self, partition: PartitionId) -> bool:
        """Whether an event that comes now is to be kept: its partition is held up, or others stand before it."""
        return partition in self._held or self._is_held_up(partition)

    def keep(self, peer: Peer, frame: EventFrame) -> None:
        self._held.setdefault(frame.partition_id, deque()).append(HeldEvent(peer, frame))
        self.nbytes += frame.nbytes
        peer.held_bytes += frame.nbytes

    def ready(self, most: int) -> Iterator[HeldEvent]:
        """What may go now, at most `most` events: each is taken out as it is given, and is to be sequenced before the next."""
        for partition, held in list(self._held.items()):
            while held and most and not self._is_held_up(partition):
                event = held.popleft()
                self.nbytes -= event.frame.nbytes
                event.peer.held_bytes -= event.frame.nbytes
                if not held:
                    del self._held[partition]
                most -= 1
                yield event

    @property
    def is_ready(self) -> bool:
        """`ready` has something to give."""
        return any(not self._is_held_up(partition) for partition in self._held)

    def _is_held_up(self, partition: PartitionId) -> bool:
        return partition in self._closed or self._log_is_behind(partition)
