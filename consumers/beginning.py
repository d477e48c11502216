"""What a replica begins with: a log, a snapshot in a folder, or for what has left the log a snapshot of the broker's keeper."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from ..consistency.position import START
from ..consistency.vector import PartitionId, VersionVector
from ..errors import EventLost, InvalidEvent, NotDurable, UnknownTopic
from ..eventlog.open import path_of
from ..transport.calls import TopicRecord
from .applying import Applier
from .links import MakeLink
from .scope import Scope, time_left
from .snapshots.reading import open_snapshot
from .snapshots.remote import KeeperCopies
from .snapshots.seeding import Seed
from .sources import BrokerSource
from .subscription_core import SubscriptionCore
from .targets import newest_within

_SNAPSHOT = "snapshot:"
RESUME = "resume"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Start:
    """A replica's `start=`, taken apart."""

    at: str | VersionVector[str]
    """For what no snapshot gives: "latest", "earliest" or a vector."""
    folder: Path | None = None
    """Of the snapshots to begin with."""
    resume: bool = False
    """They are the replica's own; where there is none yet, it begins at the head."""

    @classmethod
    def of(
        cls, start: str | VersionVector[str], name: str | None, snapshot_dir: str | os.PathLike[str] | None
    ) -> Start:
        """Raises `InvalidEvent` for what is no start, or lacks what it needs."""
        if isinstance(start, VersionVector) or start in ("latest", "earliest"):
            return cls(start)
        if not isinstance(cast(object, start), str):
            raise InvalidEvent(f"start={start!r} is no start of a replica")
        if start == RESUME:
            if name is None or snapshot_dir is None:
                raise InvalidEvent(
                    'start="resume" is for a replica that has a name, and a snapshot_dir with its own last state',
                    remedy="Give both",
                )
            return cls("latest", Path(snapshot_dir), resume=True)
        if start.startswith(_SNAPSHOT) and len(start) > len(_SNAPSHOT):
            return cls("latest", path_of(start.removeprefix(_SNAPSHOT)))
        raise InvalidEvent(
            f"start={start!r} is no start of a replica",
            remedy='Give "latest", "earliest", "resume", "snapshot:DIR" or a VersionVector',
        )


class Beginning:
    """Puts the state in place that a replica begins with; what it chooses changes the scope's starts and targets."""

    def __init__(self, start: Start, scope: Scope, *, every_version: bool) -> None:
        self._start = start
        self._scope = scope
        self._every_version = every_version
        self._seeds: list[Seed] = []

    def use(self, seed: Seed) -> None:
        """Begin the topic with this."""
        self._seeds.append(seed)
        self._scope.begin_at(seed.starts, seed.targets)
        if self._every_version and seed.weights is not None:
            # Every version after the snapshot's is wanted: nothing is passed.
            latest = self._scope.latest
            latest[:] = [at for at in latest if (at.topic, at.partition) != seed.weights.partition]

    def choose(self) -> None:
        """Find the snapshots in the folder that the replica begins with.

        Raises `NotDurable` where a topic with persistence "none" is to be resumed, `UnknownTopic` and `CorruptLog` where there is
        no whole snapshot, `LogTruncated` and `EventLost` where the log does not go on from it.
        """
        folder = self._start.folder
        for record in self._scope.records if folder is not None else ():
            assert folder is not None
            if self._start.resume and record.persistence == "none":
                raise NotDurable('nothing of a topic with persistence "none" can be resumed', topic=record.name)
            try:
                snapshot = open_snapshot(folder, record.name, record.id)
            except UnknownTopic:
                if not self._start.resume:
                    raise
                continue
            seed = Seed.of_snapshot(snapshot, self._scope.state_partitions(record))
            self.check(seed, record)
            self.use(seed)

    def check(self, seed: Seed, record: TopicRecord) -> None:
        """Whether the topic's log goes on from `seed`. Raises what `Seed.check` does."""

        def check() -> None:
            for partition, at in self._scope.described.items():
                if partition[0] == record.id:
                    seed.check(at, record.name, record.persistence)

        self._go_by_proof(record, check)

    def fill(self, applier: Applier, make_link: MakeLink, name: str, deadline: float) -> None:
        """Put all of it into the replica's store. Raises what reading raises, `StorageFull`, and `LogTruncated` where something
        has left the log and no keeper has it.
        """
        for seed in self._seeds:
            seed.fill(applier)
        if isinstance(self._start.at, VersionVector):
            self._begin_weights(self._start.at, make_link, deadline)
        trimmed = {record.id: numbers for record in self._scope.records if (numbers := self._scope.trimmed(record))}
        if trimmed:
            self._fill_from_keeper(applier, make_link, name, trimmed, deadline)

    def begin(self, core: SubscriptionCore) -> None:
        """Tell the core what it begins with."""
        for seed in self._seeds:
            seed.begin(core)

    def _go_by_proof(self, record: TopicRecord, attempt: Callable[[], T]) -> T:
        """`attempt` goes by what was said of where the topic's partitions stand; once more where that says that something is lost."""
        try:
            return attempt()
        except EventLost:
            self._scope.prove(record)
            return attempt()

    def _begin_weights(self, start: VersionVector[str], make_link: MakeLink, deadline: float) -> None:
        """Weights begin with the newest version of which all that it rests on has been seen at the vector: that is lowered so to
        a closed cut. What comes behind it follows.
        """
        for record in self._scope.records:
            numbers = self._scope.state_partitions(record)
            until = {number: start.get((record.name, number), START) for number in (*numbers, record.partitions)}
            with closing(BrokerSource(make_link, record.name, lambda: time_left(deadline))) as source:
                if source.record.id != record.id:
                    raise UnknownTopic("the topic was replaced meanwhile", topic=record.name)
                version = newest_within(source, until, numbers)
                if version is None:
                    continue
                context = source.context(version)
            at = self._scope.described[record.id, record.partitions]
            self._scope.begin_weights(
                msgspec.structs.replace(at, latest=version.position, latest_start=version.first - 1, context=context)
            )

    def _fill_from_keeper(
        self, applier: Applier, make_link: MakeLink, name: str, trimmed: dict[int, list[int]], deadline: float
    ) -> None:
        with KeeperCopies(make_link, name, deadline) as copies:
            for record in self._scope.records:
                for number in trimmed.get(record.id, ()):
                    fill = partial(self._fill_partition, applier, copies, record, (record.id, number))
                    self._go_by_proof(record, fill)

    def _fill_partition(
        self, applier: Applier, copies: KeeperCopies, record: TopicRecord, partition: PartitionId
    ) -> None:
        at, start = self._scope.described[partition], self._start.at
        if isinstance(start, VersionVector):
            seed = copies.below(record.name, partition, at, start.get((record.name, partition[1]), START))
            seed.fill(applier)
        else:
            seed = copies.fill(record.name, partition, at, applier)
        self.use(seed)
