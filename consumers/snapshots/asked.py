"""Snapshots that a user asks of a replica."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import cast

from ...consistency.vector import VersionVector
from ...errors import InvalidEvent
from ...events.manifest import Manifest
from ..applying import TopicState
from ..live_state import LiveState
from ..times import moment_of
from .taking import Taking


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A snapshot that was made: whole, safe, and the latest of its topic."""

    topic: str
    path: Path
    version: int | None
    """Of the weights; None where nothing was sealed yet."""
    floor: VersionVector[str]
    ceiling: VersionVector[str]
    """It serves targets at or above it."""
    bytes: int
    """Of its files."""
    time: datetime
    digest: str
    """Of its manifest."""

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        path: Path,
        digest: str,
        to_names: Callable[[VersionVector[int]], VersionVector[str]],
    ) -> SnapshotInfo:
        spans = {(manifest.topic_id, number): span for number, span in manifest.spans().items()}
        sealed = manifest.weights.sealed
        return cls(
            topic=manifest.topic,
            path=path,
            version=None if sealed is None else sealed.version,
            floor=to_names(VersionVector({p: floor for p, (floor, _) in spans.items()})),
            ceiling=to_names(VersionVector({p: ceiling for p, (_, ceiling) in spans.items()})),
            bytes=sum(file.nbytes for file in manifest.files()),
            time=moment_of(manifest.time),
            digest=digest,
        )


class Snapshots:
    """Of one replica, in its own folder or any other."""

    def __init__(self, live: LiveState) -> None:
        self._live = live
        self._own = live.options.snapshot_dir
        self._taking = Taking(
            live.name, live.sink, live.core, live.applier, live.store, lambda: live.topics.closed
        )  # fmt: skip

    def take(
        self, topics: Iterable[TopicState], directory: Path | None, deadline: float, keep: int
    ) -> tuple[SnapshotInfo, ...]:
        """As `Replica.snapshot`: one of each topic, one after the other."""
        root = directory or self._own
        if root is None:
            raise InvalidEvent(
                "a snapshot needs a folder", remedy="Give one, or make the replica with snapshot_dir=DIR"
            )
        if not isinstance(cast(object, keep), int) or keep < 1:
            raise InvalidEvent(f"keep={keep!r}: a whole number of snapshots stays, one at least")
        return tuple(self._take(state, root, deadline, keep) for state in topics)

    def _take(self, state: TopicState, root: Path, deadline: float, keep: int) -> SnapshotInfo:
        live = self._live
        numbers = live.scope.state_partitions(state.record)
        manifest, path, digest = self._taking.take(root, state, numbers, deadline, keep=keep)
        if root == self._own:
            with live.sink.changed:
                live.sink.kept |= {(manifest.topic_id, kept.number): kept.floor for kept in manifest.state}
        return SnapshotInfo.of(manifest, path, digest, live.directory.to_names)
