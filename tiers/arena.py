"""Slots of kept shared memory for dense tensors, and when a slot may be used again.

The life of a slot, and who runs each step:

1. The owner takes it (`Arena.take`) and writes through `Slot.buffer`,
   or `Slot.write`, which costs half of that in memory that is new.
2. The owner seals it (`Slot.seal`): from here on nobody writes.
3. Readers map it on any thread: `shared` (read-only) or `private` (copy-on-write). Arrays built on a mapping keep it alive.
4. The owner releases it (`Slot.release`), often long before the last reader lets go.
5. When it is released *and* no mapping or view handed out lives any more, its memory goes back to the free list, and the next
   `take` of a like size gets it without a page fault.

Step 5 is noticed by finalizers. These run on any thread and inside garbage collection, perhaps while that very thread holds the
arena's lock, so they only append to a deque (one atomic step). Each later call of the arena settles what stands in it.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from .budget import Budget
from .segment import Segment, round_up

KEPT_FREE_SLOTS: Final = 4
"""Free slots kept for reuse. One replica turns over one slot while it holds two versions; four leave room for a few topics. What
is above goes back to the system at once, and the rest as soon as the budget is short."""

_SLACK_PAGES: Final = 15
"""A free slot also fits when it is larger than asked by a quarter, or by this many pages: versions of one model differ little."""

_View = TypeVar("_View", mmap.mmap, ctypes.Array[ctypes.c_ubyte])

_Lease = ctypes.Array[ctypes.c_ubyte]
"""What every memoryview, numpy array or torch tensor over a kept mapping keeps alive.

The kept mapping outlives tenancies, so its own death says nothing; a ctypes array over it is made for each lease, can be watched,
and is what all buffers made from it refer to.
"""


def _lease(segment: Segment) -> _Lease:
    return (ctypes.c_ubyte * segment.capacity).from_buffer(segment.kept)


@dataclass(eq=False, slots=True)
class _Tenancy:
    """What the arena knows of a slot. Guarded by the arena's lock; `writer` and `sealed` belong to the one owner."""

    number: int
    segment: Segment
    writer: _Lease | None = None
    sealed: bool = False
    released: bool = False
    views: int = 0
    """Mappings and leases handed out whose death is not settled yet."""

    def seal(self) -> None:
        self.sealed = True
        self.writer = None


class Slot:
    """One tenancy of a piece of the arena, from `take` to `release`. One thread owns it; `shared` and `private` are for all.

    A handle outlives its tenancy harmlessly: after `release` each use of it raises `ValueError`, whoever has the memory now.
    """

    def __init__(self, arena: Arena, tenancy: _Tenancy, nbytes: int) -> None:
        self.nbytes: Final = nbytes
        """Bytes asked for: the length of `buffer`."""
        self.capacity: Final = tenancy.segment.capacity
        """Bytes charged to the budget: whole pages, perhaps a quarter more than asked when an older slot was reused."""
        self._arena = arena
        self._tenancy = tenancy

    @property
    def buffer(self) -> memoryview:
        """The slot's bytes, writable, unsigned bytes of length `nbytes`, already faulted in. For the one writer, until `seal`.

        No copy; content starts as whatever an earlier tenant left. Arrays built on it count as views of the slot. Raises
        `ValueError` once the slot is sealed or released.
        """
        if self._tenancy.sealed:
            raise ValueError("the slot is sealed: nobody may write to it any more")
        if self._tenancy.writer is None:
            # Outside the lock: readers go on mapping while pages are faulted in.
            self._tenancy.segment.fault_in()
            self._tenancy.writer = self._arena.hand_out(self._tenancy, _lease)
        return memoryview(self._tenancy.writer).cast("B")[: self.nbytes]

    def write(self, data: memoryview, offset: int) -> None:
        """Copies unsigned bytes into place, `offset` bytes into the slot. For the one writer, until `seal`.

        In memory that is new this spares the pages' mapping and zeroing, which `buffer` takes. Raises `ValueError` once the slot is
        sealed or released, or where the bytes reach beyond it.
        """
        if self._tenancy.sealed:
            raise ValueError("the slot is sealed: nobody may write to it any more")
        if not 0 <= offset <= offset + len(data) <= self.nbytes:
            raise ValueError(f"{len(data)} bytes at {offset} reach beyond a slot of {self.nbytes}")
        self._tenancy.segment.write(data, offset)

    @property
    def readonly_buffer(self) -> memoryview:
        """The slot's bytes, read-only, over pages that are mapped already where the slot was written through `buffer`: the fastest way
        to copy *out* of it (no page faults, which cost a fresh mapping as much again as the copy). For code that copies and lets go; users get a mapping of their own.
        """
        return memoryview(self._arena.hand_out(self._tenancy, _lease)).cast("B")[: self.nbytes].toreadonly()

    @property
    def is_viewed(self) -> bool:
        """Whether a mapping, view or array of it lives."""
        return self._arena.is_viewed(self._tenancy)

    def shared(self) -> mmap.mmap:
        """A new read-only mapping of the slot, `nbytes` long (one byte if `nbytes` is 0). No copy.

        A numpy array on it can never be made writable. It may be called from any thread, as often as wanted; each live mapping
        holds one descriptor. Raises `ValueError` after `release`, `OSError` when descriptors have run out.
        """
        return self._arena.hand_out(self._tenancy, lambda segment: segment.map_shared(max(1, self.nbytes)))

    def private(self) -> mmap.mmap:
        """A new copy-on-write mapping of the slot, `nbytes` long (one byte if `nbytes` is 0). No copy until a page is written.

        For torch, which knows no read-only tensors: what a reader writes into its mapping stays its own and is not charged to the
        budget. Threads, descriptors and errors as for `shared`.
        """
        return self._arena.hand_out(self._tenancy, lambda segment: segment.map_private(max(1, self.nbytes)))

    def seal(self) -> None:
        """Ends writing: `buffer` raises from here on. Arrays the writer still holds on it must not be written either."""
        self._tenancy.seal()

    def release(self) -> None:
        """Gives the slot up. Mappings and arrays that live on stay valid and unchanged; the memory waits for the last of them."""
        self._arena.give_back(self._tenancy)


class Arena:
    """Kept slots under a budget, whose memory is there before it is written. Thread-safe. All of a slot's capacity is charged, free slots too.

    One slot costs two descriptors, each live mapping one more; they are meant for whole versions, not for single tensors.
    """

    def __init__(self, budget: Budget, kept_free_slots: int = KEPT_FREE_SLOTS) -> None:
        """Registers itself with `budget` as what gives memory back when a charge does not fit."""
        self._budget = budget
        self._kept_free_slots = kept_free_slots
        # Reentrant: garbage collection under this lock may run somebody's finalizer that releases a slot.
        self._lock = threading.RLock()
        self._free: list[Segment] = []  # In order of becoming free, the oldest first.
        self._tenancies: dict[int, _Tenancy] = {}  # Taken, or released and still viewed; by number.
        self._numbers = itertools.count()
        # Numbers of slots, one for each view that died. Numbers, since a finalizer that held its slot would keep it for ever.
        self._dead_views: deque[int] = deque()
        self._closed = False
        budget.reclaim_with(self.give_back_free)

    def take(self, nbytes: int) -> Slot:
        """A slot for `nbytes` (≥ 0) bytes: a free one of fitting size at once, else new memory (about 0.3 ms a MiB).

        Raises `StorageFull` with nothing changed if budget or system lack the memory or the descriptors, `ValueError` after `close`.
        """
        if nbytes < 0:
            raise ValueError(f"a slot cannot have a negative size: {nbytes}")
        with self._lock:
            self._require_open()
            self._settle()
            segment = self._pop_fitting(nbytes)
            slot = self._let(segment, nbytes) if segment is not None else None
        if segment is not None and slot is not None:
            # What was used again will be once more: mapped, it is written at the speed of memory. Without, through its file.
            with suppress(OSError):
                segment.fault_in()
            return slot
        capacity = round_up(nbytes)
        self._budget.charge(capacity)
        try:
            # Outside the lock: readers go on mapping while pages are taken.
            segment = Segment(capacity)
        except OSError as error:
            self._budget.refund(capacity)
            raise self._budget.full(capacity, because=f"the system refused: {error.strerror}") from error
        except BaseException:
            self._budget.refund(capacity)
            raise
        with self._lock:
            if self._closed:
                segment.close()
                self._budget.refund(capacity)
                self._require_open()
            return self._let(segment, nbytes)

    @property
    def used_bytes(self) -> int:
        """Capacity of the slots that are taken, or released and still viewed."""
        with self._lock:
            self._settle()
            return sum(tenancy.segment.capacity for tenancy in list(self._tenancies.values()))

    @property
    def free_bytes(self) -> int:
        """Capacity of the free slots: charged, and given back as soon as somebody needs the budget."""
        with self._lock:
            self._settle()
            return sum(segment.capacity for segment in list(self._free))

    def give_back_free(self, nbytes: int) -> int:
        """Closes free slots, the oldest first, until at least `nbytes` are refunded or none is left. Returns bytes refunded."""
        with self._lock:
            self._settle()
            refunded = 0
            while self._free and refunded < nbytes:
                refunded += self._discard(self._free.pop(0))
            return refunded

    def close(self) -> None:
        """Gives everything back to budget and system, slots still taken too; a second call does nothing.

        Leaves no descriptor of the arena. A mapping or array that somebody still holds stays valid and unchanged, and takes its
        own memory and descriptor with it when it is dropped.
        """
        with self._lock:
            self._closed = True
            for segment in self._free:
                self._discard(segment)
            self._free.clear()
            for tenancy in self._tenancies.values():
                tenancy.seal()
                self._discard(tenancy.segment)
            self._tenancies.clear()
            self._dead_views.clear()

    # What slots call.

    def hand_out(self, tenancy: _Tenancy, make: Callable[[Segment], _View]) -> _View:
        """Makes a view of the slot's memory, which is not let again while the view lives.

        All under the lock: a `close` between the check and the mapping would map whatever file has the descriptor's number next.
        """
        with self._lock:
            self._require_open()
            if tenancy.released:
                raise ValueError("the slot was released: its memory may belong to somebody else")
            view = make(tenancy.segment)
            tenancy.views += 1
            # At exit the process drops everything at once; a finalizer would only run against a half-gone interpreter.
            weakref.finalize(view, self._dead_views.append, tenancy.number).atexit = False
            return view

    def is_viewed(self, tenancy: _Tenancy) -> bool:
        with self._lock:
            self._settle()
            return tenancy.views > 0

    def give_back(self, tenancy: _Tenancy) -> None:
        """Ends a tenancy. After `close` it does nothing: all memory went then."""
        with self._lock:
            if self._closed:
                return
            if tenancy.released:
                raise ValueError("the slot was released before")
            tenancy.released = True
            tenancy.seal()
            self._settle()
            self._free_if_unused(tenancy)

    # Under the lock.

    def _require_open(self) -> None:
        if self._closed:
            raise ValueError("the store of this memory is closed")

    def _let(self, segment: Segment, nbytes: int) -> Slot:
        tenancy = _Tenancy(next(self._numbers), segment)
        self._tenancies[tenancy.number] = tenancy
        return Slot(self, tenancy, nbytes)

    def _pop_fitting(self, nbytes: int) -> Segment | None:
        """The smallest free segment that holds `nbytes` and wastes little."""
        most = round_up(nbytes) + max(round_up(nbytes // 4), _SLACK_PAGES * mmap.PAGESIZE)
        fitting = [segment for segment in self._free if nbytes <= segment.capacity <= most]
        if not fitting:
            return None
        segment = min(fitting, key=lambda candidate: candidate.capacity)
        self._free.remove(segment)
        return segment

    def _settle(self) -> None:
        """Takes note of the views that died since the last call."""
        while self._dead_views:
            tenancy = self._tenancies.get(self._dead_views.popleft())
            if tenancy is not None:
                tenancy.views -= 1
                self._free_if_unused(tenancy)

    def _free_if_unused(self, tenancy: _Tenancy) -> None:
        # Settling may have freed it already when its owner's call comes to it.
        if tenancy.released and tenancy.views == 0 and tenancy.number in self._tenancies:
            del self._tenancies[tenancy.number]
            self._free.append(tenancy.segment)
            while len(self._free) > self._kept_free_slots:
                self._discard(self._free.pop(0))

    def _discard(self, segment: Segment) -> int:
        segment.close()
        self._budget.refund(segment.capacity)
        return segment.capacity
