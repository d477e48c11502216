"""The apply step: writes events into a replica's store under rule 3, takes back what was lost. One thread, no socket.

For each event the feed calls `prepare`, which may take long and shows nothing, and then, under the replica's lock and right
before it confirms the event to the core, `show`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ..consistency.position import START
from ..consistency.vector import PartitionId, VersionVector
from ..errors import CorruptLog, StorageFull
from ..events.codec import EventFrame
from ..events.kinds import (
    STATE_KINDS,
    WEIGHT_KINDS,
    Chunk,
    Commit,
    Delete,
    Kind,
    Part,
    Put,
    Table,
)
from ..events.validate import put_values
from ..tiers.dense import DenseVersion
from ..tiers.entries import Entry
from ..tiers.rows.batch import RowBatch
from ..tiers.store import TieredStore
from ..tiers.usage import TierStatus
from ..transport.calls import TopicRecord
from .definitions import Defined
from .effects import Deliver, Jump
from .rows import RowChange, Tables
from .undo import BeforeImages
from .versions import Sealed, Versions

IDLE_STAGED_S = 30.0
"""A version of which nothing more has come for so long gives its memory back: its producer may be gone for good. Should a
commit name it after all, the log has its chunks."""


class TopicState:
    """One topic as a replica holds it."""

    def __init__(self, record: TopicRecord, versions: Versions) -> None:
        self.record = record
        self.versions = versions
        self.before: Versions | None = None
        """Of the topic that had the name before, until this one has a version."""
        self.stale = False
        """The newest version is of a topic, or (under "none") of an epoch, that is gone; until the next commit."""
        self.pinned: Sealed | None = None
        """Served instead of the newest until it is unpinned; retained."""
        self.pin_stale = False
        """What `stale` says, of the pinned version; no commit changes that."""
        self.rests = False
        """Its weights are to lie on SSD, those too that come, until somebody reads them."""

    @property
    def served(self) -> Sealed | None:
        """What readers get. Any thread."""
        return self.pinned or self.newest

    @property
    def newest(self) -> Sealed | None:
        """What is served where nothing is pinned. Any thread."""
        before = self.before
        return self.versions.served or (before.served if before is not None else None)

    @property
    def is_stale(self) -> bool:
        return self.stale or self.versions.lacks_newest or (self.pinned is not None and self.pin_stale)

    def find(self, version: int) -> Sealed | None:
        """The version kept under that number, or pinned. Any thread."""
        pinned = self.pinned
        found = self.versions.find(version)
        return pinned if found is None and pinned is not None and pinned.version == version else found

    @property
    def all_held(self) -> list[Sealed]:
        """Every version that is kept for it. Any thread."""
        before, pinned = self.before, self.pinned
        held = [*self.versions.kept, *(before.kept if before is not None else ())]
        return held if pinned is None or pinned in held else [*held, pinned]

    def demote(self) -> bool:
        """Move all that nobody reads to SSD, as far as that takes it; whether anything went. Any thread; blocks for the disk."""
        moved = False
        for sealed in self.all_held:
            if not sealed.dense.is_read and sealed.dense.retain():
                try:
                    moved |= sealed.dense.demote()
                finally:
                    sealed.dense.release()
        return moved

    def pin(self, sealed: Sealed) -> None:
        """Takes over a reference to it."""
        before, self.pinned = self.pinned, sealed
        self.pin_stale = False
        if before is not None:
            before.dense.release()

    def unpin(self) -> None:
        before, self.pinned = self.pinned, None
        if before is not None:
            before.dense.release()

    @property
    def weight_partition(self) -> PartitionId:
        return self.record.id, self.record.partitions


Prepared = Sealed | RowChange | None
"""What `prepare` made of an event, for `show`."""


class Applier:
    """The topics, KV entries, rows and versions of one replica. All of it is read by other threads too."""

    def __init__(self, store: TieredStore, keep_versions: int) -> None:
        self._store = store
        self._keep = keep_versions
        self._images: dict[PartitionId, BeforeImages] = {}
        self._tables = Tables(store)
        self.topics: dict[int, TopicState] = {}
        self._staged: dict[int, tuple[int, float]] = {}
        """Topic → (chunks that had come, since when no more have)."""
        self.unfinished: tuple[tuple[str, int, str], ...] = ()
        """(topic, version, producer) of what was begun and has not gone on for `IDLE_STAGED_S`; replaced as a whole."""

    def add(self, record: TopicRecord, state_partitions: Iterable[int]) -> TopicState:
        topic = TopicState(record, Versions(self._store, self._keep))
        self.topics = {**self.topics, record.id: topic}
        for number in state_partitions:
            self._images[record.id, number] = BeforeImages(self._store, (record.id, number))
        return topic

    def begin_with_entries(self, partition: PartitionId, entries: Iterable[tuple[bytes, Entry]]) -> None:
        """Before anything is applied: a state partition's entries, instead of what was there. Raises `StorageFull`, and what
        `entries` does.
        """
        table = self._store.entries(partition)
        table.clear()
        for key, entry in entries:
            table.put(key, entry)

    def begin_with_rows(
        self, partition: PartitionId, tables: Iterable[Defined], rows: Iterable[tuple[str, RowBatch]]
    ) -> None:
        """Before anything is applied: a state partition's tables, and rows of these by name, instead of what was there. Raises
        `StorageFull`, and what `rows` does.
        """
        self._tables.begin_with(partition, tables, rows)

    def tables(self, partition: PartitionId) -> Mapping[str, Defined]:
        """The definitions of a state partition's tables by name, as of this moment. Any thread."""
        return self._tables.of(partition)

    def begin_with_version(self, topic_id: int, make: Callable[[TieredStore], Sealed | None]) -> None:
        """Before anything is applied: the version that `make` puts into the store. Raises what it raises."""
        sealed = make(self._store)
        if sealed is not None:
            self.topics[topic_id].versions.begin_with(sealed)

    def prepare_for(self, topic_id: int, sizes: Mapping[str, int]) -> None:
        """The topic's next version will have these tensors (name → bytes), as far as anybody knows, and come soon."""
        self.topics[topic_id].versions.staging.prepare(sizes)

    def replace(self, old: int, record: TopicRecord, state_partitions: Iterable[int]) -> None:
        """The name of topic `old` stands for a new topic now, whose entries are served at once and its version when it has one."""
        topic = self.topics[old]
        before = topic.versions if topic.versions.kept else topic.before
        if before is topic.versions:
            topic.versions = Versions(self._store, self._keep)
        topic.before = None
        pinned, topic.pinned = topic.pinned, None
        self.drop(old)
        new = self.add(record, state_partitions)
        new.before = before
        new.rests = topic.rests
        new.stale = before is not None
        new.pinned, new.pin_stale = pinned, True

    def drop(self, topic_id: int) -> None:
        """Forget a topic, its entries, rows and versions."""
        topic = self.topics[topic_id]
        self._staged.pop(topic_id, None)
        self.topics = {known: state for known, state in self.topics.items() if known != topic_id}
        topic.versions.clear()
        topic.unpin()
        if topic.before is not None:
            topic.before.clear()
        for partition in [partition for partition in self._images if partition[0] == topic_id]:
            self._images.pop(partition).clear()
            self._store.drop_entries(partition)
            self._tables.forget(partition)

    def prepare(self, step: Deliver, vector: Callable[[], VersionVector[int]]) -> Prepared:
        """The version that the event seals, or the rows that it changes, brought into memory. `vector` gives the closed vector of
        what was applied before.

        Raises `Missing`, `StorageFull` or `CorruptLog`; nothing is shown yet.
        """
        self._check_place(step)
        # What the event brings then finds room without waiting for the disk, which it would under the replica's lock.
        self._store.make_room()
        if step.passed or not isinstance(step.frame.payload, Commit):
            return self._prepare_rows(step)
        versions = self.topics[step.partition[0]].versions
        assembly = versions.prepare(step.frame)
        seen = vector().merge(step.stamp.dependencies()).merge({step.partition: step.frame.position})
        return versions.finish(assembly, seen)

    def show(self, step: Deliver, prepared: Prepared) -> None:
        """Apply the event. Raises `StorageFull` with nothing of it applied."""
        frame, topic = step.frame, self.topics[step.partition[0]]
        if isinstance(prepared, RowChange):
            self._change_rows(step.partition, frame.position, prepared)
        match frame.payload:
            case Put():
                self._put(step.partition, frame, frame.payload)
            case Delete():
                self._delete(step.partition, frame, frame.payload)
            case Chunk():
                topic.versions.staging.stage_chunk(frame)
            case Part():
                topic.versions.staging.stage_part(frame)
            case Commit() if step.passed:
                topic.versions.staging.end(frame.payload, frame.position)
            case Commit():
                assert isinstance(prepared, Sealed)
                topic.versions.show(prepared, frame.payload)
                topic.stale = False
                if topic.before is not None:
                    topic.before.clear()
                    topic.before = None
            case Table():
                self._tables.define(step.partition, frame.payload, frame.position)
            case _:
                pass
        images = self._images.get(step.partition)
        if images is not None:
            self._expire(step.partition, frame.position, frame.time, images)
            images.drop_settled()

    def began(self, partition: PartitionId, position: int, time: int) -> None:
        """An epoch record was reached."""
        images = self._images.get(partition)
        if images is not None:
            self._expire(partition, position, time, images)

    def undo(self, partition: PartitionId, end: int) -> None:
        """What was applied of the partition above `end` is lost."""
        topic, images = self.topics[partition[0]], self._images.get(partition)
        if topic.record.persistence == "none":
            # There are no before-images, and nothing of the epoch can be read again: entries and rows go, the served version stays
            # and says that it is old. Definitions stay: the owner writes them first in each epoch.
            if images is not None:
                images.clear()
                self._store.entries(partition).clear()
                self._tables.clear(partition)
            else:
                topic.versions.staging.clear()
                topic.stale = topic.versions.served is not None
                topic.pin_stale = True
        elif images is not None:
            images.undo(end)
        else:
            topic.versions.undo(end)
            if topic.pinned is not None and not topic.pin_stale and topic.pinned.position > end:
                # What is lost may not be served, pinned or not.
                topic.unpin()

    def settled(self, partition: PartitionId) -> int:
        """What stands up to there can no longer be lost, as far as was told. Under persistence "none" that ends with its epoch: 0."""
        topic, images = self.topics[partition[0]], self._images.get(partition)
        if topic.record.persistence == "none":
            return START
        return topic.versions.durable if images is None else images.durable

    def jump(self, step: Jump) -> None:
        """What is staged of the partition belongs to what is passed, or comes again behind `step.start`."""
        self.topics[step.partition[0]].versions.begin_anew()

    def settle(self, partition: PartitionId, durable: int) -> None:
        images = self._images.get(partition)
        if images is not None:
            images.settle(durable)
        elif partition[0] in self.topics:
            self.topics[partition[0]].versions.settle(durable)

    def in_dram(self) -> list[DenseVersion]:
        """Versions that do not leave DRAM by themselves: those served. Any thread."""
        return [served.dense for topic in self.topics.values() if (served := topic.served) is not None]

    def tiers(self) -> tuple[TierStatus, ...]:
        """Of the store that all is in. Any thread."""
        return self._store.tiers()

    def move_idle(self) -> None:
        """Make room where DRAM is nearly full, and have the weights of topics that rest on SSD. By the applying thread."""
        self._store.make_room()
        for topic in self.topics.values():
            if topic.rests and topic.demote():
                self._store.trim()

    def free_idle(self, now: float) -> None:
        """Give back what is staged of versions that do not go on. By the applying thread; `now`: time.monotonic()."""
        unfinished: list[tuple[str, int, str]] = []
        for topic_id, topic in self.topics.items():
            staging = topic.versions.staging
            staged, since = self._staged.get(topic_id, (-1, now))
            if staged != staging.staged:
                self._staged[topic_id] = staging.staged, now
            elif now - since >= IDLE_STAGED_S:
                staging.drop_bytes()
                unfinished += [(topic.record.name, version, producer) for version, producer in staging.begun()]
        self.unfinished = tuple(unfinished)

    def refetched(self, partition: PartitionId, frame: EventFrame) -> None:
        self.topics[partition[0]].versions.refetched(frame)

    def close(self) -> None:
        for topic_id in list(self.topics):
            self.drop(topic_id)

    def _check_place(self, step: Deliver) -> None:
        """Brokers see to it; a log may have been written by something else."""
        kinds = WEIGHT_KINDS if step.partition == self.topics[step.partition[0]].weight_partition else STATE_KINDS
        if step.frame.kind not in kinds and step.frame.kind is not Kind.NOTE:
            raise CorruptLog(
                f"a {step.frame.kind.label} has no place in this partition",
                partition=step.partition[1],
                position=step.frame.position,
            )

    def _put(self, partition: PartitionId, frame: EventFrame, put: Put) -> None:
        # Operations of one event on one key are folded first: the last one stands.
        folded: dict[bytes, Entry | None] = {
            item.key: Entry(
                bytes(value),
                frame.position,
                None if item.ttl_ns is None else frame.time + item.ttl_ns,
                None if item.valid_for is None else (item.valid_for.version, item.valid_for.commit),
            )
            for item, value in put_values(put, frame.bulk)
        }
        self._change(partition, frame.position, folded)

    def _delete(self, partition: PartitionId, frame: EventFrame, delete: Delete) -> None:
        self._change(partition, frame.position, dict.fromkeys(delete.keys))

    def _change(self, partition: PartitionId, position: int, changes: dict[bytes, Entry | None]) -> None:
        table, images = self._store.entries(partition), self._images[partition]
        sizes, done = images.room_for(changes), 0
        try:
            for (key, entry), nbytes in zip(changes.items(), sizes, strict=True):
                before = table.delete(key, position) if entry is None else table.put(key, entry)
                images.keep(position, key, before, nbytes)
                done += 1
        except StorageFull:
            self._store.refund_staging(sum(sizes[done:]))
            images.undo(position - 1)
            raise

    def _prepare_rows(self, step: Deliver) -> RowChange | None:
        """The rows come to memory, and where the event may still be lost there is room for what they were: to make it may take the
        disk, and before any row is held, so that all may leave.
        """
        change = self._tables.change_of(step.partition, step.frame)
        if change is None:
            return None
        images, nbytes = self._images[step.partition], 0
        lasts = self.topics[step.partition[0]].record.persistence != "none"
        if lasts and step.frame.position > images.durable:
            nbytes = change.image_limit()
            images.room_for_rows(nbytes)
        try:
            change.table.prepare(change.keys)
        except BaseException:
            self._store.refund_staging(nbytes)
            raise
        return replace(change, image_nbytes=nbytes)

    def _change_rows(self, partition: PartitionId, position: int, change: RowChange) -> None:
        before = change.apply(position)
        if before is not None:
            self._images[partition].keep_rows(position, change.table, before, change.image_nbytes)

    def _expire(self, partition: PartitionId, position: int, time: int, images: BeforeImages) -> None:
        for key, entry in self._store.entries(partition).remove_expired(time):
            images.keep_removed(position, key, entry)
