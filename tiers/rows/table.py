"""The rows of one table in one state partition: a key, a vector, the optimizer's state, and the position that wrote them last.

One thread applies (`prepare`, `write`, `apply`, `delete`, `restore`, `load`, `alter`, `changed`, `clear`); any number of threads read
at the same time. One lock a table is held for one batch: a change of one event is seen whole or not at all by every look-up of up to
`PIECE_ROWS` keys, and a longer look-up is of one moment piece by piece.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidEvent
from ..budget import Budget
from .batch import RowBatch, empty_batch, joined, newest
from .credit import paid
from .dram import DramRows
from .index import RESERVED, Charge, Ints, Marks
from .kernels import kernels as chosen_kernels
from .kernels_numpy import Changed, NumpyKernels
from .noted import NotedKeys
from .spec import RowSpec
from .tier_counts import NO_COUNTS, TierCounts

PIECE_ROWS: Final = 16384
"""Rows that are read under the lock at a time, so that nobody waits long for it."""


_NOTHING: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class RowCounters:
    """What look-ups met since the table was made, in rows."""

    dram_hits: int = 0
    """Rows found in DRAM."""
    misses: int = 0
    """Keys that had no row: their initial values were given."""
    tiers: TierCounts = NO_COUNTS
    """Rows found on SSD, moved up and down, and not moved; all 0 without an ssd tier."""


class RowTable:
    """Rows of `spec` under int64 keys (any of them), under rule 3 of the design: a row changes only to a greater position."""

    def __init__(
        self, name: str, spec: RowSpec, budget: Budget, kernels: NumpyKernels | None = None, beside_bytes: int = 0
    ) -> None:
        """An empty table that charges `budget` for all it holds. `kernels`: those that the process uses.

        `beside_bytes` are charged for each slot in DRAM beside what it holds.

        The first table of a kind of optimizer may take seconds, if its kernels are compiled for the first time on this machine.
        """
        self.name: Final = name
        self._kernels: Final = kernels or chosen_kernels()
        self._kernels.make_ready(spec)
        self._budget = budget
        self._dram = DramRows(spec, budget, self._kernels, beside_bytes)
        self._lock = threading.Lock()
        self._prepared = _NOTHING, _NOTHING
        """The keys of the last `prepare`, and their slots."""
        self._reserved = _NOTHING
        """Slots taken for rows that are not there yet."""
        self._changed = NotedKeys()
        self.on_change: Callable[[Ints], None] | None = None
        """Told of the keys whose rows change, under the table's lock: nobody can read the change before it returns. For a tier above."""
        self._dram_hits: int = 0
        self._misses: int = 0

    @property
    def spec(self) -> RowSpec:
        """What the table is now."""
        return self._dram.columns.spec

    def __len__(self) -> int:
        """Rows that are there."""
        with self._lock:
            return len(self._dram.index) - len(self._reserved)

    @property
    def nbytes(self) -> int:
        """Bytes charged to DRAM: pages of rows in use, free slots too, state, positions and index."""
        return self._dram.nbytes

    def counters(self) -> RowCounters:
        """What look-ups met up to now."""
        with self._lock:
            return RowCounters(self._dram_hits, self._misses)

    # Any thread.

    def lookup(self, keys: Ints) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Values (n, dim) and whether each row is there (n,), in the order of `keys`, which may repeat. Copies.

        A row that is not there gives its initial value, and is not created. Counts as use.
        """
        keys = self._checked_keys(keys)
        values = np.empty((len(keys), self.spec.dim), self.spec.value_dtype)
        found = np.empty(len(keys), np.bool_)
        misses = 0
        for start in range(0, len(keys), PIECE_ROWS):
            piece = slice(start, start + PIECE_ROWS)
            misses += self._lookup_piece(keys[piece], values[piece], found[piece])
        if misses:
            values[~found] = self._kernels.initial_rows(self.spec, keys[~found])
        return values, found

    def prefetch(self, keys: Ints) -> int:
        """Moves rows up into DRAM ahead of their use, as far as there is room or can be made. Returns how many moved."""
        self._checked_keys(keys)
        return 0

    def pin(self, keys: Ints) -> Ints:
        """Brings the rows under `keys` into DRAM, and keeps them there until `unpin` or their end. Creates none.

        Returns the keys of those that are there, each once: what is handed to `unpin`. Raises `StorageFull` where they have no room
        together, and `CorruptTier`, with nothing pinned.
        """
        with self._lock:
            keys = np.unique(self._checked_keys(keys))
            return keys[self._are_there(self._dram.find(keys))]

    def unpin(self, keys: Ints) -> None:
        """Undoes the `pin` that returned these keys."""
        self._checked_keys(keys)

    def read(self, keys: Ints) -> RowBatch:
        """Whole rows as they are, in the order of `keys`, which may repeat; position 0 where there is none. Counts no use."""
        keys = self._checked_keys(keys)
        batch = empty_batch(self.spec, 0)
        pieces = [self._read_piece(keys[start : start + PIECE_ROWS]) for start in range(0, len(keys), PIECE_ROWS)]
        return joined(pieces) if pieces else batch

    def scan(self, rows: int = 65536) -> Iterator[RowBatch]:
        """Every row that is there all the while at least once, by batches of at most `rows`, in no order, while changes go on.

        A batch is of one moment (of `PIECE_ROWS` rows a piece), and each of later ones than the batch before. Rows written meanwhile
        may be missing or newer.
        """
        keys = self.keys()
        for start in range(0, len(keys), rows):
            batch = self.read(keys[start : start + rows])
            there = batch.positions > 0
            yield batch if there.all() else batch.take(there)

    def keys(self) -> Ints:
        """The keys of all rows, of one moment, in no order."""
        with self._lock:
            keys = self._dram.index.keys()
            return keys if not len(self._reserved) else keys[self._dram.find(keys) < RESERVED]

    # The applying thread.

    def prepare(self, keys: Ints) -> None:
        """Makes sure that the next change, of rows under `keys` (which may repeat), finds them and room for new ones in DRAM.

        Holds until that change or the next `prepare`. Raises `StorageFull` with nothing changed.
        """
        keys = self._checked_keys(keys)
        with self._lock:
            self._let_go()
        self._hold(keys)

    def write(self, keys: Ints, rows: NDArray[Any], position: int, images: bool) -> RowBatch | None:
        """Gives rows (n, dim) of the table's dtype to `keys`; of a key that repeats, the last row. State stays as it is.

        A row that is not there is created. With `images` returns the rows that were changed as they were before, for `restore`.
        Raises `StorageFull` and `InvalidEvent` with nothing changed.
        """
        keys = self._checked_keys(keys)
        rows = self._checked_rows(keys, rows)
        kernels, columns = self._kernels, self._dram.columns
        slots = self._hold(keys)
        with self._lock:
            folded = kernels.fold(slots)
            return self._changed_now(keys, kernels.write(columns, folded, rows, position, images))

    def apply(self, keys: Ints, grads: NDArray[Any], position: int, images: bool) -> RowBatch | None:
        """Has the optimizer change the rows under `keys` by gradients (n, dim) of the table's dtype.

        Those of a key that repeats are first summed, in the order given and in the table's accumulate dtype, and applied once. A row
        that is not there starts from its initial value. Returns and raises as `write`; `InvalidEvent` too where there is no optimizer.
        """
        keys = self._checked_keys(keys)
        grads = self._checked_rows(keys, grads)
        optimizer = self.spec.optimizer
        if optimizer is None:
            raise InvalidEvent(
                "gradients need a table with an optimizer", item=self.name, remedy="Give it one by alter_table"
            )
        kernels, columns = self._kernels, self._dram.columns
        slots = self._hold(keys)
        with self._lock:
            folded = kernels.fold(slots)
            return self._changed_now(keys, kernels.apply(optimizer, columns, folded, grads, position, images))

    def delete(self, keys: Ints, position: int, up_to: int | None = None, images: bool = False) -> RowBatch | None:
        """Removes the rows under `keys`; with `up_to` only those last written at or below that position. Returns as `write`."""
        keys = self._checked_keys(keys)
        with self._lock:
            self._let_go()
            slots = self._dram.find(keys)
            slots = self._kernels.fold(slots[slots >= 0]).slots
            positions = self._dram.positions[slots]
            goes = positions < np.uint64(position)
            if up_to is not None:
                goes &= positions <= np.uint64(up_to)
            slots = slots[goes]
            before = self._dram.batch(slots) if images else None
            self._note(self._dram.keys[slots])
            self._dram.release(slots)
            return before

    def restore(self, before: RowBatch) -> None:
        """Puts rows back as they were before a change (unique keys), whatever the positions; position 0 removes the row.

        Steps are restored in the reverse of their order. Never refused: the budget is charged even past its limit.
        """
        with self._lock:
            self._let_go()
            slots, gone = self._dram.find(before.keys), before.positions == 0
            self._dram.release(slots[gone & (slots >= 0)])
            there = before.take(~gone)
            slots = slots[~gone]
            missing = slots < 0
            slots[missing] = self._dram.reserve(there.keys[missing], partial(self._budget.charge, forced=True))
            self._dram.settle(slots[missing])
            self._dram.put(slots, there)
            self._note(before.keys)

    def load(self, batch: RowBatch) -> None:
        """Puts whole rows in as they are, each where its position is greater than that of the row held.

        State of another kind of optimizer than the table's starts anew. Keys may repeat: the greatest position counts. Raises
        `StorageFull` with nothing changed.
        """
        batch = newest(batch)
        slots = self._hold(batch.keys)
        with self._lock:
            newer = batch.positions > self._dram.positions[slots]
            if not newer.all():
                slots, batch = slots[newer], batch.take(newer)
            self._dram.put(slots, batch)
            self._changed_now(batch.keys, Changed(slots, np.arange(len(slots)), None))

    def alter(self, spec: RowSpec) -> None:
        """The table's optimizer and initial values are those of `spec` from now on. Another *kind* of optimizer starts the state anew.

        Raises `InvalidEvent` for another dim or dtype, and `StorageFull`, with nothing changed.
        """
        if (spec.dim, spec.dtype) != (self.spec.dim, self.spec.dtype):
            raise InvalidEvent("a table keeps its dim and its dtype", item=self.name)
        self._kernels.make_ready(spec)
        with self._lock:
            # What was reserved begins as the old spec has it.
            self._let_go()
        state = self._dram.fresh_state(spec)
        with self._lock:
            self._dram.alter(spec, state)
            self._altered(spec)

    def _altered(self, spec: RowSpec) -> None:
        """Under the lock: what lies in DRAM is of `spec` now."""

    def changed(self) -> Ints:
        """The keys written, removed or put back since the last call, each once. None is noted before the first call."""
        return self._changed.take()

    def clear(self) -> None:
        """Removes all rows, and gives their bytes back."""
        with self._lock:
            self._let_go()
            self._note(self._dram.index.keys())
            self._dram.clear()

    # The applying thread, without the lock.

    def _hold(self, keys: Ints) -> Ints:
        """The slot of each key, until `_let_go`; for rows that are not there slots are reserved."""
        if self._is_prepared(keys):
            return self._prepared[1]
        self._changed.compact()
        with self._lock:
            slots = self._dram.find(keys)
        if len(slots) and slots.min() < 0:
            new = np.unique(keys[slots < 0])

            def reserve(charge: Charge) -> Ints:
                self._reserved = np.concatenate((self._reserved, self._dram.reserve(new, charge)))
                return self._dram.find(keys)

            slots = paid(self._budget, self._lock, lambda: self._dram.growth_bytes(len(new), len(new)), reserve)
        if len(self._reserved):
            slots &= RESERVED - 1
        self._prepared = keys.copy(), slots
        return slots

    def _is_prepared(self, keys: Ints) -> bool:
        return len(self._prepared[0]) == len(keys) and np.array_equal(self._prepared[0], keys)

    # Under the lock.

    def _let_go(self) -> None:
        """Ends what was prepared: rows that came to be are there for readers from now on, other slots are free again."""
        self._prepared = _NOTHING, _NOTHING
        if len(self._reserved):
            written = self._dram.positions[self._reserved] > 0
            self._dram.settle(self._reserved[written])
            self._dram.release(self._reserved[~written])
            self._reserved = _NOTHING

    def _changed_now(self, keys: Ints, changed: Changed) -> RowBatch | None:
        """Rows under `keys` have changed. Returns what they were, if that was asked for."""
        keys, before = keys[changed.places], changed.before
        self._note(keys)
        self._let_go()
        return None if before is None else RowBatch(keys, before.values, before.state, self.spec.kind, before.positions)

    def _note(self, keys: Ints) -> None:
        self._changed.note(keys)
        if self.on_change is not None and len(keys):
            self.on_change(keys)

    def _are_there(self, slots: Ints) -> Marks:
        return (slots >= 0) & (slots < RESERVED)

    def _read_hot(self, keys: Ints) -> RowBatch:
        slots = self._dram.find(keys)
        slots[~self._are_there(slots)] = -1
        rows = self._kernels.before(self._dram.columns, np.maximum(slots, 0))
        rows.positions[slots < 0] = 0
        return RowBatch(keys.copy(), rows.values, rows.state, self.spec.kind, rows.positions)

    # With the lock free.

    def _read_piece(self, keys: Ints) -> RowBatch:
        with self._lock:
            return self._read_hot(keys)

    def _lookup_piece(self, keys: Ints, values: NDArray[Any], found: Marks) -> int:
        """Fills in what is there. Returns how many rows are not."""
        with self._lock:
            self._dram.index.lookup(keys, self._dram.columns.values, values, found)
            hits = int(np.count_nonzero(found))
            self._dram_hits += hits
            self._misses += len(found) - hits
        return len(found) - hits

    # What is handed in.

    def _checked_keys(self, keys: Ints) -> Ints:
        if keys.dtype != np.int64 or keys.ndim != 1:
            raise InvalidEvent(f"row keys are int64 of one dimension, not {keys.dtype} {keys.shape}", item=self.name)
        return np.ascontiguousarray(keys)

    def _checked_rows(self, keys: Ints, rows: NDArray[Any]) -> NDArray[Any]:
        expected, dtype = (len(keys), self.spec.dim), self.spec.value_dtype
        if rows.shape != expected or rows.dtype != dtype:
            raise InvalidEvent(
                f"the rows are {rows.dtype} {rows.shape}; the table needs {dtype} {expected}", item=self.name
            )
        return np.ascontiguousarray(rows)
