"""What a replica begins with instead of a log's beginning: the state of a snapshot, of a folder or of the broker's keeper.

A seed says where each partition is followed from (`starts`) and what must be applied before anything may be read (`targets`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ...consistency.position import epoch_of, show
from ...consistency.vector import EMPTY, PartitionId, VersionVector
from ...errors import EventLost, LogTruncated
from ...events.manifest import StateRecord
from ...tiers.entries import Entry
from ...tiers.rows.batch import RowBatch
from ...tiers.store import TieredStore
from ...transport.calls import PartitionRecord
from ..applying import Applier
from ..definitions import Defined
from ..subscription_core import SubscriptionCore
from ..versions import Sealed
from .reading import Snapshot

Entries = Iterable[tuple[bytes, Entry]]
Rows = Iterable[tuple[str, RowBatch]]
"""Of tables by name."""


def no_rows() -> Rows:
    return ()


@dataclass(slots=True)
class StateSeed:
    """A state partition's copy."""

    partition: PartitionId
    floor: int
    ceiling: int
    entries: Callable[[], Entries]
    """Called once; may raise what reading raises."""
    tables: Sequence[Defined] = ()
    """As of the floor."""
    rows: Callable[[], Rows] = no_rows
    """Of those tables. Called once; may raise what reading raises."""

    def fill(self, applier: Applier) -> None:
        """Put it in place, before anything is applied, instead of what is there. Raises what reading raises, and `StorageFull`."""
        applier.begin_with_entries(self.partition, self.entries())
        applier.begin_with_rows(self.partition, self.tables, self.rows())


@dataclass(slots=True)
class WeightsSeed:
    """A weight partition's copy."""

    partition: PartitionId
    floor: int
    """Staged chunks and parts may stand behind it."""
    ceiling: int
    sealed: Callable[[TieredStore], Sealed | None]


@dataclass(slots=True)
class Seed:
    """One topic's state. What is missing in it begins where its log begins."""

    topic_id: int
    context: VersionVector[int] = EMPTY
    state: list[StateSeed] = field(default_factory=list[StateSeed])
    weights: WeightsSeed | None = None
    tensors: Mapping[str, int] = field(default_factory=dict[str, int])
    """Of the version that will come first, as far as anybody knows: name → bytes."""

    @classmethod
    def of_snapshot(cls, snapshot: Snapshot, numbers: Sequence[int], *, dense: bool = True) -> Seed:
        """The state partitions `numbers`, and with `dense` the weights, as far as the snapshot has them."""
        held = snapshot.manifest
        seed = cls(held.topic_id, snapshot.context)
        for state in held.state:
            if state.number in numbers:
                seed.state.append(
                    StateSeed(
                        (held.topic_id, state.number),
                        state.floor,
                        state.ceiling,
                        partial(snapshot.entries, state.number),
                        defined_in(state),
                        partial(snapshot.rows, state.number),
                    )
                )
        if dense:
            weights = held.weights
            seed.weights = WeightsSeed(
                (held.topic_id, weights.number), weights.floor, weights.ceiling, snapshot.sealed
            )  # fmt: skip
        return seed

    @property
    def starts(self) -> dict[PartitionId, int]:
        """Each partition is followed from behind this position."""
        starts = {state.partition: state.floor for state in self.state}
        return starts if self.weights is None else starts | {self.weights.partition: self.weights.ceiling}

    @property
    def targets(self) -> dict[PartitionId, int]:
        """Nothing may be read before all of this is applied."""
        targets = {state.partition: state.ceiling for state in self.state}
        return targets if self.weights is None else targets | {self.weights.partition: self.weights.ceiling}

    def check(self, at: PartitionRecord, topic: str, persistence: str) -> None:
        """Whether the log of a partition goes on from here; what it does not go on from is left out of the seed.

        Under "none" a copy ends with its epoch. Raises `LogTruncated` where the log begins behind the floor (with the range that
        is gone), `EventLost` where the log lacks what the snapshot holds.
        """
        partition = at.topic, at.partition
        start, target = self.starts.get(partition), self.targets.get(partition)
        if start is None or target is None:
            return
        if persistence == "none" and epoch_of(target) != at.epoch:
            self._leave_out(partition)
            return
        end = at.end_for(target)
        if target > end and target:
            raise EventLost(
                f"the snapshot holds what lies behind {show(end)}, where the log ends",
                topic=topic,
                partition=at.partition,
                position=target,
                remedy='Begin with start="latest"',
            )
        is_weights = self.weights is not None and partition == self.weights.partition
        if at.start > start and not is_weights:
            raise LogTruncated(
                f"the log no longer has what lies behind {show(start)} and up to {show(at.start)}",
                topic=topic,
                partition=at.partition,
                position=start,
                remedy='Begin with start="latest", which gets a newer snapshot where there is one',
            )

    def fill(self, applier: Applier) -> None:
        """Put the state in place, before anything is applied. Raises what reading raises, and `StorageFull`."""
        for state in self.state:
            state.fill(applier)
        if self.weights is not None:
            applier.begin_with_version(self.topic_id, self.weights.sealed)
        if self.tensors:
            applier.prepare_for(self.topic_id, self.tensors)

    def begin(self, core: SubscriptionCore) -> None:
        """Tell the core, which begins at `starts`, what that rests on."""
        core.begin_with(
            self.context, {} if self.weights is None else {self.weights.partition: self.weights.floor}
        )  # fmt: skip

    def _leave_out(self, partition: PartitionId) -> None:
        self.state = [state for state in self.state if state.partition != partition]
        if self.weights is not None and self.weights.partition == partition:
            self.weights = None


def defined_in(state: StateRecord) -> list[Defined]:
    """The tables of a partition's copy."""
    return [Defined(table.definition, table.position, table.kind_position) for table in state.tables]
