"""How callers of a replica wait for what its link's thread applies."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from ..consistency.position import START
from ..consistency.vector import PartitionId, VersionVector
from ..errors import EventLost, InvalidEvent, ParamstreamError, ParamstreamTimeout
from ..transport.calls import TopicRecord
from ..transport.directory import Directory
from ..transport.waiting import bounded
from .replica_sink import ReplicaSink
from .scope import time_left
from .subscription_core import SubscriptionCore


class Accepted(Protocol):
    """The part of a receipt that a replica waits by: where its events were accepted."""

    @property
    def accepted(self) -> Outcome: ...
    @property
    def durable(self) -> Outcome: ...
    @property
    def positions(self) -> VersionVector[str]: ...
    @property
    def goes_again(self) -> bool:
        """If its events are lost they go again as new ones, which it names then."""
        ...


class Outcome(Protocol):
    def result(self, timeout: float | None = None) -> VersionVector[str]: ...


class Waits:
    """Conditions under the sink's lock, each with a deadline of `time.monotonic()`."""

    def __init__(self, sink: ReplicaSink, core: SubscriptionCore, directory: Directory) -> None:
        self._sink = sink
        self._core = core
        self._directory = directory
        self._closed = False

    def until(
        self,
        reached: Callable[[], bool],
        deadline: float,
        what: str,
        concerns: Callable[[PartitionId], bool] = lambda partition: True,
    ) -> None:
        """Blocks until `reached`; an error of a partition that it `concerns` ends it, and so does `close`."""
        sink = self._sink
        with sink.changed:
            while not reached():
                for partition, error in sink.stopped.items():
                    if concerns(partition):
                        raise error
                if sink.fenced is not None:
                    raise sink.fenced
                if self._closed:
                    raise ParamstreamError("the replica is closed")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ParamstreamTimeout(
                        f"{what} was not reached in time; applied is {self._directory.to_names(self._core.positions())}"
                        + (f"; last error: {sink.last_error}" if sink.last_error else "")
                    )
                sink.changed.wait(bounded(left))

    def target(self, target: VersionVector[str] | Accepted, deadline: float) -> None:
        """As `Replica.wait`."""
        if isinstance(target, VersionVector):
            self._directory.standing_ids(target, must_be_known=True)
            return self._until_seen(target, target, deadline)
        if not hasattr(cast(object, target), "accepted"):
            raise InvalidEvent(f"a receipt or a version vector can be waited for, not {type(target).__name__}")
        vector, written = target.accepted.result(time_left(deadline)), target.positions
        self._directory.to_ids(written)
        try:
            self._until_seen(vector, written, deadline)
        except EventLost:
            if not target.goes_again:
                raise
            # The replica may hear of the loss before the producer does.
            self._until_seen(target.durable.result(time_left(deadline)), target.positions, deadline)

    def _until_seen(self, vector: VersionVector[str], written: VersionVector[str], deadline: float) -> None:
        def lacks(partition: PartitionId) -> bool:
            """What is waited for there is not applied."""
            at = vector.get((self._directory.name_of(partition[0]) or "", partition[1]), START)
            return at > self._core.positions().get(partition, START)

        self.until(self.seen(vector, written), deadline, str(vector), lacks)

    def applied(self, target: Mapping[PartitionId, int]) -> Callable[[], bool]:
        """Whether `target` is applied, what was lost aside."""

        def reached() -> bool:
            positions = self._core.positions()
            return all(self._reached(positions, partition, at) for partition, at in target.items())

        return reached

    def seen(
        self, vector: Mapping[tuple[str, int], int], must_stand: Mapping[tuple[str, int], int]
    ) -> Callable[[], bool]:
        """Whether what `vector` says of the topics followed is applied; one of `must_stand` that was lost raises `EventLost`.

        Topics go by name at each look: a name that stands for a new topic is applied once that one is followed.
        """

        def reached() -> bool:
            positions, done = self._core.positions(), True
            for (name, number), at in vector.items():
                record = self._record(name)
                if record is None:
                    continue
                if self._directory.was_replaced(record):
                    done = False
                    continue
                partition = record.id, number
                if (
                    must_stand.get((name, number)) == at
                    and partition in positions
                    and self._core.is_lost(partition, at)
                ):
                    raise self._lost(partition, at)
                done = self._reached(positions, partition, at) and done
            return done

        return reached

    def _reached(self, positions: Mapping[PartitionId, int], partition: PartitionId, at: int) -> bool:
        """Applied, lost, or of a partition that is not followed."""
        return partition not in positions or positions[partition] >= at or self._core.is_lost(partition, at)

    def _record(self, name: str) -> TopicRecord | None:
        """The topic of that name that is followed, or was until it was deleted."""
        topics = self._sink.topics()
        return next((record for record in topics if record.name == name), None)

    def close(self) -> None:
        """End every wait that is not over."""
        with self._sink.changed:
            self._closed = True
            self._sink.changed.notify_all()

    def _lost(self, partition: PartitionId, at: int) -> EventLost:
        return EventLost(
            "the position waited for is above the end of its epoch: the event was lost",
            topic=self._directory.name_of(partition[0]),
            partition=partition[1],
            position=at,
            remedy="Publish it again, if it is still wanted",
        )
