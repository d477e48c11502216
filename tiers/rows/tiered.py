"""A row table whose rows may lie on SSD: what changes or is read beside `RowTable`, which knows DRAM alone.

Whatever changes a row brings it up first, so that rule 3 is decided in one place. The disk is read and written with the table's lock
free: under it only locations are looked up, and what they were is checked again afterwards. What is in use by the change that is
prepared stays pinned until that is made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...errors import CorruptTier, StorageFull
from ..budget import Budget
from .batch import RowBatch, empty_batch, joined, newest
from .credit import Credit, CreditShort
from .index import ABSENT, RESERVED, Charge, Ints, Marks
from .kernels_numpy import Changed, NumpyKernels
from .slot_file import Storage
from .spec import RowSpec
from .ssd import ColdRead
from .table import RowCounters, RowTable
from .tiering import BESIDE_BYTES, Tiering


def distinct(keys: Ints) -> Ints:
    """The keys without repeats, sorted: a few thousand in a twentieth of the time of `np.unique`, which hashes them."""
    ordered = np.sort(keys)
    found: Ints = ordered[np.diff(ordered, prepend=ordered[:1] - 1) != 0]
    return found


MOST_TRIES: Final = 8
"""Of bringing rows up with bytes that the budget gave, which may have cost some of them their places."""


class TieredRowTable(RowTable):
    """As `RowTable`, with an ssd tier below DRAM: rows leave DRAM as it fills, and come up when they are used."""

    def __init__(
        self,
        name: str,
        spec: RowSpec,
        budget: Budget,
        create: Callable[[], Storage],
        kernels: NumpyKernels | None = None,
    ) -> None:
        """`create` makes an empty file of the tier; the rest as for `RowTable`."""
        super().__init__(name, spec, budget, kernels, BESIDE_BYTES)
        self._tiers = Tiering(self._dram, create, self._lock, budget)
        self._pinned = np.empty(0, np.int64)
        """Slots that stay what they are until `_let_go`, since they are prepared."""

    def counters(self) -> RowCounters:
        with self._lock:
            return RowCounters(self._dram_hits, self._misses, self._tiers.counts)

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._tiers.ssd.note_bytes

    @property
    def error(self) -> StorageFull | CorruptTier | None:
        """Why the last row that was to leave DRAM stayed, until one leaves again; else the last read that failed. None: all is well."""
        return self._tiers.write_error or self._tiers.read_error

    @property
    def is_short(self) -> bool:
        """Whether the applying thread is just bringing rows up: to give memory back would cost it what it asks others for."""
        return self._tiers.holds_back

    @property
    def ssd_nbytes(self) -> int:
        """Bytes of the table's files, free slots too."""
        return self._tiers.ssd.nbytes

    # Any thread.

    def prefetch(self, keys: Ints) -> int:
        keys, moved, step = distinct(self._checked_keys(keys)), 0, self._tiers.batch_rows
        for start in range(0, len(keys), step):
            with self._lock:
                cold = self._look(keys[start : start + step])
            moved += 0 if cold is None else self._tiers.move_up(cold, must=False)
        return moved

    def pin(self, keys: Ints) -> Ints:
        missing = distinct(self._checked_keys(keys))
        pinned = missing[:0]
        try:
            while True:
                with self._lock:
                    locations = self._dram.find(missing)
                    hot = self._are_there(locations)
                    self._tiers.pin_keys(missing[hot], locations[hot])
                    pinned = np.concatenate((pinned, missing[hot]))
                    missing = missing[locations < ABSENT]
                    cold = self._look(missing)
                if cold is None:
                    return pinned
                if not self._tiers.move_up(cold, must=True):
                    raise self._cannot_leave(self._budget.full(len(missing) * self._dram.slot_bytes))
        except BaseException:
            self.unpin(pinned)
            raise

    def unpin(self, keys: Ints) -> None:
        with self._lock:
            self._tiers.unpin_keys(distinct(self._checked_keys(keys)))

    def demote(self, count: int) -> int:
        """Moves up to `count` rows down, those whose turn it is. Returns how many left DRAM, which keeps its slots. Blocks for the disk."""
        return self._tiers.demote(count)

    def give_back(self, nbytes: int) -> int:
        """Gives DRAM back to the budget, at least `nbytes` if it can: rows move down. Returns bytes, 0 where nothing can go.

        Blocks for the disk; for a thread that holds no lock of any holder of the budget.
        """
        return self._tiers.give_back(nbytes)

    def shrink(self) -> int:
        """Gives what the table's files have at their ends and do not use back to the ssd tier. Returns bytes. Waits for no lock."""
        return self._tiers.ssd.shrink()

    # The applying thread.

    def delete(self, keys: Ints, position: int, up_to: int | None = None, images: bool = False) -> RowBatch | None:
        keys = distinct(self._checked_keys(keys))
        with self._lock:
            self._let_go()
        known = empty_batch(self.spec)
        while True:
            with self._lock:
                locations = self._dram.find(keys)
                cold = self._look(keys[(locations < ABSENT) & ~np.isin(keys, known.keys)])
                if cold is None:
                    return self._delete(keys, locations, known, position, up_to, images)
            # What nobody needs to know may be damaged.
            is_needed = images or up_to is not None
            known = joined([known, self._tiers.fetch(cold) if is_needed else self._tiers.fetch_whole(cold)])

    def _delete(
        self, keys: Ints, locations: Ints, known: RowBatch, position: int, up_to: int | None, images: bool
    ) -> RowBatch | None:
        """Under the lock: deletes what is there of `keys` (unique); `known` has the rows of those that are cold."""
        there = locations != ABSENT
        keys, locations = keys[there], locations[there]
        is_cold = locations < ABSENT
        order = np.argsort(known.keys)
        which = order[np.searchsorted(known.keys, keys[is_cold], sorter=order)]
        positions = np.empty(len(keys), np.uint64)
        positions[~is_cold], positions[is_cold] = self._dram.positions[locations[~is_cold]], known.positions[which]
        goes = positions < np.uint64(position)
        if up_to is not None:
            goes &= positions <= np.uint64(up_to)
        before = None
        if images:
            before = joined([self._dram.batch(locations[goes & ~is_cold]), known.take(which[goes[is_cold]])])
        self._note(keys[goes])
        self._drop(keys[goes], locations[goes])
        return before

    def restore(self, before: RowBatch) -> None:
        charge = partial(self._budget.charge, forced=True)
        with self._lock:
            self._let_go()
            locations, gone = self._dram.find(before.keys), before.positions == 0
            goes = gone & (locations != ABSENT)
            self._drop(before.keys[goes], locations[goes])
            there, slots = before.take(~gone), locations[~gone]
            cold, new = slots < ABSENT, slots == ABSENT
            slots[cold] = self._tiers.overwrite(there.take(cold), slots[cold], charge)
            slots[new] = self._dram.reserve(there.keys[new], charge)
            self._dram.settle(slots[new])
            self._dram.put(slots, there)
            self._tiers.changed(slots)
            self._note(before.keys)

    def load(self, batch: RowBatch) -> None:
        """As `RowTable.load`; but where it raises, some of the rows may be there. A row that is damaged on SSD is whole again."""
        step = self._tiers.batch_rows
        for start in range(0, len(batch), step):
            piece = newest(batch.take(np.arange(start, min(start + step, len(batch)))))
            self._bring_up(distinct(piece.keys), is_overwritten=True)
            super()._hold(piece.keys)
            super().load(piece)

    def alter(self, spec: RowSpec) -> None:
        with self._tiers.demoting:
            super().alter(spec)

    def _altered(self, spec: RowSpec) -> None:
        self._tiers.ssd.alter(spec)

    def clear(self) -> None:
        with self._tiers.demoting:
            super().clear()
            with self._lock:
                self._tiers.clear()

    # The applying thread, without the lock.

    def _hold(self, keys: Ints) -> Ints:
        if not self._is_prepared(keys):
            self._bring_up(distinct(keys))
        return super()._hold(keys)

    def _bring_up(self, keys: Ints, *, is_overwritten: bool = False) -> None:
        """Pins the rows of `keys` (unique) in DRAM, and slots for those that are not there. Raises with nothing held.

        Where there is room by itself, else where others leave, else with what the budget gives: that may cost other rows, and even these,
        their slots, so it begins anew then. `is_overwritten`: nobody needs to know what the rows were, so they may be damaged.
        """
        tiers, credit, short = self._tiers, Credit(0), 0
        tiers.holds_back = True
        try:
            if self._try_to_bring_up(keys, tiers.grown, is_overwritten, makes_room=True):
                return
            for _ in range(MOST_TRIES):
                with self._lock:
                    short = max(short, self._growth_bytes(keys) - credit.left)
                self._budget.charge(short)
                credit.left += short
                try:
                    if self._try_to_bring_up(keys, credit.spend, is_overwritten, makes_room=False):
                        return
                    short = 0
                except CreditShort as error:
                    short = error.nbytes
            raise self._budget.full(short)
        except StorageFull as error:
            raise self._cannot_leave(
                error, f"; those of this change take {len(keys) * self._dram.slot_bytes} bytes"
            ) from tiers.write_error
        finally:
            self._budget.refund(credit.left)
            tiers.holds_back = False

    def _try_to_bring_up(self, keys: Ints, charge: Charge, is_overwritten: bool, *, makes_room: bool) -> bool:
        """Whether that worked. Otherwise, and where it raises, nothing is held."""
        tiers = self._tiers
        try:
            with self._lock:
                self._let_go()
                locations = self._dram.find(keys)
                self._pin(locations[locations >= 0])
                cold = self._look(keys)
            rows = empty_batch(self.spec)
            if cold is not None:
                rows = tiers.fetch_whole(cold) if is_overwritten else tiers.fetch(cold)
            for may_make_room in (makes_room, False):
                try:
                    with self._lock:
                        self._place(rows, keys, charge)
                except StorageFull:
                    if may_make_room:
                        tiers.make_room(len(keys))
                else:
                    return True
        except BaseException:
            with self._lock:
                self._let_go()
            raise
        with self._lock:
            self._let_go()
        return False

    def _cannot_leave(self, error: StorageFull, besides: str = "") -> StorageFull:
        """`error`, with the reason why rows do not make room."""
        why = "those that are left are in use" if self._tiers.write_error is None else self._tiers.write_error.problem
        return StorageFull(
            f"{error.problem}; no more rows of {self.name!r} can leave: {why}{besides}", remedy=error.remedy
        )

    # Under the lock.

    def _growth_bytes(self, keys: Ints) -> int:
        """About what is charged where all of these rows (unique) come to DRAM."""
        locations = self._dram.find(keys)
        new = int(np.count_nonzero(locations == ABSENT))
        return self._dram.growth_bytes(new + int(np.count_nonzero(locations < ABSENT)), new)

    def _place(self, rows: RowBatch, keys: Ints, charge: Charge) -> None:
        """Puts rows that were read into DRAM, and takes slots for those of `keys` that are nowhere. All of them are pinned then.

        Damaged rows (of position 0) are nowhere from now on, unless somebody else could read them meanwhile. Raises what `charge` raises;
        of what was done until then rows may leave again, and slots for new ones stay.
        """
        tiers = self._tiers
        locations = self._dram.find(rows.keys)
        is_cold, is_whole = locations < ABSENT, rows.positions > 0
        whole, damaged = is_cold & is_whole, is_cold & ~is_whole
        if whole.any():
            tiers.place(rows.take(whole), tiers.addresses(locations[whole]), charge)
        self._keep_reserved(self._dram.reserve(keys[self._dram.find(keys) == ABSENT], charge))
        if damaged.any():
            slots = tiers.overwrite(rows.take(damaged), locations[damaged], charge)
            self._dram.index.move(rows.keys[damaged], slots + RESERVED)
            self._keep_reserved(slots)
        brought = self._dram.find(rows.keys)
        self._pin(brought[brought < RESERVED])

    def _keep_reserved(self, slots: Ints) -> None:
        self._reserved = np.concatenate((self._reserved, slots))
        self._pin(slots)

    def _look(self, keys: Ints) -> ColdRead | None:
        """Begins a read of those that are cold, if any are."""
        return self._tiers.look(keys, self._dram.find(keys), is_use=False)

    def _pin(self, slots: Ints) -> None:
        self._tiers.pin(slots)
        self._pinned = np.concatenate((self._pinned, slots))

    def _let_go(self) -> None:
        if len(self._pinned):
            self._tiers.unpin(self._pinned)
            self._pinned = self._pinned[:0]
        super()._let_go()

    def _changed_now(self, keys: Ints, changed: Changed) -> RowBatch | None:
        self._tiers.changed(changed.slots)
        return super()._changed_now(keys, changed)

    def _drop(self, keys: Ints, locations: Ints) -> None:
        """Drops rows that are there (unique), wherever they are."""
        self._tiers.deleted(locations, keys)
        is_cold = locations < ABSENT
        self._dram.release(locations[~is_cold])
        self._dram.forget(keys[is_cold])

    # With the lock free.

    def _lookup_piece(self, keys: Ints, values: NDArray[Any], found: Marks) -> int:
        with self._lock:
            locations = self._dram.index.lookup(keys, self._dram.columns.values, values, found)
            cold = self._tiers.look(keys, locations, is_use=True)
            hits = int(np.count_nonzero(found))
            misses = len(keys) - hits - (0 if cold is None else len(cold.places))
            self._dram_hits += hits
            self._misses += misses
        if cold is not None:
            values[cold.places] = self._tiers.fetch(cold, promote=True).values[cold.owner]
            found[cold.places] = True
        return misses

    def _read_piece(self, keys: Ints) -> RowBatch:
        with self._lock:
            cold = self._look(keys)
            batch = self._read_hot(keys)
        if cold is not None:
            rows = self._tiers.fetch(cold)
            batch.values[cold.places] = rows.values[cold.owner]
            batch.state[cold.places] = rows.state[cold.owner]
            batch.positions[cold.places] = rows.positions[cold.owner]
        return batch
