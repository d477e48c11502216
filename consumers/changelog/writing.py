"""Writes a replica's dirty entries and rows back to the changelogs of one topic, while the replica goes on applying.

The replica shows durable events only, so nothing that it holds can be lost, and no item has to wait. Its state is looked at
under its lock for moments; what Kafka takes its time for is done by a thread of this.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...consistency.vector import PartitionId
from ...errors import Fenced, InvalidEvent, OutcomeUnknown, ParamstreamError, ParamstreamTimeout
from ...eventlog.changelog import Changelog, ChangelogRecord, Changelogs
from ...tiers.rows.table import RowTable
from ...tiers.store import TieredStore
from ...transport.calls import TopicRecord
from ...transport.waiting import bounded
from ..applying import Applier
from ..definitions import Defined, spec_of
from ..replica_sink import ReplicaSink
from ..snapshots.row_pages import rows_in
from ..subscription_core import SubscriptionCore
from .core import Batch, ChangelogCore, Held
from .records import Marker, RowsOf, entry_record, marker_record, read_record, row_records, table_record

_log = logging.getLogger(__name__)

FLUSH_S = 1.0
"""How often what is dirty goes out."""

QUIET_FLUSHES = 10
"""After so many rounds the marker moves on even where no entry changed, so that the log can be trimmed behind it."""

BATCH_KEYS = 16384
BATCH_BYTES = 8 * 1024 * 1024
"""Of one write: so much may be lost by a failure and written again."""

PIECE_BYTES = 1024 * 1024
"""About so many bytes of rows are read at a time."""

KEYS_AT_ONCE = 512
"""Looked up in one go, while nothing is applied: a fraction of a millisecond."""

ROWS_AT_ONCE = 4096
"""Compared with the changelog at a time."""

RETRY_S = (0.5, 30.0)
"""First and longest pause after a failure; it doubles in between."""


@dataclass(slots=True)
class _Writer:
    """One partition's changelog, opened or to be opened."""

    partition: PartitionId
    changelog: Changelog | None = None
    core: ChangelogCore | None = None
    """None: to be opened, and read, before anything is written."""
    quiet: int = 0
    """Rounds without a change since the marker moved."""
    failed: bool = False
    """Since the last round that went well: that was said, and is not said again at each try of an outage."""

    def close(self) -> None:
        """Whatever comes next reads before it writes."""
        changelog, self.changelog, self.core = self.changelog, None, None
        if changelog is not None:
            with suppress(ParamstreamError):
                changelog.close()


class _LookedUp(NamedTuple):
    """A batch as it is to be written."""

    batch: Batch
    records: list[ChangelogRecord]
    marked: Marker


class WriteBack:
    """Keeps the changelogs of one topic up with a replica. Started by `start`; `close` flushes once more and ends it."""

    def __init__(
        self,
        sink: ReplicaSink,
        core: SubscriptionCore,
        applier: Applier,
        store: TieredStore,
        record: TopicRecord,
        numbers: Sequence[int],
        changelogs: Changelogs,
        every_s: float = FLUSH_S,
        batch_keys: int = BATCH_KEYS,
    ) -> None:
        """`numbers`: the state partitions. `batch_keys`: most items of one write. Raises `InvalidEvent` where the replica shows what can still be lost."""
        if not core.durable_only:
            raise InvalidEvent('only a replica with visibility="durable" writes its state back', topic=record.name)
        self._sink = sink
        self._core = core
        self._applier = applier
        self._store = store
        self._record = record
        self._every_s = every_s
        self._batch_keys = batch_keys
        self._changelogs = changelogs
        self._writers = [_Writer((record.id, number)) for number in numbers]
        self._closing = False
        self._asked = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"paramstream-write-back-{record.name}", daemon=True)
        self.error: ParamstreamError | None = None
        """What the last round failed with; None after one that did not. After `Fenced` there is no further round."""
        self.floors: Mapping[PartitionId, int] = {}
        """What lies at or below them need not stay in the log, as far as the changelogs go. Replaced as a whole."""

    @property
    def partitions(self) -> list[PartitionId]:
        return [writer.partition for writer in self._writers]

    def start(self) -> None:
        self._thread.start()

    def wait(self, floors: Mapping[PartitionId, int], timeout: float) -> None:
        """Blocks until the changelogs written here have come so far; partitions that are not written here are passed over.

        Raises what keeps them from it, or `ParamstreamTimeout` after `timeout` s.
        """
        wanted = {writer.partition: floors.get(writer.partition, 0) for writer in self._writers}
        with self._changed:
            self._asked = True
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._reached(wanted) or not self._thread.is_alive(), timeout=bounded(timeout)
            )
            if self._reached(wanted):
                return
        raise self.error or ParamstreamTimeout("the changelogs did not come so far", topic=self._record.name)

    def close(self, timeout: float) -> None:
        """One more flush, then the end of the thread, waited for at most `timeout` s. A second call changes nothing."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(bounded(timeout))

    def _reached(self, wanted: Mapping[PartitionId, int]) -> bool:
        return all(self.floors.get(partition, 0) >= floor for partition, floor in wanted.items())

    # --- in the thread --------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = self._every_s
        try:
            is_last = False
            while not is_last:
                is_last = self._wait(pause)
                pause = self._every_s if self.turn() else min(max(2 * pause, RETRY_S[0]), RETRY_S[1])
                if isinstance(self.error, Fenced):
                    return
        finally:
            for writer in self._writers:
                writer.close()

    def _wait(self, pause: float) -> bool:
        """Until the next round is due, or asked for. True where it is the last one."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or (self._asked and self.error is None), timeout=pause)
            return self._closing

    def turn(self) -> bool:
        """Flush every partition, in the thread that does nothing else. False where one failed: it is opened anew in the next turn."""
        with self._changed:
            is_asked, self._asked = self._asked, False
        failed: ParamstreamError | None = None
        for writer in self._writers:
            try:
                self._flush(writer, is_asked)
                writer.failed = False
            except ParamstreamError as error:
                failed = failed or error
                self._set_aside(writer, error)
        with self._changed:
            self.error = failed
            self.floors = {
                **self.floors,
                **{writer.partition: writer.core.floor for writer in self._writers if writer.core is not None},
            }
            self._changed.notify_all()
        return failed is None

    def _set_aside(self, writer: _Writer, error: ParamstreamError) -> None:
        """Whether its last write stands is not known, or it is over: what is there is read again before the next."""
        error.topic, error.partition = error.topic or self._record.name, writer.partition[1]
        if not writer.failed:
            _log.warning("write-back fails, and is tried again: %s", error)
        writer.failed = True
        writer.close()

    def _flush(self, writer: _Writer, is_asked: bool) -> None:
        """Write what is dirty; `is_asked`: move the marker on even where nothing is."""
        changelog, core = self._opened(writer)
        is_due = self._begin(writer, core, is_asked)
        while is_due:
            looked_up = self._look_up(writer.partition, core, core.next_batch(self._batch_keys))
            if looked_up is None:
                is_due = self._begin(writer, core, is_asked)
                continue
            changelog.write([*looked_up.records, marker_record(looked_up.marked)])
            core.written(looked_up.batch, looked_up.marked)
            is_due = not looked_up.batch.is_last

    def _opened(self, writer: _Writer) -> tuple[Changelog, ChangelogCore]:
        if writer.changelog is None or writer.core is None:
            record = self._record
            writer.changelog = self._changelogs.open(writer.partition, record.name, record.partitions)
            writer.core = self._open(writer, writer.changelog)
        return writer.changelog, writer.core

    def _open(self, writer: _Writer, changelog: Changelog) -> ChangelogCore:
        changelog.open_writer()
        held = Held()
        for record in changelog.read():
            held.take(read_record(record, _place(self._record, writer.partition)))
        return ChangelogCore(held)

    def _begin(self, writer: _Writer, core: ChangelogCore, is_asked: bool) -> bool:
        """Take in what has changed. False where there is nothing to write, or nothing may be written yet."""
        partition = writer.partition
        table = self._store.entries(partition)
        with self._sink.changed:
            position = self._position(partition)
            if not core.may_flush(position):
                return False
            changed = table.changed()
            entries = [] if core.is_compared else table.items()
            tables = self._applier.tables(partition)
            rows = {
                RowsOf(name, defined.kind_position): self._rows(partition, defined).changed()
                for name, defined in tables.items()
            }
        core.compare(entries)
        for of in rows:
            if not core.is_tracked(of):
                # What changes from here on is told by the next call of `changed`.
                core.compare_rows(of, self._rows(partition, tables[of.table]).scan(ROWS_AT_ONCE))
        core.begin(changed, position, rows, tables)
        writer.quiet += 1
        is_due = (is_asked or writer.quiet > QUIET_FLUSHES) and position > core.floor
        if not core.is_dirty and not is_due:
            return False
        writer.quiet = 0
        return True

    def _rows(self, partition: PartitionId, defined: Defined) -> RowTable:
        return self._store.rows(partition, defined.definition.table, spec_of(defined.definition))

    def _look_up(self, partition: PartitionId, core: ChangelogCore, batch: Batch) -> _LookedUp | None:
        """The records of a batch, cut to `BATCH_BYTES`, and the marker that covers them. None where a table has got an optimizer of
        another kind meanwhile.
        """
        entries, nbytes = self._entry_records(partition, batch.keys)
        rows = self._row_records(partition, core, batch, BATCH_BYTES - nbytes)
        if len(entries) < len(batch.keys) or len(rows) < sum(len(keys) for _, keys in batch.rows):
            batch = core.cut(batch, len(entries), len(rows))
        with self._sink.changed:
            position, context = self._position(partition), self._core.vector()
            if not core.is_of(batch, self._applier.tables(partition)):
                return None
        records = [*entries, *rows, *map(table_record, batch.tables)]
        return _LookedUp(batch, records, core.marker(batch, position, context))

    def _entry_records(self, partition: PartitionId, keys: Sequence[bytes]) -> tuple[list[ChangelogRecord], int]:
        """Of as many entries as `BATCH_BYTES` take, and the bytes that they take."""
        table = self._store.entries(partition)
        records, nbytes = list[ChangelogRecord](), 0
        for at in range(0, len(keys), KEYS_AT_ONCE):
            with self._sink.changed:
                found = [(key, table.held(key)) for key in keys[at : at + KEYS_AT_ONCE]]
            records += [entry_record(key, entry) for key, entry in found]
            nbytes += sum(len(key) + (len(entry.value) if entry is not None else 0) for key, entry in found)
            if nbytes >= BATCH_BYTES:
                break
        return records, nbytes

    def _row_records(
        self, partition: PartitionId, core: ChangelogCore, batch: Batch, most_bytes: int
    ) -> list[ChangelogRecord]:
        """Of as many rows as so many bytes take. A table's change by one event is seen whole, or not: no lock is needed."""
        tables = self._applier.tables(partition)
        records = list[ChangelogRecord]()
        for of, keys in batch.rows:
            defined = tables[of.table]
            rows, is_removed = self._rows(partition, defined), core.is_removed(of)
            step = rows_in(defined.definition, PIECE_BYTES)
            for at in range(0, len(keys), step):
                if most_bytes <= 0:
                    return records
                found = rows.read(keys[at : at + step])
                if is_removed:
                    found = replace(found, positions=np.zeros_like(found.positions))
                records += row_records(of, found)
                most_bytes -= found.nbytes
        return records

    def _position(self, partition: PartitionId) -> int:
        """Under the lock. Raises `OutcomeUnknown` where the partition is not followed any more."""
        if partition not in self._core.partitions():
            raise OutcomeUnknown("the topic was deleted, or is another one now", topic=self._record.name)
        return self._core.position(partition)


def _place(record: TopicRecord, partition: PartitionId) -> str:
    return f"of {record.name}/{partition[1]}"
