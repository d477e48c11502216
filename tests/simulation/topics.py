"""The topics of the simulation: ids are small numbers, so that the same seed gives the same trace."""

from __future__ import annotations

from dataclasses import dataclass

from paramstream.brokers.partition import Persistence
from paramstream.consistency.vector import PartitionId
from paramstream.transport.calls import TopicRecord


@dataclass(frozen=True)
class SimTopic:
    id: int
    name: str
    partitions: int
    persistence: Persistence

    @property
    def record(self) -> TopicRecord:
        return TopicRecord(self.name, self.id, self.partitions, self.persistence, 8)

    @property
    def state(self) -> list[PartitionId]:
        return [(self.id, number) for number in range(self.partitions)]

    @property
    def weights(self) -> PartitionId:
        return self.id, self.partitions
