"""Rows of one table in the HBM tier: a cache of values over the tiers below, read by batches of keys.

A lookup pins the rows that are ready, gathers them on the device, takes the others from below in one copy, and asks the writer to
have those next time. A row that changes below is dropped before the change can be read there, so a lookup never gives an older
value than the tiers below had when it began; and what changed between its two reads is read again as a whole.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from typing import Any, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray

from .copying import Copier
from .lanes import Done, Lane
from .slab import Slab, rows_per_page
from .slots import Keys, Places, Slots

Below = Callable[[Keys], tuple[NDArray[Any], NDArray[np.bool_]]]
"""Looks rows up in the tiers below: values (n, dim) of the table's dtype, and which rows are there. From any thread; may wait for a
disk, and raises what cannot be read. It counts as use there."""

PIECE_ROWS = 16_384
"""The writer brings so many rows at a time, so that it holds few slots that nobody can read."""


@dataclass(frozen=True, slots=True)
class HbmCounters:
    """What a table's part of the HBM tier has done since it was made; of keys, and repeated ones count each time."""

    hits: int = 0
    """Keys looked up that were read from the device."""
    misses: int = 0
    """Keys looked up that were read from below."""
    promotions: int = 0
    """Rows brought in."""
    evictions: int = 0
    """Rows that gave way to others: the tiers below have them."""
    dropped: int = 0
    """Rows dropped because they changed below."""
    refreshed: int = 0
    """Rows asked for again after a change, because somebody wanted them; such too that changed on their way in."""
    passed: int = 0
    """Rows not brought in, because all slots were in use, or too many others were asked for."""
    failures: int = 0
    """Times that rows could not be read below to be brought in."""

    @classmethod
    def sum(cls, several: Iterable[HbmCounters]) -> HbmCounters:
        """Of several tables together."""
        columns = zip(*(astuple(each) for each in several), strict=True)
        return cls(*(sum(column) for column in columns))


class Owner(Protocol):
    """The tier that a table is of."""

    @property
    def slab(self) -> Slab: ...
    @property
    def copier(self) -> Copier: ...
    @property
    def callers_lane(self) -> Lane: ...
    def ask(self, table: HbmTable, keys: Keys, *, again: bool = False) -> bool:
        """Rows are wanted (`again`: they were there, and have changed); the writer brings them when it can. False where it has too much
        to do. Never waits.
        """
        ...

    def page_for(self, table: HbmTable) -> int | None:
        """A page that the table may have now, `bytes_for_page` of the host charged for it; None: it must do with what it has."""
        ...


@dataclass(frozen=True, slots=True)
class Held:
    """Rows of a batch that stay as they are: row `index[i]` of `values` is that of the i-th key asked for."""

    values: torch.Tensor
    """(rows, dim) on the device; to be read at `index` only, and never written. It may be the tier's own memory: no copy was made."""
    index: torch.Tensor
    """(n,) int64 on the device."""
    found: NDArray[np.bool_]
    """Which keys have a row; the others have the value that a new row would have."""


@dataclass(slots=True)
class _Reading:
    """One batch on its way: of which keys the slots are pinned."""

    keys: Keys
    slots: Places
    """One for each key, -1 where its row is read from below."""
    pinned: Places
    """Those slots once each; pinned until the reading ends."""

    @property
    def is_hit(self) -> NDArray[np.bool_]:
        return self.slots >= 0


@final
class HbmTable:
    """Made by `Hbm.table`. Lookups from any thread; `bring` by the tier's writer alone; `drop` by who changes rows below."""

    def __init__(self, owner: Owner, dim: int, dtype: str, below: Below) -> None:
        slab = owner.slab
        torch_dtype = getattr(torch, dtype)
        assert isinstance(torch_dtype, torch.dtype)
        self._owner = owner
        self._below = below
        self._dtype = torch_dtype
        self._row_bytes = dim * torch_dtype.itemsize
        self._rows = slab.rows(torch_dtype, dim)
        self._words = _in_words(slab, self._row_bytes)
        self._slots = Slots(rows_per_page(slab.page_bytes, self._row_bytes))
        self._first_rows = np.empty(0, np.int64)
        """Of each page of the table: the number of its first row in the slab."""
        self._pages: list[int] = []
        self._lock = threading.Lock()
        self._ending: deque[tuple[Done | None, Places]] = deque()
        """Readings that are over, whose work on the device may not be done. Added to without the lock."""
        self._counters = HbmCounters()
        self.is_closed = False

    def __len__(self) -> int:
        """Rows that a lookup finds on the device."""
        return self._slots.ready

    @property
    def pages(self) -> int:
        """Pages of the slab that the table has."""
        return self._slots.pages

    @property
    def host_bytes(self) -> int:
        """Host memory kept for the table's slots."""
        return self._slots.nbytes

    def counters(self) -> HbmCounters:
        """Of this moment. Any thread."""
        return self._counters

    # --- readers --------------------------------------------------------------------------------------------------------------

    def lookup(self, keys: Keys) -> tuple[torch.Tensor, NDArray[np.bool_]]:
        """The rows of `keys` (int64, (n,), in order, repeated as asked) on the device, (n, dim), and which are there.

        The same bits as a lookup below. The tensor is the caller's own, filled in the order of its own stream. Raises what
        reading below raises.
        """
        reading = self._begin(keys)
        end: Done | None = None
        try:
            values, found, end = self._fill(reading)
        finally:
            self._end(reading, end)
        return values, found

    @contextmanager
    def hold(self, keys: Keys) -> Generator[Held]:
        """The rows of a batch, unchanged until the block ends, and what was queued on the caller's stream by then is done.

        Where all of them are on the device nothing is copied. Rows that change below meanwhile keep their old values here, and
        have their new ones in the next batch. Others are evicted around what is held, or nothing is.
        """
        unique, inverse = np.unique(keys, return_inverse=True)
        reading = self._begin(unique)
        try:
            if np.all(reading.is_hit):
                values, found = self._rows, np.ones(len(unique), np.bool_)
                index = self._numbers(reading.slots)[inverse]
            else:
                values, found, _ = self._fill(reading)
                index = inverse.astype(np.int64)
            yield Held(values, torch.from_numpy(index).to(values.device), found[inverse])
        finally:
            self._end(reading, self._owner.callers_lane.run(_nothing))

    def _begin(self, keys: Keys) -> _Reading:
        with self._lock:
            self._end_what_is_done()
            slots = self._slots.find(keys)
            pinned = self._slots.distinct(slots)
            self._slots.pin(pinned)
            hits = int(np.count_nonzero(slots >= 0))
            self._count(hits=hits, misses=len(keys) - hits)
        return _Reading(keys, slots, pinned)

    def _fill(self, reading: _Reading) -> tuple[torch.Tensor, NDArray[np.bool_], Done]:
        """The rows in a tensor of their own. Returns once that is queued in the caller's lane."""
        is_hit = reading.is_hit
        found = np.ones(len(reading.keys), np.bool_)
        if np.all(is_hit):
            below = None
        else:
            below, found[~is_hit] = self._below(reading.keys[~is_hit])
            if self._is_changed(reading):
                # Of one event the rows read below may be the new ones, and those pinned here the old ones.
                is_hit = np.zeros(len(is_hit), np.bool_)
                below, found = self._below(reading.keys)
        numbers = self._numbers(reading.slots[is_hit])
        out = torch.empty((len(found), self._rows.shape[1]), dtype=self._dtype, device=self._rows.device)
        done = self._owner.callers_lane.run(lambda: self._gather(out, numbers, is_hit, below))
        missed = reading.keys[~is_hit & found]
        if len(missed) and not self._owner.ask(self, missed):
            with self._lock:
                self._count(passed=len(missed))
        return out, found, done

    def _gather(
        self, out: torch.Tensor, numbers: NDArray[np.int64], is_hit: NDArray[np.bool_], below: NDArray[Any] | None
    ) -> None:
        device = out.device
        if below is None:
            torch.index_select(self._rows, 0, torch.from_numpy(numbers).to(device), out=out)
            return
        arrived = torch.from_numpy(_as_bytes(below, self._row_bytes))
        if device.type == "cuda":
            # torch keeps the pinned copy until the stream has read it.
            arrived = arrived.pin_memory().to(device, non_blocking=True)
        if not len(numbers):
            out.copy_(arrived.view(self._dtype))
            return
        hits, misses = (torch.from_numpy(np.flatnonzero(chosen)).to(device) for chosen in (is_hit, ~is_hit))
        out.index_copy_(0, hits, self._rows.index_select(0, torch.from_numpy(numbers).to(device)))
        out.index_copy_(0, misses, arrived.view(self._dtype))

    def _is_changed(self, reading: _Reading) -> bool:
        with self._lock:
            return self._slots.is_changed(reading.pinned)

    def _end(self, reading: _Reading, done: Done | None) -> None:
        """The reading's pins go once the device has read what is pinned. Never waits: a held batch may end in a finalizer, in a thread
        that has the lock. Whoever has it, or comes next, sees to the pins.
        """
        self._ending.append((done, reading.pinned))
        if self._lock.acquire(blocking=False):
            try:
                self._end_what_is_done()
            finally:
                self._lock.release()

    def _end_what_is_done(self) -> None:
        for _ in range(len(self._ending)):
            done, pinned = self._ending.popleft()
            if done is None or done.reached():
                self._slots.unpin(pinned)
            else:
                self._ending.append((done, pinned))

    def _numbers(self, slots: Places) -> NDArray[np.int64]:
        """Where the slots lie in the slab, as numbers of rows."""
        page, at = np.divmod(slots, self._slots.per_page or 1)
        return self._first_rows[page] + at

    # --- who changes rows below -------------------------------------------------------------------------------------------------

    def drop(self, keys: Keys) -> None:
        """Rows of `keys` are about to change below, or have, and nobody can read the new values before this returns.

        To be called under whatever lock keeps readers below from the new values. Never waits for a device or a disk.
        """
        with self._lock:
            before = self._slots.ready
            again = self._slots.drop(keys)
            self._count(dropped=before - self._slots.ready)
            if len(again) and self._owner.ask(self, again, again=True):
                self._count(refreshed=len(again))

    def close(self) -> None:
        """All rows are gone below. Look-ups that are still made read there; nothing is brought in any more."""
        with self._lock:
            self.is_closed = True
            self._slots.clear()

    def drain(self) -> None:
        """Blocks until the device has read all that was asked for by now."""
        for done, _ in list(self._ending):
            if done is not None:
                done.wait()

    # --- the writer -----------------------------------------------------------------------------------------------------------

    def bring(self, keys: Keys, *, again: bool = False) -> int:
        """Brings rows in that are not there and exist below, evicting others; how many. By the tier's writer alone.

        `again`: they were there, and have changed.
        """
        with self._lock:
            self._end_what_is_done()
            wanted = keys[:0] if self.is_closed else self._slots.missing(keys)
        return sum(self._bring(wanted[low : low + PIECE_ROWS], again) for low in range(0, len(wanted), PIECE_ROWS))

    def _bring(self, wanted: Keys, again: bool) -> int:
        self._make_room(len(wanted))
        with self._lock:
            slots = self._slots.reserve(wanted if not self.is_closed else wanted[:0])
            self._count(passed=len(wanted) - len(slots))
        there = np.zeros(len(slots), np.bool_)
        try:
            if len(slots):
                values, there = self._below(wanted[: len(slots)])
                source = _as_bytes(values[there], self._row_bytes)
                for copied in self._owner.copier.scatter(source, self._words, self._numbers(slots[there])):
                    copied.wait()
        except BaseException:
            there = np.zeros(len(slots), np.bool_)
            raise
        finally:
            # Readers find a row only when its bytes are in the device's memory for good: any stream may read them then.
            with self._lock:
                ready = self._slots.arrive(slots, there, again=again)
                self._count(promotions=len(ready))
        return len(ready)

    def _make_room(self, count: int) -> None:
        """Frees slots, at best `count`: by a page more, where there is one, and then by evicting."""
        while self._slots.free < count and self._slots.per_page and (page := self._owner.page_for(self)) is not None:
            with self._lock:
                at = self._slots.add_page()
                first = self._owner.slab.first_row(page, self._row_bytes)
                if at == len(self._pages):
                    self._pages.append(page)
                    self._first_rows = np.append(self._first_rows, first)
                else:
                    self._pages[at] = page
                    # Readers may be using the array.
                    self._first_rows = self._first_rows.copy()
                    self._first_rows[at] = first
        with self._lock:
            short = count - self._slots.free
            if short > 0:
                self._count(evictions=self._slots.evict(short))

    def bytes_for_page(self) -> int:
        """Host memory that one page more takes at most. By the writer."""
        return self._slots.bytes_for_page()

    def give_up_page(self) -> int | None:
        """A page of this table for another one: its rows are evicted. None where all of them are in use. By the writer."""
        with self._lock:
            self._end_what_is_done()
            before = self._slots.ready
            page = self._slots.remove_page()
            self._count(evictions=before - self._slots.ready)
        return None if page is None else self._pages[page]

    def failed(self) -> None:
        """Rows that were asked for could not be read below, and nobody waits for them."""
        with self._lock:
            self._count(failures=1)

    def _count(self, **more: int) -> None:
        known = self._counters
        self._counters = replace(known, **{name: getattr(known, name) + count for name, count in more.items()})


def _in_words(slab: Slab, row_bytes: int) -> torch.Tensor:
    """The rows in the widest integers that they are made of: copying eight bytes at a time takes an eighth of the time of one."""
    dtype = next(each for each in (torch.int64, torch.int32, torch.int16, torch.uint8) if not row_bytes % each.itemsize)
    return slab.rows(dtype, row_bytes // dtype.itemsize)


def _as_bytes(values: NDArray[Any], row_bytes: int) -> NDArray[np.uint8]:
    """(n, dim) values as (n, row bytes)."""
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1, row_bytes)


def _nothing() -> None:
    """Work that is over once what was queued before it is."""
