"""What a restore begins with instead of a log's beginning: the state that the changelogs of a topic hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...consistency.vector import EMPTY, PartitionId
from ...errors import CorruptLog
from ...eventlog.changelog import Changelog, Changelogs
from ...tiers.entries import Entry
from ...tiers.rows.batch import RowBatch
from ...transport.calls import TopicRecord
from ..definitions import Defined
from ..snapshots.seeding import Seed, StateSeed
from .held import StoredRows
from .records import EntryRecord, Marker, RowRecord, RowsOf, read_record


def seed_of(changelogs: Changelogs, record: TopicRecord, numbers: Sequence[int]) -> Seed:
    """The state partitions `numbers`, as far as they have a changelog with a marker; the others begin where their log begins.

    Each changelog is read from its beginning to its end, since compaction leaves no shorter way; rows wait in temporary files
    (`tempfile`) where there are many. Raises `CorruptLog` naming the changelog whose records do not go together, `StorageFull`, and
    what reading raises.
    """
    seed = Seed(record.id, EMPTY)
    for number in numbers:
        found = _read(changelogs, record, number)
        # Whoever wrote it passed over events of tables: the log has them all.
        if found.marked is not None and not found.marked.lacking:
            seed.context = seed.context.merge(found.marked.vector)
            seed.state.append(found.seed((record.id, number), found.marked))
    return seed


@dataclass(slots=True)
class _Found:
    """What a changelog's records say."""

    place: str
    marked: Marker | None = None
    entries: dict[bytes, Entry] = field(default_factory=dict[bytes, Entry])
    tables: dict[str, Defined] = field(default_factory=dict[str, Defined])
    rows: dict[RowsOf, StoredRows] = field(default_factory=dict[RowsOf, StoredRows])

    def take_all(self, changelog: Changelog) -> None:
        for stored in changelog.read():
            match read_record(stored, self.place):
                case RowRecord() as row:
                    if row.of not in self.rows:
                        self.rows[row.of] = StoredRows(row.of, self.place)
                    self.rows[row.of].add(row)
                case EntryRecord(key, None):
                    self.entries.pop(key, None)
                case EntryRecord(key, Entry() as entry):
                    self.entries[key] = entry
                case Defined() as defined:
                    self.tables[defined.definition.table] = defined
                case Marker() as marked:
                    self.marked = marked
                case _:
                    pass
        self._check()

    def seed(self, partition: PartitionId, marked: Marker) -> StateSeed:
        return StateSeed(
            partition, marked.floor, marked.ceiling, self.entries.items, list(self.tables.values()), self._batches
        )

    def _batches(self) -> Iterator[tuple[str, RowBatch]]:
        for name, defined in self.tables.items():
            rows = self.rows.get(RowsOf(name, defined.kind_position))
            for batch in rows.batches(defined.definition) if rows is not None else ():
                yield name, batch

    def _check(self) -> None:
        if self.marked is None:
            if self.entries or self.rows:
                raise CorruptLog(f"the changelog {self.place} has items and no marker", item=self.place)
            return
        ceiling = self.marked.ceiling
        above = [repr(key) for key, entry in self.entries.items() if entry.position > ceiling]
        above += [f"rows of {of.table!r}" for of, rows in self.rows.items() if rows.highest > ceiling]
        if above:
            raise CorruptLog(
                f"the changelog {self.place} has items above its marker, {above[0]} for one",
                item=self.place,
                position=ceiling,
            )
        early = [name for name, defined in self.tables.items() if defined.position > self.marked.floor]
        if early:
            raise CorruptLog(
                f"the changelog {self.place} defines table {early[0]!r} above its floor",
                item=self.place,
                position=self.marked.floor,
            )


def _read(changelogs: Changelogs, record: TopicRecord, number: int) -> _Found:
    found = _Found(f"of {record.name}/{number}")
    changelog = changelogs.open((record.id, number), record.name, record.partitions)
    try:
        found.take_all(changelog)
    finally:
        changelog.close()
    return found
