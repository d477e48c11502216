"""Which rows of a table are in DRAM and which on SSD, and how they move.

A row is *cold* when it lies on SSD alone; its location in the index says where. A row in DRAM may keep its copy on SSD for as long as
nobody changes it: then it leaves DRAM again without a write. A change makes the copy old, and its slot is given up at once.

Down: rows are chosen, those without a copy are written, and only then their memory is given up. Whoever was changed, pinned or
deleted while it was written stays as it is. What cannot be written stays too, and the error is kept for the status.
Up: a cold row is read with no lock held, and put into DRAM if it is still where it was.
Order of locks: one demotion at a time, then the table's lock, then those of files and budget.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from ...errors import CorruptTier, StorageFull
from ..budget import HIGH_WATER, LOW_WATER, Budget
from .batch import RowBatch, empty_batch
from .dram import DramRows
from .index import ABSENT, RESERVED, Charge, Ints
from .policy import EvictionPolicy
from .slot_file import Storage
from .spec import RowSpec
from .ssd import ColdRead, SsdRows
from .tier_counts import TierCounts

BESIDE_BYTES: Final = 23
"""Charged for each slot in DRAM: where its copy is, and its places in the eviction policy."""

BATCH_ROWS: Final = 4096
"""Rows that move at a time at most: so long the table's lock is held, and so many are in memory twice."""

BATCH_BYTES: Final = 4 << 20
"""The same of large rows, in bytes: what is in memory twice is not charged."""

LOW_WATER_SHARE: Final = 32
"""When room is made, one slot in so many becomes free, so that the next rows find it."""

GROW_TO: Final = (HIGH_WATER + LOW_WATER) / 2
"""Of the budget: so far rows take more memory by themselves, before they leave. Below the high water mark, so that what others take
for a moment drives nothing out."""

TRY_AGAIN_S: Final = 1.0
"""How long readers do not try to move rows down after that failed. Whoever must have room tries each time."""

_COLD: Final = ABSENT - 1
"""The location of address 0; those of higher addresses go down from there."""


class Tiering:
    """Joins the rows of one table in DRAM to those on SSD. `lock` is the table's."""

    def __init__(
        self,
        dram: DramRows,
        create: Callable[[], Storage],
        lock: threading.Lock,
        budget: Budget,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`create` makes an empty file of the tier."""
        self.ssd: Final = SsdRows(dram.spec, create, budget)
        self.counts = TierCounts()
        """Changed under the table's lock."""
        self.write_error: StorageFull | None = None
        """Why the last row that was to leave DRAM stayed, until one leaves again."""
        self.read_error: CorruptTier | None = None
        """The last read that failed."""
        self.demoting: Final = threading.RLock()
        """Held while rows move down."""
        self.holds_back = False
        """Nothing that readers find comes up: the applying thread needs the room."""
        self._gives_back = False
        """The same, since memory is just being given back; changed with `demoting` held."""
        self._dram = dram
        self._lock = lock
        self._budget = budget
        self._clock = clock
        self._try_at = 0.0
        self._clear_notes()

    def _clear_notes(self) -> None:
        self._policy = EvictionPolicy()
        self._copies = np.zeros(0, np.int64)
        """By slot: the address of the row's copy on SSD, -1 where it has none."""
        self._pinned_keys: Counter[int] = Counter()

    @property
    def batch_rows(self) -> int:
        """Rows that move at a time."""
        return max(1, min(BATCH_ROWS, BATCH_BYTES // self._dram.slot_bytes))

    def addresses(self, locations: Ints) -> Ints:
        """Of cold rows."""
        return _COLD - locations

    # Under the table's lock.

    def look(self, keys: Ints, locations: Ints, *, is_use: bool) -> ColdRead | None:
        """What was found at `locations` is used, if it is in DRAM. Begins a read of what is cold, if anything is: to be ended."""
        if is_use:
            self._policy.touch(locations[(locations >= 0) & (locations < RESERVED)])
        places = np.flatnonzero(locations < ABSENT)
        if not len(places):
            return None
        if is_use:
            self._count(ssd_hits=len(places))
        cold, first, owner = np.unique(locations[places], return_index=True, return_inverse=True)
        return ColdRead(places, owner, keys[places[first]], _COLD - cold, self.ssd.begin_read())

    def changed(self, slots: Ints) -> None:
        """Rows in DRAM (unique) were written, or are there since now: their copies are old."""
        self._grow()
        self._give_up_copies(slots)
        held = self._policy.are_held(slots)
        self._policy.touch(slots[held])
        self._policy.admit(slots[~held], self._dram.keys[slots[~held]])

    def deleted(self, locations: Ints, keys: Ints) -> None:
        """Rows (unique) are about to be dropped from the index, in DRAM or cold."""
        slots = locations[locations >= 0]
        self._give_up_copies(slots)
        self._policy.forget(slots)
        self.ssd.free(_COLD - locations[locations < ABSENT])
        for key in keys.tolist() if self._pinned_keys else ():
            self._pinned_keys.pop(key, None)

    def place(self, batch: RowBatch, addresses: Ints, charge: Charge) -> Ints:
        """Puts cold rows (unique) into DRAM and returns their slots. Raises what `charge` raises, with nothing changed."""
        slots = self._dram.place(batch, charge)
        self._grow()
        self._copies[slots] = addresses
        self._policy.admit(slots, batch.keys)
        self._count(promotions=len(batch))
        return slots

    def overwrite(self, batch: RowBatch, locations: Ints, charge: Charge) -> Ints:
        """Puts rows into DRAM in the place of cold ones (unique), at `locations`, that nobody reads again. Returns their slots."""
        slots = self._dram.place(batch, charge)
        self._grow()
        self.ssd.free(_COLD - locations)
        return slots

    def pin(self, slots: Ints) -> None:
        """These slots keep what they hold, a row or a place for one, until `unpin`."""
        self._grow()
        self._policy.pin(slots)

    def unpin(self, slots: Ints) -> None:
        """Undoes one `pin`."""
        self._policy.unpin(slots)

    def pin_keys(self, keys: Ints, slots: Ints) -> None:
        """Pins rows (unique) in DRAM for a user."""
        self.pin(slots)
        self._pinned_keys.update(keys.tolist())

    def unpin_keys(self, keys: Ints) -> None:
        """Undoes one `pin_keys` of each key that has one, of a row that was not deleted since."""
        pinned = keys[np.array([self._pinned_keys[key] > 0 for key in keys.tolist()], np.bool_)]
        self._pinned_keys.subtract(pinned.tolist())
        self._pinned_keys = +self._pinned_keys
        self.unpin(self._dram.find(pinned))

    def grown(self, nbytes: int) -> None:
        """Takes bytes of the budget as far as rows take them by themselves. Raises `StorageFull` beyond, with nothing taken."""
        is_low = self._budget.held + nbytes <= self._budget.limit * GROW_TO
        if nbytes > 0 and not (is_low and self._budget.charge_if_low(nbytes)):
            raise self._budget.full(nbytes)

    def alter(self, spec: RowSpec) -> None:
        """The table's spec is another one. With `demoting` held."""
        self.ssd.alter(spec)

    def clear(self) -> None:
        """All rows are gone, in DRAM too. With `demoting` held."""
        self.ssd.clear()
        self._clear_notes()

    # Without it.

    def fetch(self, cold: ColdRead, *, promote: bool = False) -> RowBatch:
        """Reads the rows of `cold.keys`, and ends the read. With `promote` they come up where there is room, or some can be made.

        Raises `CorruptTier`, and keeps it for the status.
        """
        try:
            batch = self._read(cold)
            if promote:
                self._promote(batch, cold, must=False)
            return batch
        finally:
            self.ssd.end_read(cold.reading)

    def move_up(self, cold: ColdRead, *, must: bool) -> int:
        """Reads rows and puts them into DRAM as far as there is room, or some can be made. Returns how many are there now."""
        try:
            return self._promote(self._read(cold), cold, must=must)
        finally:
            self.ssd.end_read(cold.reading)

    def fetch_whole(self, cold: ColdRead) -> RowBatch:
        """As `fetch`, without those that cannot be read: their position is 0."""
        batch = empty_batch(cold.reading.spec, len(cold.keys))
        batch.keys[:], batch.positions[:] = cold.keys, 0
        whole = np.arange(len(cold.keys))
        try:
            while True:
                try:
                    rows = self._read(replace(cold, keys=cold.keys[whole], addresses=cold.addresses[whole]))
                except CorruptTier as error:
                    whole = whole[~np.isin(cold.keys[whole], np.array(error.keys))]
                else:
                    batch.values[whole], batch.state[whole], batch.positions[whole] = (
                        rows.values,
                        rows.state,
                        rows.positions,
                    )
                    return batch
        finally:
            self.ssd.end_read(cold.reading)

    def make_room(self, count: int) -> bool:
        """Moves rows down until `count` slots are free, and some more. False where that many cannot leave."""
        with self.demoting:
            missing = count - self._dram.free
            return missing <= 0 or self.demote(self._batch_for(missing)) >= missing

    def demote(self, count: int) -> int:
        """Moves up to `count` rows down, those that the policy chooses. Returns how many slots became free.

        Where something cannot be written, no other write is tried, and rows that have copies leave in its place.
        """
        freed = passed = 0
        with self.demoting:
            failed = self.counts.failed_writes
            evictable = self._policy.evictable
            while freed < count and passed < evictable:
                with self._lock:
                    chosen = self._policy.choose(min(count - freed, self.batch_rows))
                if not len(chosen):
                    break
                passed += len(chosen)
                freed += self._move_down(chosen, may_write=self.counts.failed_writes == failed)
            # Notes about free slots and slots on SSD are charged when they are taken, even past the limit.
            if self._budget.held > self._budget.limit:
                self.give_back(self._budget.held - self._budget.limit)
        return freed

    def give_back(self, nbytes: int) -> int:
        """Gives memory of DRAM back to the budget: the last slots go, and what is in them moves down. Returns bytes, 0 where none can."""
        with self.demoting:
            self._gives_back = True
            try:
                with self._lock:
                    self._grow()
                    usable = self._unpinned_from(self._dram.usable_without(nbytes))
                    slots = self._held_from(usable)
                    self._policy.take(slots)
                failed = self.counts.failed_writes
                step = self.batch_rows
                for start in range(0, len(slots), step):
                    piece = slots[start : start + step]
                    self._move_down(piece, may_write=self.counts.failed_writes == failed)
                with self._lock:
                    stayed = self._held_from(usable)
                    usable = int(stayed[-1]) + 1 if len(stayed) else usable
                    return self._dram.cut(self._unpinned_from(usable))
            finally:
                self._gives_back = False

    # Inside.

    def _read(self, cold: ColdRead) -> RowBatch:
        try:
            batch = self.ssd.read(cold.reading, cold.addresses, cold.keys)
        except CorruptTier as error:
            with self._lock:
                self.read_error = error
                self._count(failed_reads=len(error.keys))
            raise
        with self._lock:
            self._count(bytes_read=batch.nbytes)
        return batch

    def _promote(self, batch: RowBatch, cold: ColdRead, *, must: bool) -> int:
        """Puts cold rows (unique) that were just read into DRAM, as far as that works. Returns how many are no longer cold.

        Before the read has ended: so an address that is still the row's is that of the bytes that were read. Unless it `must`, it gives
        way to the applying thread, to another demotion, and to a disk that failed.
        """
        came = self._place_what_fits(batch, cold, must=must)
        may = must or (not self._keeps_down and self._clock() >= self._try_at)
        if came < len(batch) and may and self.demoting.acquire(blocking=must):
            try:
                self.demote(self._batch_for(len(batch) - came))
            finally:
                self.demoting.release()
            came = self._place_what_fits(batch, cold, must=must)
        return came

    @property
    def _keeps_down(self) -> bool:
        return self.holds_back or self._gives_back

    def _move_down(self, chosen: Ints, *, may_write: bool) -> int:
        """Rows that are leaving leave. Returns how many did."""
        if not len(chosen):
            return 0
        with self._lock:
            # Since they were chosen some may have been deleted, or pinned.
            leaves = self._policy.are_leaving(chosen) & ~self._policy.are_pinned(chosen)
            self._policy.stay(chosen[~leaves])
            chosen = chosen[leaves]
            has_copy = self._copies[chosen] >= 0
            self._hand_down(chosen[has_copy])
            left, chosen = int(np.count_nonzero(has_copy)), chosen[~has_copy]
            if not may_write:
                self._policy.stay(chosen)
                return left
            batch = self._dram.batch(chosen)
        failed = False
        while len(chosen):
            try:
                addresses = self.ssd.write(batch)
            except StorageFull as error:
                # There may be room for some of them.
                failed, half = True, len(chosen) // 2
                self._stay(chosen[half:], error)
                chosen, batch = chosen[:half], batch.take(np.arange(half))
            else:
                self.write_error = self.write_error if failed else None
                return left + self._written(chosen, batch, addresses)
        return left

    def _written(self, slots: Ints, batch: RowBatch, addresses: Ints) -> int:
        """Rows have copies now, if nobody changed them meanwhile; those that nobody needs here leave. Returns how many."""
        with self._lock:
            dram, policy = self._dram, self._policy
            is_same = policy.are_leaving(slots) & (dram.keys[slots] == batch.keys)
            is_same &= dram.positions[slots] == batch.positions
            self._copies[slots[is_same]] = addresses[is_same]
            leaves = slots[is_same & ~policy.are_pinned(slots)]
            self._hand_down(leaves)
            policy.stay(slots)
            self._count(written=int(np.count_nonzero(is_same)), bytes_written=batch.nbytes)
        self.ssd.free(addresses[~is_same])
        return len(leaves)

    def _unpinned_from(self, usable: int) -> int:
        """`usable`, or more, so that no slot from there on is pinned."""
        pinned = np.flatnonzero(self._policy.are_pinned(np.arange(usable, self._dram.top)))
        return usable + int(pinned[-1]) + 1 if len(pinned) else usable

    def _held_from(self, usable: int) -> Ints:
        """The slots with rows from `usable` on."""
        return usable + np.flatnonzero(self._policy.are_held(np.arange(usable, self._dram.top)))

    def _hand_down(self, slots: Ints) -> None:
        """Under the lock: rows that have copies are cold from now on."""
        self._policy.left(slots, self._dram.keys[slots])
        self._dram.hand_down(slots, _COLD - self._copies[slots])
        self._copies[slots] = -1
        self._count(demotions=len(slots))

    def _stay(self, slots: Ints, error: StorageFull) -> None:
        with self._lock:
            self._policy.stay(slots)
            self._count(failed_writes=len(slots))
            self.write_error = error
            self._try_at = self._clock() + TRY_AGAIN_S

    def _place_what_fits(self, batch: RowBatch, cold: ColdRead, *, must: bool) -> int:
        """Returns how many of the rows are no longer cold."""
        with self._lock:
            # Somebody else may have brought it up, or changed or deleted it, or altered the table.
            still = np.flatnonzero(self._dram.find(batch.keys) == _COLD - cold.addresses)
            gone, batch = len(batch) - len(still), self.ssd.as_now(batch, cold.reading)
            for fitting in (still, still[: self._room(len(still))]) if must or not self._keeps_down else ():
                try:
                    return gone + len(self.place(batch.take(fitting), cold.addresses[fitting], self.grown))
                except StorageFull:
                    continue
            return gone

    def _room(self, most: int) -> int:
        """How many of `most` rows have room in DRAM without others leaving."""
        spare = int(self._budget.limit * GROW_TO) - self._budget.held
        low, high = min(self._dram.free, most), most
        while low < high:
            middle = (low + high + 1) // 2
            if self._dram.growth_bytes(middle, 0) <= spare:
                low = middle
            else:
                high = middle - 1
        return low

    def _batch_for(self, missing: int) -> int:
        return max(missing, self._dram.usable // LOW_WATER_SHARE)

    def _give_up_copies(self, slots: Ints) -> None:
        copies = self._copies[slots]
        if (copies >= 0).any():
            self.ssd.free(copies[copies >= 0])
            self._copies[slots] = -1

    def _grow(self) -> None:
        more = self._dram.usable - len(self._copies)
        if more > 0:
            self._copies = np.concatenate((self._copies, np.full(more, -1, np.int64)))
            self._policy.grow(self._dram.usable)

    def _count(self, **more: int) -> None:
        self.counts = replace(self.counts, **{name: getattr(self.counts, name) + count for name, count in more.items()})
