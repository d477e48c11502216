"""One number of bytes that all holders of a tier draw from."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..errors import StorageFull


class Budget:
    """What a tier may hold, in bytes, and what it holds now.

    Everything that is kept is charged *before* it is kept: slots in use and free ones, KV entries, staging. So `held` is at most
    `limit`, except after a forced charge. All methods may be called from any thread and never wait for more than a few
    instructions, apart from the time that giving memory back takes.

    Lock order: a holder may call in here with its own lock held, and `charge` calls the reclaimer with no lock of its own held.
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
        self._reclaim: Callable[[int], int] | None = None

    @property
    def held(self) -> int:
        """Bytes charged and not refunded."""
        return self._held

    def reclaim_with(self, reclaim: Callable[[int], int]) -> None:
        """Has `reclaim(nbytes)` called when a charge does not fit: it refunds what it holds only for reuse, and returns bytes."""
        self._reclaim = reclaim

    def charge(self, nbytes: int, *, forced: bool = False) -> None:
        """Takes `nbytes`. What does not fit is first made room for by the reclaimer.

        Raises `StorageFull` naming tier, asked, held and limit, with nothing taken. `forced` takes the bytes even past the limit:
        for an undo, which must not fail half-way; later charges are refused until enough is refunded.
        """
        while True:
            with self._lock:
                missing = self._held + nbytes - self.limit
                if missing <= 0 or forced:
                    self._held += nbytes
                    return
            if self._reclaim is None or self._reclaim(missing) <= 0:
                raise self.full(nbytes)

    def refund(self, nbytes: int) -> None:
        """Gives back `nbytes` that were charged."""
        with self._lock:
            assert 0 <= nbytes <= self._held, f"refund of {nbytes} bytes, {self._held} are held"
            self._held -= nbytes

    def full(self, asked: int, because: str = "") -> StorageFull:
        """The error for `asked` bytes that cannot be had. `because` is the system's reason, if it was not the limit."""
        reason = because or f"its limit is {self.limit} bytes"
        place = f" in {self.place}" if self.place else ""
        return StorageFull(
            f"the {self.tier} tier{place} cannot hold {asked} bytes more: {self._held} are held and {reason}",
            remedy=f"Give the store a larger budget ({self.tier}=), keep fewer versions, or let go of weights no longer read",
        )
