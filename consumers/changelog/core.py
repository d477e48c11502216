"""What of one state partition is to be flushed to its changelog, and what the marker then says. No I/O, no clock.

A writer that is new knows what the changelog holds, item by item. It flushes nothing before its own state has reached the
ceiling of the last marker: until then the changelog is ahead of it, and it would write older values over newer ones. From
there on whatever differs is dirty, and then whatever changes.

Where a table gets an optimizer of another kind, all its rows are written anew under the position of that change, beside those of the
kind before, which stay as they are: whoever restores before the flush is whole begins with the old rows and the old definition. The
definitions move with the floor alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ...consistency.position import START
from ...consistency.vector import VersionVector
from ...tiers.entries import Entry
from ...tiers.rows.batch import RowBatch
from ..definitions import Defined
from .held import HeldRows
from .records import AnyRecord, EntryRecord, Marker, RowRecord, RowsOf, marker

Ints = npt.NDArray[np.int64]

NO_KEYS: Ints = np.empty(0, np.int64)


@dataclass(slots=True)
class Held:
    """What a changelog holds, taken in record by record."""

    entries: dict[bytes, int] = field(default_factory=dict[bytes, int])
    """Key → the position that wrote it."""
    rows: dict[RowsOf, HeldRows] = field(default_factory=dict[RowsOf, HeldRows])
    tables: dict[str, Defined] = field(default_factory=dict[str, Defined])
    marked: Marker | None = None

    def take(self, record: AnyRecord) -> None:
        match record:
            case RowRecord():
                self.rows.setdefault(record.of, HeldRows()).add(record)
            case EntryRecord(key, None):
                self.entries.pop(key, None)
            case EntryRecord(key, Entry() as entry):
                self.entries[key] = entry.position
            case Defined():
                self.tables[record.definition.table] = record
            case Marker():
                self.marked = record
            case _:
                pass


@dataclass(frozen=True, slots=True)
class Batch:
    """Items to be written together, each as it is by then."""

    keys: list[bytes]
    """Of entries."""
    is_last: bool
    """With it, all that was dirty when the flush began is written."""
    rows: tuple[tuple[RowsOf, Ints], ...] = ()
    tables: tuple[Defined, ...] = ()
    """Definitions that change with it."""


class _Compared:
    """What a changelog holds of a table against what the table has."""

    def __init__(self, held: HeldRows | None) -> None:
        self._keys, self._positions = (NO_KEYS, np.empty(0, np.uint64)) if held is None else held.last()
        self._seen = np.zeros(len(self._keys), np.bool_)

    def differing(self, batch: RowBatch) -> Ints:
        at = np.searchsorted(self._keys, batch.keys)
        is_held = at < len(self._keys)
        is_held[is_held] = self._keys[at[is_held]] == batch.keys[is_held]
        self._seen[at[is_held]] = True
        same = is_held.copy()
        same[is_held] = self._positions[at[is_held]] == batch.positions[is_held]
        return batch.keys[~same]

    def gone(self) -> Ints:
        return self._keys[~self._seen]


@dataclass(slots=True)
class _DirtyRows:
    """Keys to be written, those that were dirty when the flush began (`front`) before those that came since."""

    front: Ints = field(default_factory=lambda: NO_KEYS)
    back: list[Ints] = field(default_factory=list[Ints])

    def __bool__(self) -> bool:
        return len(self.front) > 0 or bool(self.back)

    def add(self, keys: Ints) -> None:
        if len(keys):
            self.back.append(keys)

    def begin(self) -> None:
        """A flush begins."""
        self.front, self.back = np.unique(np.concatenate([self.front, *self.back])), []


class ChangelogCore:
    """Of one partition; made anew each time that the writer is opened."""

    def __init__(self, held: Held) -> None:
        """`held`: what the changelog holds."""
        self._held: dict[bytes, int] | None = dict(held.entries)
        self._held_rows = dict(held.rows)
        """Not compared yet."""
        self._tables = dict(held.tables)
        """As the changelog has them."""
        self._wanted: Mapping[str, Defined] = {}
        """As they were when the flush began."""
        last = held.marked
        self._floor, self._ceiling = (last.floor, last.ceiling) if last is not None else (START, START)
        if last is not None and last.lacking:
            self._floor = START
        self._dirty: dict[bytes, None] = {}
        """In the order in which they came, so that no key waits for ever behind those that change all the time."""
        self._rows: dict[RowsOf, _DirtyRows] = {}
        """Of tables that were compared."""
        self._stale: dict[RowsOf, Ints] = {}
        """Rows in the changelog under another kind position than the table has: removed once the definition has moved."""
        self._begun = START
        """What was dirty at the position `_begun` comes first: `_left` keys, and the fronts of rows."""
        self._left = 0

    @property
    def floor(self) -> int:
        """What lies at or below it need not stay in the log, as far as this changelog goes."""
        return self._floor

    @property
    def ceiling(self) -> int:
        return self._ceiling

    @property
    def is_dirty(self) -> bool:
        return bool(self._dirty) or any(self._rows.values()) or self._wanted != self._tables

    def may_flush(self, position: int) -> bool:
        """Whether the writer's own state, applied and durable up to `position`, is not behind the changelog."""
        return position >= self._ceiling

    def compare(self, entries: Iterable[tuple[bytes, Entry]]) -> None:
        """Once, before the first flush: all that differs between these entries and the changelog is dirty."""
        held, self._held = self._held, None
        if held is None:
            return
        for key, entry in entries:
            if held.pop(key, None) != entry.position:
                self._dirty[key] = None
        # What is left is gone from the state: without a tombstone it would come back.
        self._dirty.update(dict.fromkeys(held))

    @property
    def is_compared(self) -> bool:
        return self._held is None

    def is_tracked(self, of: RowsOf) -> bool:
        """Whether rows were compared: from then on `begin` is told of what changes."""
        return of in self._rows

    def compare_rows(self, of: RowsOf, batches: Iterable[RowBatch]) -> None:
        """All that differs between these rows, which are all there are, and the changelog is dirty. What changes while they are read
        is told to the next `begin`.
        """
        compared, dirty = _Compared(self._held_rows.pop(of, None)), _DirtyRows()
        keys = list[Ints]()
        for batch in batches:
            keys.append(batch.keys)
            dirty.add(compared.differing(batch))
        dirty.add(compared.gone())
        for other in [each for each in self._rows if each.table == of.table]:
            # Its rows are those of the kind before now. What was removed since is found when the changelog is next opened.
            del self._rows[other]
            self._stale[other] = np.concatenate([NO_KEYS, *keys])
        for other in [each for each in self._held_rows if each.table == of.table]:
            self._stale[other] = self._held_rows.pop(other).last()[0]
        self._rows[of] = dirty

    def begin(
        self,
        changed: Iterable[bytes],
        position: int,
        rows: Mapping[RowsOf, Ints] | None = None,
        tables: Mapping[str, Defined] | None = None,
    ) -> None:
        """These items changed too, up to `position`, where the tables are `tables`. A flush begins where none is under way, or where
        a table has got an optimizer of another kind since.
        """
        self._dirty.update(dict.fromkeys(changed))
        for of, keys in (rows or {}).items():
            self._rows[of].add(keys)
        tables = tables or {}
        is_mixed = any(
            name in tables and tables[name].kind_position != defined.kind_position
            for name, defined in self._wanted.items()
        )
        if is_mixed or not self._is_under_way:
            self._begun, self._left, self._wanted = position, len(self._dirty), dict(tables)
            for dirty in self._rows.values():
                dirty.begin()

    @property
    def _is_under_way(self) -> bool:
        return self._left > 0 or any(len(dirty.front) for dirty in self._rows.values())

    def next_batch(self, most: int) -> Batch:
        """The next items, at most so many; none where nothing is dirty. They stay dirty until `written`."""
        count = min(most, self._left)
        keys = [key for key, _ in zip(self._dirty, range(count), strict=False)]
        rows, left = list[tuple[RowsOf, Ints]](), most - count
        for of, dirty in self._rows.items():
            if left and len(dirty.front):
                rows.append((of, dirty.front[:left]))
                left -= len(rows[-1][1])
        return self._batch(keys, tuple(rows))

    def cut(self, batch: Batch, keys: int, rows: int) -> Batch:
        """The first so many entries and rows of a batch."""
        kept, left = list[tuple[RowsOf, Ints]](), rows
        for of, some in batch.rows:
            if left:
                kept.append((of, some[:left]))
                left -= len(kept[-1][1])
        return self._batch(batch.keys[:keys], tuple(kept))

    def _batch(self, keys: list[bytes], rows: tuple[tuple[RowsOf, Ints], ...]) -> Batch:
        fronts = sum(len(dirty.front) for dirty in self._rows.values())
        is_last = len(keys) == self._left and sum(len(some) for _, some in rows) == fronts
        moved = [defined for name, defined in self._wanted.items() if self._tables.get(name) != defined]
        return Batch(keys, is_last, rows, tuple(moved) if is_last else ())

    def is_of(self, batch: Batch, tables: Mapping[str, Defined]) -> bool:
        """Whether rows that were looked up before this moment, at which the tables are `tables`, are of the kind that they are
        written as. If not, a flush is to begin anew.
        """
        return all(
            of.kind_position == tables[of.table].kind_position for of, _ in batch.rows if not self.is_removed(of)
        )

    def is_removed(self, of: RowsOf) -> bool:
        """Whether these rows are only removed."""
        wanted = self._wanted.get(of.table)
        return wanted is None or wanted.kind_position != of.kind_position

    def marker(self, batch: Batch, position: int, context: VersionVector[int]) -> Marker:
        """Of the batch, whose items were looked up while the state stood at `position` or before."""
        floor = max(self._floor, self._begun) if batch.is_last else self._floor
        return marker(floor, max(self._ceiling, position), context)

    def written(self, batch: Batch, marked: Marker) -> None:
        """The batch and its marker stand. Items that changed again meanwhile are said to have changed by the next `begin`."""
        for key in batch.keys:
            del self._dirty[key]
        self._left -= len(batch.keys)
        for of, some in batch.rows:
            dirty = self._rows[of]
            dirty.front = dirty.front[len(some) :]
            if self.is_removed(of) and not dirty:
                del self._rows[of]
        self._floor, self._ceiling = marked.floor, marked.ceiling
        self._tables.update({defined.definition.table: defined for defined in batch.tables})
        if batch.is_last:
            self._remove_stale()

    def _remove_stale(self) -> None:
        """The definitions have moved on: rows of the kinds before are of no use to anybody."""
        for of in list(self._stale):
            now = self._tables.get(of.table)
            if now is not None and now.kind_position != of.kind_position:
                self._rows[of] = _DirtyRows(back=[self._stale.pop(of)])
