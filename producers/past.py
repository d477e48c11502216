"""What a session's next event depends on: its own earlier writes, and what it has observed. Both complete and closed."""

from __future__ import annotations

from collections.abc import Sequence

from ..consistency.epochs import EpochEnds
from ..consistency.vector import EMPTY, PartitionId, VersionVector
from ..errors import InvalidEvent, ParamstreamError
from ..events.codec import decode_vector, encode_vector
from ..transport.calls import LastEvent


class Past:
    """The two vectors of a session, with their encoded forms kept as long as they do not change."""

    def __init__(self) -> None:
        self.observed: VersionVector[int] = EMPTY
        self.observed_bytes = b""
        self._proved: VersionVector[int] = EMPTY
        """What accepted events observed: positions that were sequenced."""
        self._own: dict[PartitionId, int] = {}
        self._cache: dict[PartitionId, tuple[VersionVector[int], bytes]] = {}

    def own_beside(self, partition: PartitionId) -> tuple[VersionVector[int], bytes]:
        """The own vector of an event in `partition`: its own partition is in order anyway, and is left out.

        So it stays the same, and is encoded once, while events are pipelined within one partition.
        """
        cached = self._cache.get(partition)
        if cached is None:
            vector = VersionVector({other: at for other, at in self._own.items() if other != partition})
            cached = self._cache[partition] = vector, encode_vector(vector)
        return cached

    def wrote(self, partition: PartitionId, position: int) -> None:
        """An own event stands at `position`."""
        if position > self._own.get(partition, 0):
            self._set(partition, position)

    def observe(self, vector: VersionVector[int]) -> None:
        """Later events depend on `vector`, which is closed."""
        if not vector <= self.observed:
            self.observed = self.observed.merge(vector)
            self.observed_bytes = encode_vector(self.observed)

    def prove(self, observed: VersionVector[int]) -> None:
        """An event that observed this is accepted."""
        if observed is not self._proved and not observed <= self._proved:
            self._proved = self._proved.merge(observed)

    def disprove(self, error: ParamstreamError) -> None:
        """An event is refused. If it was for a position that was never sequenced, that partition is observed only as far as
        accepted events did: else every later event would be refused too.
        """
        wrong = beyond(self.observed, error)
        if wrong:
            kept = {p: self._proved.get(p, 0) if p in wrong else at for p, at in self.observed.items()}
            self.observed = VersionVector({p: at for p, at in kept.items() if at})
            self.observed_bytes = encode_vector(self.observed)

    def take_up(self, partition: PartitionId, last: LastEvent) -> None:
        """What the name wrote before, under whatever incarnation, is this session's own past."""
        for other, at in decode_vector(last.own).items():
            self.wrote(other, at)
        self.wrote(partition, last.position)
        self.observe(decode_vector(last.observed))
        self.prove(decode_vector(last.observed))

    def cut(self, partition: PartitionId, ends: Sequence[tuple[int, int]]) -> None:
        """Epochs of the partition ended: where the session's last write is lost, its past there ends with the log's."""
        own = self._own.get(partition, 0)
        if EpochEnds(ends).is_lost(own):
            self._set(partition, max((end for _, end in ends if end < own), default=0))

    def forget(self, partition: PartitionId) -> None:
        """The partition's topic is gone."""
        self._set(partition, 0)

    def _set(self, partition: PartitionId, position: int) -> None:
        if position:
            self._own[partition] = position
        else:
            self._own.pop(partition, None)
        kept = self._cache.get(partition)
        self._cache = {partition: kept} if kept is not None else {}


def beyond(observed: VersionVector[int], error: ParamstreamError) -> set[PartitionId]:
    """The partitions of `observed` that an event was refused for: it depends on a position that is not sequenced there."""
    if not isinstance(error, InvalidEvent) or error.position is None:
        return set()
    return {partition for partition, at in observed.items() if (partition[1], at) == (error.partition, error.position)}
