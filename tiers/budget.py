"""One number of bytes that all holders of a tier draw from."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from ..errors import StorageFull

HIGH_WATER: Final = 15 / 16
"""Of a budget: above it items begin to leave for the tier below, before a charge has to wait for them."""

LOW_WATER: Final = 7 / 8
"""Of a budget: down to here they leave then, so that they leave in batches, and what is used again finds room."""


class Budget:
    """What a tier may hold, in bytes, and what it holds now.

    Everything that is kept is charged *before* it is kept: slots in use and free ones, KV entries, staging. So `held` is at most
    `limit`, except after a forced charge. All methods may be called from any thread and never wait for more than a few
    instructions, apart from the time that giving memory back takes.

    Lock order: a holder may call in here with its own lock held, and `charge` calls reclaimers with no lock of its own held. A
    reclaimer may take the locks of any holder: whoever charges without `forced` holds none of them (`charge_if_low` calls nobody).
    """

    def __init__(self, limit: int, tier: str = "dram", place: str = "") -> None:
        self.limit = limit
        """Bytes that may be held."""
        self.tier = tier
        """The tier's name, for errors."""
        self.place = place
        """Where it lies, for errors: a folder, or "" for memory."""
        self._held = 0
        # Reentrant: garbage collection under it may run somebody's finalizer that releases weights, which refunds.
        self._lock = threading.RLock()
        self._reclaimers: tuple[Callable[[int], int], ...] = ()
        self.hint: Callable[[], str] = lambda: ""
        """Why nothing more could leave, for the error; "" where there is nothing to say."""

    @property
    def held(self) -> int:
        """Bytes charged and not refunded."""
        return self._held

    @property
    def high(self) -> int:
        """Bytes above which `excess` is not 0."""
        return int(self.limit * HIGH_WATER)

    @property
    def excess(self) -> int:
        """Bytes that should leave: 0 up to the high water mark, and above it all that lies above the low one."""
        held = self._held
        return held - int(self.limit * LOW_WATER) if held > self.high else 0

    def reclaim_with(self, reclaim: Callable[[int], int]) -> None:
        """Has `reclaim(nbytes)` called where a charge does not fit: it refunds what can go, and returns bytes, 0 where it has nothing
        left. It may be called from any thread, must not charge without `forced`, and must not raise. Those added first are asked first.
        """
        self._reclaimers = (*self._reclaimers, reclaim)

    def reclaim(self, nbytes: int) -> int:
        """Asks for `nbytes` to be refunded. Returns how many were; fewer where nothing more can go."""
        refunded = 0
        for reclaim in self._reclaimers:
            while refunded < nbytes and (given := reclaim(nbytes - refunded)) > 0:
                refunded += given
        return refunded

    def charge(self, nbytes: int, *, forced: bool = False) -> None:
        """Takes `nbytes`. What does not fit is first made room for by the reclaimers.

        Raises `StorageFull` naming tier, asked, held and limit, with nothing taken. `forced` takes the bytes even past the limit:
        for an undo, which must not fail half-way; later charges are refused until enough is refunded.
        """
        # What could never fit drives nothing out.
        may_wait = nbytes <= self.limit
        while not self._take(nbytes, forced=forced):
            if not may_wait:
                raise self.full(nbytes)
            # Where nothing is left to refund, another thread may just have refunded it.
            may_wait = self.reclaim(self._held + nbytes - self.limit) > 0

    def _take(self, nbytes: int, *, forced: bool) -> bool:
        with self._lock:
            fits = forced or self._held + nbytes <= self.limit
            if fits:
                self._held += nbytes
            return fits

    def charge_if_low(self, nbytes: int) -> bool:
        """Takes `nbytes` where no more than the high water mark is held then. False, with nothing taken, otherwise; nothing leaves."""
        with self._lock:
            is_low = self._held + nbytes <= self.high
            if is_low:
                self._held += nbytes
            return is_low

    def refund(self, nbytes: int) -> None:
        """Gives back `nbytes` that were charged."""
        with self._lock:
            assert 0 <= nbytes <= self._held, f"refund of {nbytes} bytes, {self._held} are held"
            self._held -= nbytes

    def full(self, asked: int, because: str = "") -> StorageFull:
        """The error for `asked` bytes that cannot be had. `because` is the system's reason, if it was not the limit."""
        reason = because or f"its limit is {self.limit} bytes"
        place = f" in {self.place}" if self.place else ""
        hint = self.hint()
        return StorageFull(
            f"the {self.tier} tier{place} cannot hold {asked} bytes more: {self._held} are held and {reason}"
            + (f"; {hint}" if hint else ""),
            remedy=f"Give the store a larger budget ({self.tier}=), keep fewer versions, or let go of weights no longer read",
        )
