"""Rows in DRAM: slots in columns (key, position, value, state), the index over them, and what they are charged for.

Everything here is used under the lock of the table that it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ..budget import Budget
from .batch import RowBatch
from .columns import Column
from .index import RESERVED, Charge, Ints
from .kernels_numpy import Columns, NumpyKernels, Positions
from .spec import RowSpec

_LEAST_GROWTH: Final = 64
"""Slots that are added at least, so that a table that grows row by row is not charged row by row,"""
_LEAST_GROWTH_BYTES: Final = 64 << 10
"""where they take no more than that: a few rows of ten thousand numbers are to find room in a small budget."""
_GROWTH_SHARE: Final = 32
"""Else so small a part of the slots is added: columns grow in place, so that costs little,"""
_MOST_GROWTH: Final = 1 << 16
"""and at most that many more than are needed."""
_SPARE_SLOTS: Final = 1 << 17
"""Addresses beyond what the budget allows, for an undo that is charged past its limit."""


@dataclass(frozen=True, slots=True)
class FreshState:
    """State that is about to take the place of another."""

    column: Column
    filled: int
    """Slots whose state it has."""


class DramRows:
    """The slots of one table. A slot whose position is 0 holds no row: it is free, or reserved for the change that is to come."""

    def __init__(self, spec: RowSpec, budget: Budget, kernels: NumpyKernels, beside_bytes: int = 0) -> None:
        """`beside_bytes`: charged for each slot beside its columns, for what the table's tiers note of it."""
        self.kernels: Final = kernels
        self._beside_bytes = beside_bytes
        self.index = kernels.new_index(budget.limit)
        """Key → location, over all tiers of the table."""
        self._budget = budget
        self._charged = 0
        self._make_columns(spec)

    def _make_columns(self, spec: RowSpec) -> None:
        row_bytes = spec.dim * spec.value_dtype.itemsize + spec.state_width * spec.accumulate_dtype.itemsize + 16
        self.capacity = self._budget.limit // row_bytes + _SPARE_SLOTS
        """Slots that there are addresses for."""
        while True:
            try:
                self._keys = Column(self.capacity, 1, np.dtype(np.int64))
                self._positions = Column(self.capacity, 1, np.dtype(np.uint64))
                self._values = Column(self.capacity, spec.dim, spec.value_dtype)
                self._state = Column(self.capacity, spec.state_width, spec.accumulate_dtype)
                self._free = Column(self.capacity, 1, np.dtype(np.int64))
            except OSError:
                if self.capacity <= _SPARE_SLOTS:
                    raise
                self.capacity = max(self.capacity // 2, _SPARE_SLOTS)
            else:
                break
        self._begin()
        self._name_columns(spec)

    def _begin(self) -> None:
        self.top = 0
        """Slots that were ever used: those at and above are untouched memory."""
        self._usable = 0
        self._free_count = 0

    def _name_columns(self, spec: RowSpec) -> None:
        self.columns = Columns(
            spec, self._keys.array[:, 0], self._positions.array[:, 0], self._values.array, self._state.array
        )
        """The memory, by slot: made anew by `alter`."""

    @property
    def nbytes(self) -> int:
        """Bytes charged to the budget: the columns' pages in use, free slots too, and the index."""
        return self._charged

    @property
    def spec(self) -> RowSpec:
        """What the rows are now."""
        return self.columns.spec

    @property
    def keys(self) -> Ints:
        """(capacity,): the key of each slot."""
        return self.columns.keys

    @property
    def positions(self) -> Positions:
        """(capacity,): the position that last wrote each slot's row; 0 in a slot without one."""
        return self.columns.positions

    @property
    def usable(self) -> int:
        """Slots that are charged for: those in use, and the free ones."""
        return self._usable

    @property
    def slot_bytes(self) -> int:
        """What one slot takes, in whole pages of many."""
        return sum(column.item_bytes for column in self._row_columns) + self._beside_bytes

    @property
    def free(self) -> int:
        """Slots that can be taken without being charged for."""
        return self._free_count + self._usable - self.top

    def find(self, keys: Ints) -> Ints:
        """The location of each key."""
        return self.index.find(keys)

    def growth_bytes(self, count: int, new_keys: int) -> int:
        """About what is charged when `count` slots are taken, `new_keys` of them for keys that the index does not have."""
        return self._growth_bytes(self._usable_for(count)) + self.index.growth_bytes(new_keys)

    def reserve(self, keys: Ints, charge: Charge) -> Ints:
        """Takes a slot for each of the keys, none of which is there and none of which repeats, and returns the slots.

        They hold the rows' initial value and state, and position 0; readers find no row until `settle`. Raises what `charge` raises,
        with no row changed.
        """
        slots, usable = self._next(len(keys)), self._usable_for(len(keys))
        growth = self._growth_bytes(usable)
        charge(growth)
        self._charged += growth
        held = self.index.nbytes
        try:
            self.index.insert(keys, slots + RESERVED, charge)
        except BaseException:
            self._refund(growth)
            raise
        finally:
            self._charged += self.index.nbytes - held
        self._take(slots, usable)
        columns = self.columns
        columns.keys[slots] = keys
        columns.positions[slots] = 0
        self.kernels.scatter(columns.values, slots, self.kernels.initial_rows(columns.spec, keys), np.arange(len(keys)))
        columns.state[slots] = columns.spec.initial_state
        return slots

    def place(self, batch: RowBatch, charge: Charge) -> Ints:
        """Takes slots for rows that lie in a tier further down (unique keys), puts them in, and returns the slots.

        Raises what `charge` raises, with nothing changed.
        """
        slots, usable = self._next(len(batch)), self._usable_for(len(batch))
        growth = self._growth_bytes(usable)
        charge(growth)
        self._charged += growth
        self._take(slots, usable)
        self.columns.keys[slots] = batch.keys
        self.put(slots, batch)
        self.index.move(batch.keys, slots)
        return slots

    def put(self, slots: Ints, batch: RowBatch) -> None:
        """Gives slots whole rows. State of another kind of optimizer starts anew."""
        columns, every = self.columns, np.arange(len(slots))
        self.kernels.scatter(columns.values, slots, batch.values, every)
        if batch.kind == columns.spec.kind:
            self.kernels.scatter(columns.state, slots, batch.state, every)
        else:
            columns.state[slots] = columns.spec.initial_state
        columns.positions[slots] = batch.positions

    def batch(self, slots: Ints) -> RowBatch:
        """A copy of whole rows."""
        columns, rows = self.columns, self.kernels.before(self.columns, slots)
        return RowBatch(columns.keys[slots], rows.values, rows.state, columns.spec.kind, rows.positions)

    def hand_down(self, slots: Ints, locations: Ints) -> None:
        """Gives slots up whose rows lie at `locations`, further down, from now on. They stay charged, for the next rows."""
        self.index.move(self.columns.keys[slots], locations)
        self._give_back(slots)

    def usable_without(self, nbytes: int) -> int:
        """How many slots are left when at least `nbytes` are given back; 0 where all slots are not enough."""
        usable, held = self._usable, self._slot_bytes(self._usable)
        step = max(nbytes // self.slot_bytes, usable // 256, 1)
        while usable and held - self._slot_bytes(usable) < nbytes:
            usable = max(0, usable - step)
        return usable

    def cut(self, usable: int) -> int:
        """Gives the memory of the slots from `usable` on back, none of which is in use. Returns bytes."""
        given = self._slot_bytes(self._usable) - self._slot_bytes(usable)
        for column in self._row_columns:
            column.cut(usable)
        free = self._free.array[: self._free_count, 0]
        free = free[free < usable]
        self._free.array[: len(free), 0] = free
        self._free_count = len(free)
        self.top = min(self.top, usable)
        self._usable = usable
        self._refund(given)
        return given

    def settle(self, slots: Ints) -> None:
        """The rows of reserved slots are there now."""
        self.index.move(self.columns.keys[slots], slots)

    def release(self, slots: Ints) -> None:
        """Gives slots up, and drops their keys from the index. They stay charged, for the next rows."""
        self.forget(self.columns.keys[slots])
        self._give_back(slots)

    def forget(self, keys: Ints) -> None:
        """Drops keys from the index whose rows are in no slot."""
        held = self.index.nbytes
        self.index.remove(keys)
        self._refund(held - self.index.nbytes)

    def fresh_state(self, spec: RowSpec) -> FreshState | None:
        """The state of all rows under `spec`, if that starts it anew. With the lock free, since it takes a second a GiB.

        It is charged beside the old one, until `alter`. Raises `StorageFull` with nothing changed.
        """
        if spec.kind == self.spec.kind:
            return None
        column, usable, filled = Column(self.capacity, spec.state_width, spec.accumulate_dtype), self._usable, self.top
        self._budget.charge(column.bytes_for(usable))
        column.use(usable)
        column.array[:filled] = spec.initial_state
        return FreshState(column, filled)

    def alter(self, spec: RowSpec, state: FreshState | None) -> None:
        """Takes another spec of the same dim and dtype, and its `fresh_state`."""
        if state is not None:
            column, paid, old = state.column, state.column.charged_bytes, self._state
            # Rows may have come up from a tier further down meanwhile; theirs starts anew too.
            column.cut(self._usable)
            column.use(self._usable)
            column.array[state.filled : self.top] = spec.initial_state
            self._budget.charge(max(0, column.charged_bytes - paid), forced=True)
            self._budget.refund(max(0, paid - column.charged_bytes) + old.charged_bytes)
            self._charged += column.charged_bytes - old.charged_bytes
            self._state = column
        self._name_columns(spec)

    def clear(self) -> None:
        """Drops all rows, and gives all memory back."""
        self.index.clear()
        self._refund(self._charged)
        for column in (*self._row_columns, self._free):
            column.cut(0)
        self._begin()

    def _refund(self, nbytes: int) -> None:
        self._budget.refund(nbytes)
        self._charged -= nbytes

    def _usable_for(self, count: int) -> int:
        """How many slots are to be usable so that `count` can be taken."""
        missing = count - self.free
        if missing <= 0:
            return self._usable
        least = min(_LEAST_GROWTH, _LEAST_GROWTH_BYTES // self.slot_bytes)
        spare = min(_MOST_GROWTH, max(least, self._usable // _GROWTH_SHARE))
        usable = min(self._usable + max(missing, spare), self.capacity)
        if usable < self._usable + missing:
            raise self._budget.full(missing * self._values.item_bytes, because="no addresses are left")
        return usable

    def _growth_bytes(self, usable: int) -> int:
        return self._slot_bytes(usable) - self._slot_bytes(self._usable)

    def _slot_bytes(self, usable: int) -> int:
        """What so many slots take."""
        return sum(column.bytes_for(usable) for column in self._row_columns) + usable * self._beside_bytes

    @property
    def _row_columns(self) -> tuple[Column, ...]:
        return self._keys, self._positions, self._values, self._state

    def _next(self, count: int) -> Ints:
        """The slots that are taken next."""
        reused = min(count, self._free_count)
        again = self._free.array[self._free_count - reused : self._free_count, 0]
        return np.concatenate((again, np.arange(self.top, self.top + count - reused)))

    def _take(self, slots: Ints, usable: int) -> None:
        """Takes the slots of `_next`; there are `usable` ones now, all charged."""
        for column in self._row_columns:
            column.use(usable)
        self._usable = usable
        reused = min(len(slots), self._free_count)
        self._free_count -= reused
        self.top += len(slots) - reused

    def _give_back(self, slots: Ints) -> None:
        self.columns.positions[slots] = 0
        count = self._free_count + len(slots)
        growth = self._free.use(count)
        self._budget.charge(growth, forced=True)
        self._charged += growth
        self._free.array[self._free_count : count, 0] = slots
        self._free_count = count
