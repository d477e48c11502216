"""Takes a snapshot of a live replica's topic while the replica goes on applying.

For each state partition: note the position (*floor*) and the definitions of tables, copy entries and rows page by page, note the
position again (*ceiling*). A copy counts once its ceiling is durable in the ceiling's own epoch, which is so when the replica was told
that all up to there can no longer be lost and nothing was undone meanwhile; else it is thrown away and begun again. So is one in which
a table got an optimizer of another kind: whoever begins with the definition of the floor has no place for the state of the other kind.
The weights are one sealed version, which never changes: it is pinned, and written once it can no longer be lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...consistency.position import epoch_of
from ...consistency.vector import PartitionId
from ...errors import ParamstreamError, ParamstreamTimeout, UnknownTopic
from ...eventlog.files import Disk
from ...events.manifest import FileRecord, Manifest, StateRecord, TableRecord, WeightsRecord, positions_of
from ...tiers.entries import Entry, EntryTable
from ...tiers.store import TieredStore
from ...transport.waiting import bounded
from ..applying import Applier, TopicState
from ..definitions import Defined, spec_of
from ..replica_sink import ReplicaSink
from ..subscription_core import SubscriptionCore
from ..versions import Sealed
from . import weights_file
from .entry_pages import PAGE_BYTES, encode_page
from .folder import topic_folder
from .row_pages import encode_rows, rows_in
from .writing import KEEP, SnapshotWriter

ENTRY_BYTES = 64
"""Counted for an entry of a page beside its key and value: its places in the columns."""

KEYS_AT_ONCE = 512
"""Looked up in one go, while nothing is applied: a fraction of a millisecond."""

PATIENCE_S = 0.5
"""How long a wait sleeps at most before it looks again whether the topic is still followed."""


@dataclass(slots=True)
class _Table:
    """A table of a partition on its way into the snapshot, as of the floor."""

    defined: Defined
    rows: int = 0
    files: list[FileRecord] = field(default_factory=list[FileRecord])

    def record(self) -> TableRecord:
        defined = self.defined
        return TableRecord(defined.definition, defined.position, defined.kind_position, self.rows, tuple(self.files))


@dataclass(slots=True)
class _Copy:
    """A state partition on its way into the snapshot."""

    partition: PartitionId
    floor: int = 0
    ceiling: int = 0
    entries: int = 0
    undone: int = 0
    files: list[FileRecord] = field(default_factory=list[FileRecord])
    tables: list[_Table] = field(default_factory=list[_Table])
    is_mixed: bool = False
    """At the ceiling a table had an optimizer of another kind than at the floor."""

    def record(self) -> StateRecord:
        tables = tuple(table.record() for table in self.tables)
        return StateRecord(self.partition[1], self.floor, self.ceiling, self.entries, tuple(self.files), tables)


class Taking:
    """What a snapshot needs of a replica. `take` is called by any thread but the link's."""

    def __init__(
        self,
        replica: str,
        sink: ReplicaSink,
        core: SubscriptionCore,
        applier: Applier,
        store: TieredStore,
        is_closed: Callable[[], bool],
        *,
        keys_at_once: int | None = None,
    ) -> None:
        """`keys_at_once`: so many entries (else `KEYS_AT_ONCE`) are copied between two moments in which the replica may apply."""
        self._replica = replica
        self._sink = sink
        self._core = core
        self._applier = applier
        self._store = store
        self._is_closed = is_closed
        self._keys_at_once = keys_at_once or KEYS_AT_ONCE
        self._turn = threading.Lock()
        """One snapshot at a time."""

    def take(
        self,
        root: Path,
        topic: TopicState,
        numbers: Sequence[int],
        deadline: float,
        *,
        keep: int = KEEP,
        disk: Disk | None = None,
    ) -> tuple[Manifest, Path, str]:
        """A snapshot of the topic with the state partitions `numbers`: its manifest, its folder, and the manifest's digest.

        Blocks until it is safe. Raises `ParamstreamTimeout` after `deadline` (time.monotonic()), with nothing changed;
        `UnknownTopic` where the topic is replaced meanwhile; `StorageFull` and `CorruptLog` as the disk does.
        """
        if not self._turn.acquire(timeout=bounded(max(0.0, deadline - time.monotonic()))):
            raise ParamstreamTimeout("another snapshot of this replica is on its way", topic=topic.record.name)
        try:
            return self._take(root, topic, numbers, deadline, keep, disk)
        finally:
            self._turn.release()

    def _take(
        self, root: Path, topic: TopicState, numbers: Sequence[int], deadline: float, keep: int, disk: Disk | None
    ) -> tuple[Manifest, Path, str]:
        record = topic.record
        with SnapshotWriter(topic_folder(root, record.name, record.id), disk) as writer:
            weights = self._write_weights(topic, writer, deadline)
            copies = self._copy_state(topic, numbers, writer, deadline)
            with self._sink.changed:
                context = self._core.vector()
            manifest = Manifest(
                topic=record.name,
                topic_id=record.id,
                partitions=record.partitions,
                persistence=record.persistence,
                retain_versions=record.retain_versions,
                number=writer.number,
                time=time.time_ns(),
                replica=self._replica,
                context=positions_of(context),
                state=tuple(copy.record() for copy in copies),
                weights=weights,
            )
            digest = writer.finish(manifest, keep)
            return manifest, writer.path, digest

    # --- weights --------------------------------------------------------------------------------------------------------------

    def _write_weights(self, topic: TopicState, writer: SnapshotWriter, deadline: float) -> WeightsRecord:
        number = topic.record.partitions
        while True:
            floor, ceiling, undone, sealed = self._pin(topic, deadline)
            try:
                if not self._settles({topic.weight_partition: (ceiling, undone)}, deadline):
                    continue
                if sealed is None:
                    return WeightsRecord(number, floor, ceiling)
                name = f"weights-{sealed.version}.safetensors"
                file = writer.write(name, weights_file.pieces_of(sealed, topic.record.name))
                return WeightsRecord(number, floor, ceiling, weights_file.record_of(sealed, file))
            finally:
                if sealed is not None:
                    sealed.dense.release()

    def _pin(self, topic: TopicState, deadline: float) -> tuple[int, int, int, Sealed | None]:
        """(floor, ceiling, undos so far, the newest version), of a moment in which the weights pass nothing. The version is
        retained.
        """
        partition = topic.weight_partition
        with self._sink.changed:
            self._wait(lambda: self._core.jumping_to(partition) is None, partition, deadline)
            ceiling, undone = self._core.position(partition), self._sink.undone.get(partition, 0)
            kept, staged = topic.versions.kept, topic.versions.staging.oldest_open()
            sealed = kept[-1] if kept else None
            if sealed is not None and topic.record.persistence == "none":
                # Under "none" a version ends with its epoch; what is still served of it is of the past.
                sealed = sealed if epoch_of(sealed.position) == epoch_of(ceiling) else None
            if sealed is not None:
                retained = sealed.dense.retain()
                assert retained, "a kept version was released"
            floor = ceiling if staged is None else min(ceiling, staged - 1)
            return floor, ceiling, undone, sealed

    # --- state ----------------------------------------------------------------------------------------------------------------

    def _copy_state(
        self, topic: TopicState, numbers: Sequence[int], writer: SnapshotWriter, deadline: float
    ) -> list[_Copy]:
        copies = [_Copy((topic.record.id, number)) for number in numbers]
        pending = copies
        while pending:
            for copy in pending:
                self._begin(copy, writer)
                self._copy(copy, writer, deadline)
            with self._sink.changed:
                for copy in pending:
                    self._end(copy)
            pending = [
                copy
                for copy in pending
                if copy.is_mixed or not self._settles({copy.partition: (copy.ceiling, copy.undone)}, deadline)
            ]
        return copies

    def _begin(self, copy: _Copy, writer: SnapshotWriter) -> None:
        for file in (*copy.files, *(file for table in copy.tables for file in table.files)):
            writer.discard(file.name)
        copy.files.clear()
        copy.entries = 0
        with self._sink.changed:
            copy.floor = self._position(copy.partition)
            copy.undone = self._sink.undone.get(copy.partition, 0)
            copy.tables = [_Table(defined) for defined in self._applier.tables(copy.partition).values()]

    def _end(self, copy: _Copy) -> None:
        """Under the lock."""
        copy.ceiling = self._position(copy.partition)
        now = self._applier.tables(copy.partition)
        copy.is_mixed = any(
            now[table.defined.definition.table].kind_position != table.defined.kind_position for table in copy.tables
        )

    def _copy(self, copy: _Copy, writer: SnapshotWriter, deadline: float) -> None:
        number = copy.partition[1]
        for page in self._pages(self._store.entries(copy.partition)):
            self._check_time(copy, deadline)
            name = f"state-{number}-{len(copy.files):04d}.safetensors"
            copy.files.append(writer.write(name, encode_page(page)))
            copy.entries += len(page)
        for index, table in enumerate(copy.tables):
            definition = table.defined.definition
            rows = self._store.rows(copy.partition, definition.table, spec_of(definition))
            for batch in rows.scan(rows_in(definition, PAGE_BYTES)):
                self._check_time(copy, deadline)
                name = f"rows-{number}-{index}-{len(table.files):04d}.safetensors"
                table.files.append(writer.write(name, encode_rows(batch, definition)))
                table.rows += len(batch.keys)

    def _check_time(self, copy: _Copy, deadline: float) -> None:
        if self._is_closed():
            raise ParamstreamError("the replica was closed while a snapshot of it was made")
        if time.monotonic() > deadline:
            raise self._late(copy.partition, "to be copied")

    def _pages(self, table: EntryTable) -> Iterator[list[tuple[bytes, Entry]]]:
        """The entries under the keys of this moment, each as it is when its page is made."""
        keys = table.keys()
        page, nbytes = list[tuple[bytes, Entry]](), 0
        for at in range(0, len(keys), self._keys_at_once):
            # Under the lock nobody sees half of an event, which may yet find no room and be taken back.
            with self._sink.changed:
                some = keys[at : at + self._keys_at_once]
                found = [(key, entry) for key in some if (entry := table.held(key)) is not None]
            page += found
            nbytes += sum(len(key) + len(entry.value) + ENTRY_BYTES for key, entry in found)
            if nbytes >= PAGE_BYTES:
                yield page
                page, nbytes = [], 0
        if page:
            yield page

    # --- waiting --------------------------------------------------------------------------------------------------------------

    def _settles(self, copied: dict[PartitionId, tuple[int, int]], deadline: float) -> bool:
        """Wait until what was copied up to each ceiling is durable. False where something of it was undone."""
        ((partition, (ceiling, undone)),) = copied.items()

        def is_undone() -> bool:
            return self._sink.undone.get(partition, 0) != undone

        with self._sink.changed:
            self._wait(lambda: is_undone() or self._core.settled(partition) >= ceiling, partition, deadline)
            return not is_undone()

    def _wait(self, reached: Callable[[], bool], partition: PartitionId, deadline: float) -> None:
        """Under the lock."""
        self._position(partition)
        while not reached():
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._late(partition, "to be durable")
            self._sink.changed.wait(min(bounded(left), PATIENCE_S))
            self._position(partition)

    def _position(self, partition: PartitionId) -> int:
        """Under the lock. Raises `UnknownTopic` where the partition is not followed any more, or the replica is closed."""
        if self._is_closed():
            raise ParamstreamError("the replica was closed while a snapshot of it was made")
        if partition not in self._core.partitions():
            raise UnknownTopic("the topic was deleted while a snapshot of it was made", partition=partition[1])
        return self._core.position(partition)

    def _late(self, partition: PartitionId, what: str) -> ParamstreamError:
        return ParamstreamTimeout(
            f"a snapshot waits for the state {what}", partition=partition[1], remedy="Allow more time"
        )
