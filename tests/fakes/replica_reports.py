"""The part of a client's link that look-ups need: it answers, in a thread or at once, with the reports that a test has written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fakes.served_source import TOPIC
from paramstream.consistency.vector import PartitionId, VersionVector
from paramstream.errors import OutcomeUnknown, ParamstreamError
from paramstream.events.codec import encode_vector
from paramstream.transport.calls import Call, ListReplicas, ListTopics, TopicRecord
from paramstream.transport.directory import Directory
from paramstream.transport.messages import Report


class ReplicaReports:
    """A broker that only tells of replicas; while it is `away`, nothing."""

    def __init__(self, partitions: int = 1) -> None:
        self.topic = TopicRecord("model", TOPIC, partitions, "write_back", 8)
        self.reports: dict[str, Report] = {}
        self.away = False
        self.deleted = False
        """The topic."""
        self.asked = 0
        self.directory = Directory(lambda call, kind, timeout: [self.topic])

    def tell(self, name: str, serves: str, *numbers: int, position: int = 10, age_s: float = 0.0) -> None:
        """What a replica that follows these partitions has reported."""
        applied: Mapping[PartitionId, int] = {(self.topic.id, number): position for number in numbers or (0,)}
        vector = encode_vector(VersionVector(applied))
        self.reports[name] = Report(name, (self.topic.id,), (), vector, 0, (), age_s=age_s, serves=serves)

    def request_async(self, call: Call, kind: Any, done: Callable[[Any, ParamstreamError | None], None]) -> None:
        if self.away:
            done(None, OutcomeUnknown("there is no connection"))
        elif isinstance(call, ListTopics):
            done([] if self.deleted else [self.topic], None)
        else:
            assert isinstance(call, ListReplicas)
            self.asked += 1
            done([each for each in self.reports.values() if call.topic in each.topics], None)
