"""Which row lies in which slot of the HBM tier: keys, states, pins and who leaves next. Decides only: no lock, no tensor, no thread.

A slot is free, then *coming* (reserved for a key whose values are on their way), then *ready*. A row that changes below is dropped:
its key is forgotten at once, so that no later reader finds it, and its slot is free as soon as nobody reads it and nothing is on
its way there; until then it is *doomed*, and keeps its bytes. So what a reader has pinned never moves and never changes.
"""

from __future__ import annotations

from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from ..rows.index import RowIndex
from ..rows.kernels import kernels
from ..rows.policy import EvictionPolicy

AWAY: Final = 0
FREE: Final = 1
COMING: Final = 2
READY: Final = 3
DOOMED: Final = 4
LOST: Final = 5
"""Coming, and dropped before it arrived."""

SLOT_BYTES: Final = 14
"""Of each slot: its key, its state, whether it is wanted, and a mark. Beside them, what the policy and the index keep."""

Keys = NDArray[np.int64]
Places = NDArray[np.int64]
"""Slots."""


@final
class Slots:
    """The slots of one table. Not thread-safe: its table's lock is held around each call."""

    def __init__(self, per_page: int) -> None:
        self.per_page = per_page
        self._index: RowIndex = kernels().new_index()
        self._index_bytes = self._index.growth_bytes(1 << 20) >> 20
        """Charged for a key in the index, as of an empty one that grows."""
        self._policy = EvictionPolicy()
        self._keys = np.empty(0, np.int64)
        self._state = np.empty(0, np.uint8)
        self._wanted = np.empty(0, np.bool_)
        self._marks = np.empty(0, np.int32)
        """Of no meaning between two calls."""
        self._free: list[Places] = []
        self.free = 0
        """Slots that a key can be given."""
        self.ready = 0
        """Rows that readers find."""

    @property
    def nbytes(self) -> int:
        """Host memory that is held for the slots, and for an index of as many keys."""
        return self._nbytes_of(len(self._keys))

    @property
    def pages(self) -> int:
        """Pages that the slots of this table take."""
        return int(np.count_nonzero(self._state[:: self.per_page] != AWAY)) if self.per_page else 0

    # --- pages ----------------------------------------------------------------------------------------------------------------

    def bytes_for_page(self) -> int:
        """By how much `nbytes` grows when a page is added."""
        if np.any(self._state[:: self.per_page] == AWAY):
            return 0
        return self._nbytes_of(len(self._keys) + self._growth) - self.nbytes

    def add_page(self) -> int:
        """Slots for one page more, all free. Returns the page's number here: its slots are n × per_page on."""
        away = np.flatnonzero(self._state[:: self.per_page] == AWAY)
        if not len(away):
            self._extend(self._growth)
            return self.add_page()
        page = int(away[0])
        slots = np.arange(page * self.per_page, (page + 1) * self.per_page)
        self._release(slots)
        return page

    def remove_page(self) -> int | None:
        """Gives up the page with the fewest rows that has none pinned or on its way; its rows are dropped. None: there is none."""
        if not self.per_page:
            return None
        states = self._state.reshape(-1, self.per_page)
        is_pinned = self._policy.are_pinned(np.arange(len(self._keys))).reshape(states.shape)
        stays = np.any((states != FREE) & (states != READY), axis=1) | np.any(is_pinned, axis=1)
        if np.all(stays):
            return None
        rows = np.count_nonzero(states == READY, axis=1)
        page = int(np.argmin(np.where(stays, self.per_page + 1, rows)))
        slots = np.arange(page * self.per_page, (page + 1) * self.per_page)
        self.drop(self._keys[slots[self._state[slots] == READY]])
        self._state[slots] = AWAY
        kept = np.concatenate([np.empty(0, np.int64), *self._free])
        kept = kept[kept // self.per_page != page]
        self._free, self.free = [kept], len(kept)
        return page

    # --- readers --------------------------------------------------------------------------------------------------------------

    def find(self, keys: Keys) -> Places:
        """The slot of each key, in order, -1 where no row is ready. Keys may repeat."""
        slots = self._index.find(keys)
        if len(self._state):
            # A slot of -1 reads the last one's state, and stays what it is.
            slots[self._state[slots] != READY] = -1
        return slots

    def distinct(self, slots: Places) -> Places:
        """Those of `slots` that are any, once each. Takes a tenth of the time of a sort."""
        found = slots[slots >= 0]
        places = np.arange(len(found), dtype=np.int32)
        self._marks[found] = places
        once: Places = found[self._marks[found] == places]
        return once

    def pin(self, slots: Places) -> None:
        """Readers use these ready slots (unique), until `unpin`: they keep their rows and bytes. Counts as use."""
        self._policy.pin(slots)
        self._policy.touch(slots)
        self._wanted[slots] = True

    def unpin(self, slots: Places) -> None:
        """Undoes one `pin` of each."""
        self._policy.unpin(slots)
        doomed = slots[self._state[slots] == DOOMED]
        ended = doomed[~self._policy.are_pinned(doomed)]
        self._policy.forget(ended)
        self._release(ended)

    def is_changed(self, pinned: Places) -> bool:
        """Whether any of these was dropped since it was pinned."""
        return bool(np.any(self._state[pinned] == DOOMED))

    # --- the writer -----------------------------------------------------------------------------------------------------------

    def missing(self, keys: Keys) -> Keys:
        """Those of `keys` that have no slot, once each and in order; coming ones have one."""
        return np.unique(keys[self._index.find(keys) < 0])

    def evict(self, count: int) -> int:
        """Frees up to `count` slots of rows that nobody reads; how many. The rows stay below, where they are anyway."""
        slots = self._policy.choose(count)
        keys = self._keys[slots]
        self._policy.left(slots, keys)
        self._index.remove(keys)
        self._release(slots)
        self.ready -= len(slots)
        return len(slots)

    def reserve(self, keys: Keys) -> Places:
        """Free slots for the first of `keys` (unique, missing), as many as there are."""
        count = min(len(keys), self.free)
        free = np.concatenate([np.empty(0, np.int64), *self._free])
        slots, self._free = free[:count], [free[count:]]
        self.free -= count
        self._state[slots] = COMING
        self._keys[slots] = keys[:count]
        self._index.insert(keys[:count], slots)
        return slots

    def arrive(self, slots: Places, there: NDArray[np.bool_], *, again: bool = False) -> Places:
        """The bytes of reserved slots are in place, where `there`: they are ready, or free where nothing came or it was dropped.

        Returns those that are ready. `again`: they were used before, and changed. That protects them as one use does, and when
        they change again they are worth having only if they were used in between. Who came because somebody wants it is worth
        having after a change in any case.
        """
        lost = self._state[slots] == LOST
        self._index.remove(self._keys[slots[~lost & ~there]])
        ready: Places = slots[~lost & there]
        self._release(slots[lost | ~there])
        self._state[ready] = READY
        self._wanted[ready] = not again
        self._policy.admit(ready, self._keys[ready])
        if again:
            self._policy.touch(ready)
        self.ready += len(ready)
        return ready

    # --- who changes rows -------------------------------------------------------------------------------------------------------

    def drop(self, keys: Keys) -> Keys:
        """Forgets rows, whatever their state; keys may repeat and need not be held. Returns those worth having again:
        they were coming, or used since they came, or came because somebody wanted them.
        """
        slots = self.distinct(self._index.find(keys))
        self._index.remove(self._keys[slots])
        states = self._state[slots]
        coming, ready = slots[states == COMING], slots[states == READY]
        self._state[coming] = LOST
        pinned = self._policy.are_pinned(ready)
        self._state[ready[pinned]] = DOOMED
        self._policy.forget(ready[~pinned])
        self._release(ready[~pinned])
        self.ready -= len(ready)
        again: Keys = self._keys[np.concatenate([coming, ready[self._wanted[ready]]])]
        return again

    def clear(self) -> None:
        """Forgets every row."""
        self.drop(self._keys[(self._state == READY) | (self._state == COMING)])

    @property
    def _growth(self) -> int:
        """By how many slots the arrays grow: they double, so that growing costs little for each."""
        return max(len(self._keys), self.per_page)

    def _nbytes_of(self, slots: int) -> int:
        return (SLOT_BYTES + self._index_bytes) * slots + (EvictionPolicy.nbytes_for(slots) if slots else 0)

    def _extend(self, more: int) -> None:
        self._keys = np.concatenate([self._keys, np.zeros(more, np.int64)])
        self._state = np.concatenate([self._state, np.full(more, AWAY, np.uint8)])
        self._wanted = np.concatenate([self._wanted, np.zeros(more, np.bool_)])
        self._marks = np.concatenate([self._marks, np.zeros(more, np.int32)])
        self._policy.grow(len(self._keys))

    def _release(self, slots: Places) -> None:
        if len(slots):
            self._state[slots] = FREE
            self._free.append(slots)
            self.free += len(slots)
