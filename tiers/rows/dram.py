"""Rows in DRAM: slots in columns (key, position, value, state), the index over them, and what they are charged for.

Everything here is used under the lock of the table that it belongs to.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..budget import Budget
from .batch import RowBatch
from .columns import Column
from .index import DictIndex, RowIndex
from .initial import initial_rows
from .spec import RowSpec

_LEAST_GROWTH: Final = 64
"""Slots that are added at least, so that a table that grows row by row is not charged row by row."""
_GROWTH_SHARE: Final = 8
"""Else an eighth of the slots is added."""
_MOST_GROWTH: Final = 1 << 16
"""And at most that many more than are needed."""
_SPARE_SLOTS: Final = 1 << 17
"""Addresses beyond what the budget allows, for an undo that is charged past its limit."""

Ints = NDArray[np.int64]


class DramRows:
    """The slots of one table. A slot whose position is 0 holds no row: it is free, or reserved for the change that is to come."""

    def __init__(self, spec: RowSpec, budget: Budget, beside_bytes: int = 0) -> None:
        """`beside_bytes`: charged for each slot beside its columns, for what the table's tiers note of it."""
        self.spec = spec
        self._beside_bytes = beside_bytes
        self.index: RowIndex = DictIndex()
        self._budget = budget
        self._charged = 0
        self._make_columns()

    def _make_columns(self) -> None:
        spec = self.spec
        row_bytes = spec.dim * spec.value_dtype.itemsize + 17
        self.capacity = self._budget.limit // row_bytes + _SPARE_SLOTS
        """Slots that there are addresses for."""
        while True:
            try:
                self._keys = Column(self.capacity, 1, np.dtype(np.int64))
                self._positions = Column(self.capacity, 1, np.dtype(np.uint64))
                self._values = Column(self.capacity, spec.dim, spec.value_dtype)
                self._state = Column(self.capacity, spec.state_width, spec.accumulate_dtype)
            except OSError:
                if self.capacity <= _SPARE_SLOTS:
                    raise
                self.capacity = max(self.capacity // 2, _SPARE_SLOTS)
            else:
                break
        self.keys: Ints = self._keys.array[:, 0]
        """(capacity,): the key of each slot."""
        self.positions: NDArray[np.uint64] = self._positions.array[:, 0]
        """(capacity,): the position that last wrote each slot's row; 0 in a slot without one."""
        self.top = 0
        """Slots that were ever used: those at and above are untouched memory."""
        self._usable = 0
        self._free: list[int] = []

    @property
    def values(self) -> NDArray[np.generic]:
        """(capacity, dim): the rows' values."""
        return self._values.array

    @property
    def state(self) -> NDArray[np.generic]:
        """(capacity, width): the optimizer's state of each row."""
        return self._state.array

    @property
    def nbytes(self) -> int:
        """Bytes charged to the budget: the columns' pages in use, free slots too, and the index."""
        return self._charged

    @property
    def usable(self) -> int:
        """Slots that are charged for: those in use, and the free ones."""
        return self._usable

    @property
    def free(self) -> int:
        """Slots that can be taken without being charged for."""
        return len(self._free) + self._usable - self.top

    def find(self, keys: Ints) -> Ints:
        """The location of each key."""
        return self.index.find(keys)

    def reserve(self, keys: Ints, *, forced: bool = False) -> Ints:
        """Takes a slot for each of the keys, none of which is there and none of which repeats, and returns the slots.

        They hold the rows' initial value and state, and position 0. Raises `StorageFull` with nothing changed, unless `forced`.
        """
        self._make_room(len(keys), keys, forced=forced)
        slots = self._take(keys)
        self.positions[slots] = 0
        self.values[slots] = initial_rows(self.spec, keys)
        self.state[slots] = self.spec.initial_state
        self.index.insert(keys, slots)
        return slots

    def place(self, batch: RowBatch) -> Ints:
        """Takes slots for rows that lie in a tier further down (unique keys), puts them in, and returns the slots.

        Raises `StorageFull` with nothing changed.
        """
        self._make_room(len(batch), batch.keys[:0], forced=False)
        slots = self._take(batch.keys)
        self.values[slots] = batch.values
        self.state[slots] = batch.state
        self.positions[slots] = batch.positions
        self.index.move(batch.keys, slots)
        return slots

    def hand_down(self, slots: Ints, locations: Ints) -> None:
        """Gives slots up whose rows lie at `locations`, further down, from now on. They stay charged, for the next rows."""
        self.index.move(self.keys[slots], locations)
        self.positions[slots] = 0
        self._free.extend(slots.tolist())

    def release(self, slots: Ints) -> None:
        """Gives slots up, and drops their keys from the index. They stay charged, for the next rows."""
        self.index.remove(self.keys[slots])
        self.positions[slots] = 0
        self._free.extend(slots.tolist())
        self._charge_index(0)

    def alter(self, spec: RowSpec) -> None:
        """Takes another spec of the same dim and dtype. Raises `StorageFull` with nothing changed."""
        if spec.kind != self.spec.kind:
            state = Column(self.capacity, spec.state_width, spec.accumulate_dtype)
            nbytes = state.bytes_for(self._usable)
            self._budget.charge(nbytes)
            state.use(self._usable)
            state.array[: self.top] = spec.initial_state
            self._budget.refund(self._state.charged_bytes)
            self._charged += nbytes - self._state.charged_bytes
            self._state = state
        self.spec = spec

    def clear(self) -> None:
        """Drops all rows, and gives all memory back."""
        self.index.clear()
        self._budget.refund(self._charged)
        self._charged = 0
        self._make_columns()

    def growth_bytes(self, count: int, new_keys: Ints) -> int:
        """What is charged when `count` slots are taken, `new_keys` of them for keys that the index does not have."""
        return self._growth_bytes(self._usable_for(count), new_keys)

    def _usable_for(self, count: int) -> int:
        missing = count - self.free
        if missing <= 0:
            return self._usable
        usual = min(_MOST_GROWTH, max(_LEAST_GROWTH, self._usable // _GROWTH_SHARE))
        usable = min(self._usable + max(missing, usual), self.capacity)
        if usable < self._usable + missing:
            raise self._budget.full(missing * self._values.item_bytes, because="no addresses are left")
        return usable

    def _growth_bytes(self, usable: int, new_keys: Ints) -> int:
        columns = (self._keys, self._positions, self._values, self._state)
        growth = sum(column.bytes_for(usable) - column.charged_bytes for column in columns)
        return growth + (usable - self._usable) * self._beside_bytes + self.index.bytes_to_insert(new_keys)

    def _take(self, keys: Ints) -> Ints:
        """As many of the free slots, for these keys."""
        reused = min(len(keys), len(self._free))
        slots = np.empty(len(keys), np.int64)
        slots[:reused] = self._free[len(self._free) - reused :]
        del self._free[len(self._free) - reused :]
        slots[reused:] = np.arange(self.top, self.top + len(keys) - reused)
        self.top += len(keys) - reused
        self.keys[slots] = keys
        return slots

    def _make_room(self, count: int, new_keys: Ints, *, forced: bool) -> None:
        """Charges index and columns for the rows to come."""
        usable = self._usable_for(count)
        columns = (self._keys, self._positions, self._values, self._state)
        growth = self._growth_bytes(usable, new_keys)
        self._budget.charge(growth, forced=forced)
        for column in columns:
            column.use(usable)
        self._usable = usable
        self._charged += growth

    def _charge_index(self, unused: int) -> None:
        columns = (self._keys, self._positions, self._values, self._state)
        held = sum(column.charged_bytes for column in columns) + self.index.nbytes + self._usable * self._beside_bytes
        if held < self._charged:
            self._budget.refund(self._charged - held)
            self._charged = held
