"""The rows of one table in one state partition: a key, a vector, the optimizer's state, and the position that wrote them last.

One thread applies (`prepare`, `write`, `apply`, `delete`, `restore`, `load`, `alter`, `changed`, `clear`); any number of threads read
at the same time. One lock a table is held for one batch: a change of one event is seen whole or not at all by every look-up of up to
`PIECE_ROWS` keys, and a longer look-up is of one moment piece by piece.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidEvent
from ..budget import Budget
from .batch import RowBatch, empty_batch
from .dram import DramRows
from .initial import initial_rows
from .kernels_numpy import fold, last_places, sum_repeated
from .optimizers import step
from .spec import RowSpec

PIECE_ROWS: Final = 16384
"""Rows that are read under the lock at a time, so that nobody waits long for it."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowCounters:
    """What look-ups met since the table was made, in rows."""

    dram_hits: int = 0
    """Rows found in DRAM."""
    misses: int = 0
    """Keys that had no row: their initial values were given."""


class RowTable:
    """Rows of `spec` under int64 keys (any of them), under rule 3 of the design: a row changes only to a greater position."""

    def __init__(self, name: str, spec: RowSpec, budget: Budget) -> None:
        """An empty table that charges `budget` for all it holds."""
        self.name: Final = name
        self._dram = DramRows(spec, budget)
        self._lock = threading.Lock()
        self._reserved: Ints = np.empty(0, np.int64)
        """Slots that the last `prepare` took for rows that are not there yet."""
        self._absent = 0
        """Of these, those still without a row."""
        self._changed: list[Ints] | None = None
        self.on_change: Callable[[Ints], None] | None = None
        """Told of the keys whose rows change, under the table's lock: nobody can read the change before it returns. For a tier above."""
        self._dram_hits = 0
        self._misses = 0

    @property
    def spec(self) -> RowSpec:
        """What the table is now."""
        return self._dram.spec

    def __len__(self) -> int:
        """Rows that are there."""
        with self._lock:
            return len(self._dram.index) - self._absent

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
        for start in range(0, len(keys), PIECE_ROWS):
            piece = slice(start, start + PIECE_ROWS)
            with self._lock:
                slots = self._dram.find(keys[piece])
                found[piece] = self._are_there(slots)
                np.take(self._dram.values, slots, axis=0, out=values[piece], mode="clip")
                hits = int(np.count_nonzero(found[piece]))
                self._dram_hits += hits
                self._misses += len(slots) - hits
        if not found.all():
            values[~found] = initial_rows(self.spec, keys[~found])
        return values, found

    def prefetch(self, keys: Ints) -> int:
        """Moves rows up ahead of their use. Returns how many moved."""
        self._checked_keys(keys)
        return 0

    def read(self, keys: Ints) -> RowBatch:
        """Whole rows as they are, in the order of `keys`, which may repeat; position 0 where there is none. Counts no use."""
        keys = self._checked_keys(keys)
        batch = empty_batch(self.spec, 0)
        pieces = [self._read_piece(keys[start : start + PIECE_ROWS]) for start in range(0, len(keys), PIECE_ROWS)]
        return _joined(pieces) if pieces else batch

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
            if not self._absent:
                return keys
            return keys[self._are_there(self._dram.find(keys))]

    # The applying thread.

    def prepare(self, keys: Ints) -> None:
        """Makes sure that the next change, of rows under `keys` (which may repeat), finds them and room for new ones in DRAM.

        Holds until that change or the next `prepare`. Raises `StorageFull` with nothing changed.
        """
        keys = self._checked_keys(keys)
        with self._lock:
            self._let_go()
            self._slots_for(keys)

    def write(self, keys: Ints, rows: NDArray[Any], position: int, images: bool) -> RowBatch | None:
        """Gives rows (n, dim) of the table's dtype to `keys`; of a key that repeats, the last row. State stays as it is.

        A row that is not there is created. With `images` returns the rows that were changed as they were before, for `restore`.
        Raises `StorageFull` and `InvalidEvent` with nothing changed.
        """
        keys = self._checked_keys(keys)
        self._check_rows(keys, rows, self.spec.value_dtype)
        with self._lock:
            slots, owner = fold(self._slots_for(keys))
            rows = rows[last_places(owner, len(slots))]
            older = self._dram.positions[slots] < np.uint64(position)
            slots, rows = slots[older], rows[older]
            before = self._images(slots) if images else None
            self._dram.values[slots] = rows
            self._changed_now(slots, position)
            return before

    def apply(self, keys: Ints, grads: NDArray[Any], position: int, images: bool) -> RowBatch | None:
        """Has the optimizer change the rows under `keys` by gradients (n, dim) of the table's dtype.

        Those of a key that repeats are first summed, in the order given and in the table's accumulate dtype, and applied once. A row
        that is not there starts from its initial value. Returns and raises as `write`; `InvalidEvent` too where there is no optimizer.
        """
        keys = self._checked_keys(keys)
        self._check_rows(keys, grads, self.spec.value_dtype)
        optimizer = self.spec.optimizer
        if optimizer is None:
            raise InvalidEvent(
                "gradients need a table with an optimizer", item=self.name, remedy="Give it one by alter_table"
            )
        exact = self.spec.accumulate_dtype
        with self._lock:
            slots, owner = fold(self._slots_for(keys))
            sums = sum_repeated(grads, owner, len(slots), exact)
            older = self._dram.positions[slots] < np.uint64(position)
            slots, sums = slots[older], sums[older]
            before = self._images(slots) if images else None
            values, state = self._dram.values[slots].astype(exact), self._dram.state[slots]
            step(optimizer, values, state, sums)
            with np.errstate(all="ignore"):
                self._dram.values[slots] = values.astype(self.spec.value_dtype)
            self._dram.state[slots] = state
            self._changed_now(slots, position)
            return before

    def delete(self, keys: Ints, position: int, up_to: int | None = None, images: bool = False) -> RowBatch | None:
        """Removes the rows under `keys`; with `up_to` only those last written at or below that position. Returns as `write`."""
        keys = self._checked_keys(keys)
        with self._lock:
            self._let_go()
            slots = self._dram.find(keys)
            slots, _ = fold(slots[slots >= 0])
            goes = self._dram.positions[slots] < np.uint64(position)
            if up_to is not None:
                goes &= self._dram.positions[slots] <= np.uint64(up_to)
            slots = slots[goes]
            before = self._images(slots) if images else None
            self._note(self._dram.keys[slots])
            self._dram.release(slots)
            return before

    def restore(self, before: RowBatch) -> None:
        """Puts rows back as they were before a change (unique keys), whatever the positions; position 0 removes the row.

        Steps are restored in the reverse of their order. Never refused: the budget is charged even past its limit.
        """
        with self._lock:
            self._let_go()
            slots = self._dram.find(before.keys)
            gone = before.positions == 0
            self._note(before.keys)
            self._dram.release(slots[gone & (slots >= 0)])
            self._put(before.take(~gone), forced=True)

    def load(self, batch: RowBatch) -> None:
        """Puts whole rows in as they are, each where its position is greater than that of the row held.

        State of another kind of optimizer than the table's starts anew. Keys may repeat: the greatest position counts. Raises
        `StorageFull` with nothing changed.
        """
        with self._lock:
            self._let_go()
            batch = batch.take(np.argsort(batch.positions, kind="stable")[::-1])
            _, first = np.unique(batch.keys, return_index=True)
            batch = batch.take(np.sort(first))
            slots = self._dram.find(batch.keys)
            held = np.where(slots >= 0, self._dram.positions[np.maximum(slots, 0)], np.uint64(0))
            batch = batch.take(batch.positions > held)
            self._put(batch, forced=False)
            self._note(batch.keys)

    def alter(self, spec: RowSpec) -> None:
        """The table's optimizer and initial values are those of `spec` from now on. Another *kind* of optimizer starts the state anew.

        Raises `InvalidEvent` for another dim or dtype, and `StorageFull`, with nothing changed.
        """
        if (spec.dim, spec.dtype) != (self.spec.dim, self.spec.dtype):
            raise InvalidEvent("a table keeps its dim and its dtype", item=self.name)
        with self._lock:
            self._let_go()
            self._dram.alter(spec)

    def changed(self) -> Ints:
        """The keys written, removed or put back since the last call, each once. None is noted before the first call."""
        with self._lock:
            changed, self._changed = self._changed, []
            return np.unique(np.concatenate(changed)) if changed else np.empty(0, np.int64)

    def clear(self) -> None:
        """Removes all rows, and gives their bytes back."""
        with self._lock:
            self._let_go()
            self._note(self._dram.index.keys())
            self._dram.clear()

    # Under the lock.

    def _slots_for(self, keys: Ints) -> Ints:
        """The slot of each key; rows that are not there are reserved."""
        slots = self._dram.find(keys)
        missing = slots < 0
        if missing.any():
            reserved = self._dram.reserve(np.unique(keys[missing]))
            self._reserved = np.concatenate((self._reserved, reserved))
            self._absent += len(reserved)
            slots = self._dram.find(keys)
        return slots

    def _let_go(self) -> None:
        """Gives up what was reserved and not written."""
        if self._absent:
            self._dram.release(self._reserved[self._dram.positions[self._reserved] == 0])
        self._reserved = self._reserved[:0]
        self._absent = 0

    def _changed_now(self, slots: Ints, position: int) -> None:
        self._dram.positions[slots] = position
        self._note(self._dram.keys[slots])
        self._let_go()

    def _note(self, keys: Ints) -> None:
        if self._changed is not None and len(keys):
            self._changed.append(keys.copy())
        if self.on_change is not None and len(keys):
            self.on_change(keys)

    def _put(self, batch: RowBatch, *, forced: bool) -> None:
        slots = self._dram.find(batch.keys)
        missing = slots < 0
        if missing.any():
            slots[missing] = self._dram.reserve(batch.keys[missing], forced=forced)
        self._dram.values[slots] = batch.values
        self._dram.state[slots] = batch.state if batch.kind == self.spec.kind else self.spec.initial_state
        self._dram.positions[slots] = batch.positions

    def _images(self, slots: Ints) -> RowBatch:
        dram = self._dram
        return RowBatch(dram.keys[slots], dram.values[slots], dram.state[slots], self.spec.kind, dram.positions[slots])

    def _are_there(self, slots: Ints) -> NDArray[np.bool_]:
        return (slots >= 0) & (self._dram.positions[np.maximum(slots, 0)] > 0)

    def _read_piece(self, keys: Ints) -> RowBatch:
        with self._lock:
            slots = self._dram.find(keys)
            batch = self._images(np.maximum(slots, 0))
            batch.positions[slots < 0] = 0
        return RowBatch(keys.copy(), batch.values, batch.state, batch.kind, batch.positions)

    # What is handed in.

    def _checked_keys(self, keys: Ints) -> Ints:
        if keys.dtype != np.int64 or keys.ndim != 1:
            raise InvalidEvent(f"row keys are int64 of one dimension, not {keys.dtype} {keys.shape}", item=self.name)
        return np.ascontiguousarray(keys)

    def _check_rows(self, keys: Ints, rows: NDArray[Any], dtype: np.dtype[Any]) -> None:
        expected = (len(keys), self.spec.dim)
        if rows.shape != expected or rows.dtype != dtype:
            raise InvalidEvent(
                f"the rows are {rows.dtype} {rows.shape}; the table needs {dtype} {expected}", item=self.name
            )


def _joined(pieces: list[RowBatch]) -> RowBatch:
    """One batch of several; an alter of the optimizer's kind between two of them leaves the later kind's rows only in state."""
    return RowBatch(
        np.concatenate([piece.keys for piece in pieces]),
        np.concatenate([piece.values for piece in pieces]),
        np.concatenate([piece.state for piece in pieces]),
        pieces[-1].kind,
        np.concatenate([piece.positions for piece in pieces]),
    )
