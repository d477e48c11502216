"""A replica of the simulation from one start to its end: the real parts of a replica, put together as `Replica` does it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from paramstream.consistency.gate import Ordering
from paramstream.consistency.vector import EMPTY, PartitionId, VersionVector
from paramstream.consumers.applying import Applier
from paramstream.consumers.beginning import Beginning, Start
from paramstream.consumers.changelog.writing import WriteBack
from paramstream.consumers.effects import Deliver, EpochBegan, Jump, Step, Undo
from paramstream.consumers.feed import Feed
from paramstream.consumers.recording import ReplicaRecorder
from paramstream.consumers.replica_sink import ReplicaSink
from paramstream.consumers.scope import Scope
from paramstream.consumers.snapshots.seeding import Seed
from paramstream.consumers.snapshots.taking import Taking
from paramstream.consumers.subscription_core import SubscriptionCore
from paramstream.consumers.waits import Waits
from paramstream.errors import Fenced, LogTruncated
from paramstream.eventlog.changelog import Changelogs
from paramstream.events.recording import HistoryFile
from paramstream.tiers.store import TieredStore
from paramstream.transport.calls import TopicRecord
from paramstream.transport.directory import Ask, Directory
from paramstream.transport.link import Handler
from paramstream.transport.messages import Hello

from .aside import Aside, Turns
from .consumer_link import SimLink
from .recorded import History
from .rows import rows_held
from .seen import Seen
from .snapshot_disk import SnapshotDisk
from .states import Entries, States
from .topics import SimTopic
from .versions import NAMES, tensor_of
from .writes import Part, keys_of, write_of, write_of_version


@dataclass(frozen=True)
class Home:
    """What a replica is in all of its lives."""

    name: str
    ordering: Ordering
    durable_only: bool
    numbers: Mapping[str, Sequence[int]]
    """Topic → the state partitions followed; its weights are followed too."""
    states: States
    note: Callable[[str], None]
    history: History


class SimScope(Scope):
    """Chooses state partitions topic by topic."""

    def __init__(self, home: Home, directory: Directory, start: str | VersionVector[str]) -> None:
        self._numbers = home.numbers
        super().__init__(list(home.numbers), directory, start, None, math.inf, durable_only=home.durable_only)

    def state_partitions(self, record: TopicRecord) -> Sequence[int]:
        return self._numbers[record.name]


class Life:
    """Without a public face: what was applied, in order, and what is held."""

    def __init__(
        self, home: Home, ask: Ask, start: str, folder: Path | None = None, seeds: Sequence[Seed] = ()
    ) -> None:
        """`ask` answers for the brokers, at once. `folder`: the replica's own snapshots. `seeds`: state in hand instead. Raises what a
        replica does that begins so.
        """
        self.home = home
        self.link = SimLink()
        self.applied: list[Deliver | EpochBegan] = []
        """What stands of what was applied, in order: an undo takes its lines out again."""
        self.undone: list[Deliver | EpochBegan] = []
        """What was applied and taken back."""
        self.problems: list[str] = []
        self.asides: dict[str, Aside] = {}
        """What its user does beside it, by name: a snapshot, a flush to changelogs."""
        self._taken = 0
        """Bytes of the store that somebody else has."""
        self._writings: dict[SimTopic, WriteBack] = {}
        self.jumps = 0
        self.store = TieredStore("64MiB")
        self.applier = Applier(self.store, keep_versions=2)
        directory = Directory(ask)
        begins = Start.of(start, home.name, folder)
        scope = SimScope(home, directory, begins.at)
        beginning = Beginning(begins, scope, every_version=False)
        try:
            for record in scope.records:
                self.applier.add(record, scope.state_partitions(record))
            for seed in seeds:
                (record,) = (record for record in scope.records if record.id == seed.topic_id)
                beginning.check(seed, record)
                beginning.use(seed)
            if not seeds:
                beginning.choose()
            beginning.fill(self.applier, _no_link, home.name, math.inf)
        except BaseException:
            self.close()
            raise
        self.core = SubscriptionCore(home.ordering, scope.starts, durable_only=home.durable_only)
        beginning.begin(self.core)
        process, history = home.history.next_life(home.name), cast("HistoryFile", home.history)
        self.recorder = ReplicaRecorder(history, process, home.ordering, self.core, self.applier, directory.name_of)
        self.sink = ReplicaSink(
            home.name, self.core, self.applier, directory, scope.state_partitions, self._record, recorder=self.recorder
        )
        self.sink.changed = Turns()
        self.sink.link = self.sink.jumps.link = self.link
        self.feed = Feed(self.core, self.sink, self.sink.lock)
        self.feed.link = self.link
        self.taking = Taking(
            home.name, self.sink, self.core, self.applier, self.store, lambda: False, keys_at_once=1
        )  # fmt: skip
        self._has_started = Waits(self.sink, self.core, directory).applied(scope.targets)
        self.copied: SimTopic
        """What the last snapshot was, or is, of."""
        self.is_ready = False
        """Its start state is served: before that nobody reads it."""
        self._served: dict[int, int] = {}
        """Topic → the position of the version that is served."""
        self._held: dict[PartitionId, dict[bytes | int, int]] = {}
        """State partition → the positions of its entries and rows by key, while the start state is not complete."""
        self._at = dict(scope.starts)
        """What is applied, or passed by a jump."""
        for at in scope.latest:
            self.sink.jumps.begin(at)
        for partition in self._at:
            self._check(partition, None)
        self.look()

    def close(self) -> None:
        """The process is gone."""
        for aside in self.asides.values():
            aside.kill()
        self.applier.close()
        self.store.close()

    # --- its users --------------------------------------------------------------------------------------------------------

    def read(self) -> Seen:
        """A user gets every key, and what is served."""
        if not self.is_ready:
            return Seen()
        writes: set[Part] = set()
        for topic in self.applier.topics.values():
            for partition in [(topic.record.id, number) for number in self.home.numbers[topic.record.name]]:
                entries = dict(self.store.entries(partition).items())
                writes.update((write_of(entry.value), partition) for entry in entries.values())
                for key in keys_of(partition):
                    self.recorder.reads_entry(partition, key, entries.get(key))
            if topic.served is not None:
                writes.add((write_of_version(topic.served.version), topic.weight_partition))
                self.recorder.reads_weights(topic, topic.served)
        vector = self.core.vector()
        return Seen(vector, frozenset(writes), self.recorder.observed(vector))

    def look(self) -> None:
        """Once the start state is served, all of it is right."""
        if not self.is_ready and self._has_started():
            self.is_ready = True
            self.sink.jumps.while_behind = True
            for partition in self._at:
                self._check(partition, None)

    def fill_store(self, leaves: int) -> None:
        """Somebody else takes the store's room, but for so many bytes; 0 bytes are taken where `leaves` is more than there is."""
        self.free_store()
        self._taken = max(0, self.store.usage().available_bytes - leaves)
        self.store.charge_staging(self._taken)

    def free_store(self) -> None:
        self.store.refund_staging(self._taken)
        self._taken = 0

    def take_snapshot(self, copied: SimTopic, folder: Path, disk: SnapshotDisk) -> None:
        """Beside everything else, step by step of `aside`."""
        self.copied = copied
        topic, numbers = self.applier.topics[copied.id], self.home.numbers[copied.name]

        def take() -> None:
            self.taking.take(folder, topic, numbers, math.inf, disk=disk)

        self.asides["snapshot"] = Aside(f"snapshot-{self.home.name}", take)

    def write_back(self, topic: SimTopic, changelogs: Changelogs) -> None:
        """One turn of the writer of its state partitions' changelogs, beside everything else."""
        writing = self._writings.get(topic)
        if writing is None or isinstance(writing.error, Fenced):
            writing = self._writings[topic] = WriteBack(
                self.sink, self.core, self.applier, self.store, topic.record, self.home.numbers[topic.name], changelogs,
                batch_keys=1,
            )  # fmt: skip

        def flush() -> None:
            writing.turn()

        self.asides["write back"] = Aside(f"write-back-{self.home.name}", flush)

    # --- its delivery log -------------------------------------------------------------------------------------------------

    def _record(self, step: Step) -> None:
        """Each step, checked as it is applied: no gap, no repeat, nothing before what it rests on; and what is shown then."""
        partition, states = step.partition, self.home.states
        at = self._at[partition]
        self.home.note(f"{self.home.name} at {at:x} of {partition}: {type(step).__name__}")
        match step:
            case Deliver():
                self._delivered(step, at)
            case EpochBegan():
                self._must(step.end == at, f"{partition}: an epoch that ended at {step.end:x} was left at {at:x}")
                states.epoch(partition, at, step.position, step.time)
                self._at[partition] = step.position
                self.applied.append(step)
            case Undo():
                self._must(step.end < at, f"{partition}: nothing to undo above {step.end:x} at {at:x}")
                self._at[partition] = step.end
                gone = [line for line in self.applied if line.partition == partition and position_of(line) > step.end]
                self.undone += gone
                self.applied = [line for line in self.applied if line not in gone]
            case Jump():
                # One that begins with a snapshot goes back to what the newest version needs, if it goes on with that.
                went_back = step.start <= at and self.is_ready
                self._must(not went_back, f"{partition} jumped back from {at:x} to {step.start:x}")
                self._at[partition] = step.start
        self._check(partition, step)
        self.look()

    def _delivered(self, step: Deliver, at: int) -> None:
        partition, position = step.partition, step.frame.position
        self._must(position == at + 1, f"{partition} went from {at:x} to {position:x}")
        self._must(self.home.states.event(partition, at, step.frame), f"{partition} {position:x} names two events")
        self._at[partition] = position
        if step.passed:
            # Nobody sees it; what it rests on is asked of the jump's target.
            return
        vectors = [step.stamp.own, step.stamp.observed if self.home.ordering is Ordering.CAUSAL else EMPTY]
        for other, needed in (item for vector in vectors for item in vector.items()):
            if other in self._at and other != partition:
                self._must(self._at[other] >= needed, f"{partition} {position:x} before {other} {needed:x}")
        self.applied.append(step)

    def _check(self, partition: PartitionId, step: Step | None) -> None:
        """What users see of a partition is what the events up to its position say."""
        topic = self.applier.topics[partition[0]]
        if partition == topic.weight_partition:
            self._check_served(partition, step)
        elif not self.is_ready:
            self._check_replay(partition, step)
        else:
            at = self.core.position(partition)
            expected = self.home.states.entries(partition, at)
            held = self.held(partition)
            self._must(expected in (None, held), f"holds {held} of {partition} at {at:x}, the events say {expected}")

    def held(self, partition: PartitionId) -> Entries:
        """Entries and rows of a state partition."""
        return {**dict(self.store.entries(partition).items()), **rows_held(self.store, partition)}

    def _check_replay(self, partition: PartitionId, step: Step | None) -> None:
        """Rule 3: what was copied late carries a position above the floor, and older events do not touch it."""
        held = {key: item.position for key, item in self.held(partition).items()}
        before, self._held[partition] = self._held.get(partition, {}), held
        if isinstance(step, Deliver):
            at = step.frame.position
            back = [key for key, was in before.items() if was > held.get(key, at)]
            self._must(not back, f"{back} of {partition} went back behind what was copied, at {at:x}")

    def _check_served(self, partition: PartitionId, step: Step | None) -> None:
        topic = self.applier.topics[partition[0]]
        served = topic.served
        shown = served.position if served is not None else 0
        before, self._served[partition[0]] = self._served.get(partition[0], 0), shown
        if shown != before:
            self._must(
                shown > before or isinstance(step, Undo), f"went back from {before:x} to {shown:x} of {partition}"
            )
            wrong = wrong_values(served) if served is not None else []
            self._must(not wrong, f"serves wrong values of {wrong} in the version at {shown:x}")
        at = self.core.position(partition)
        expected = self.home.states.commit(partition, at)
        jumps = self.core.jumping_to(partition) is not None
        if topic.record.persistence == "none" and expected is not None and not jumps:
            # Who jumps because the log was cut calls stale whatever there is. Else what is served of an epoch that is gone says so
            # until the first commit of the new one.
            is_of_the_past = served is not None and expected != shown
            stale = "stale" if topic.is_stale else "not stale"
            self._must(
                topic.is_stale == is_of_the_past, f"serves {shown:x} of {partition} at {at:x}, and says it is {stale}"
            )
        if self.is_ready and not topic.is_stale:
            self._must(
                expected in (None, shown), f"serves {shown:x} of {partition} at {at:x}, and not {expected or 0:x}"
            )

    def _must(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(f"{self.home.name}: {problem}")


def wrong_values(served: Any) -> list[str]:
    """Names of tensors that are not those of their version."""
    buffer = served.dense.readonly_buffer()
    wrong: list[str] = []
    for name in NAMES:
        offset, nbytes = served.dense.extents[name]
        if bytes(buffer[offset : offset + nbytes]) != tensor_of(served.version, name):
            wrong.append(name)
    return wrong


def position_of(line: Deliver | EpochBegan) -> int:
    return line.frame.position if isinstance(line, Deliver) else line.position


def _no_link(handler: Handler, hello: Callable[[], Hello], name: str) -> SimLink:
    raise LogTruncated("the simulation has no keeper whose snapshots reach back")
