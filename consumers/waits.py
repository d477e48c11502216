"""How callers of a replica wait for what its link's thread applies."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from ..consistency.vector import PartitionId, VersionVector
from ..errors import EventLost, ParamstreamError, ParamstreamTimeout
from ..transport.directory import Directory
from .replica_sink import ReplicaSink
from .subscription_core import SubscriptionCore


class Accepted(Protocol):
    """The part of a receipt that a replica waits by: where its events were accepted."""

    @property
    def accepted(self) -> Outcome: ...
    @property
    def positions(self) -> VersionVector[str]: ...


class Outcome(Protocol):
    def result(self, timeout: float | None = None) -> VersionVector[str]: ...


class Waits:
    """Conditions under the sink's lock, each with a deadline of `time.monotonic()`."""

    def __init__(self, sink: ReplicaSink, core: SubscriptionCore, directory: Directory) -> None:
        self._sink = sink
        self._core = core
        self._directory = directory
        self._closed = False

    def until(self, reached: Callable[[], bool], deadline: float, what: str, *partitions: PartitionId) -> None:
        """Blocks until `reached`; an error of one of `partitions` (none: of any) ends it, and so does `close`."""
        sink = self._sink
        with sink.changed:
            while not reached():
                for partition, error in sink.stopped.items():
                    if not partitions or partition in partitions:
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
                sink.changed.wait(left)

    def applied(
        self, target: Mapping[PartitionId, int], must_stand: Mapping[PartitionId, int] | None = None
    ) -> Callable[[], bool]:
        """Whether `target` is applied, what was lost aside; one of `must_stand` that was lost raises `EventLost`."""
        stands = must_stand or {}

        def reached() -> bool:
            positions = self._core.positions()
            done = True
            for partition, at in target.items():
                if partition not in positions:
                    continue
                if self._core.is_lost(partition, at):
                    if stands.get(partition) == at:
                        raise self._lost(partition, at)
                elif positions[partition] < at:
                    done = False
            return done

        return reached

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
