"""Who is inside a bound module, and when nobody is: the gap in which it may be overwritten.

Two kinds of guests. A *forward* is short: one that wants to begin while a swap is due waits for it, so that threads which spin
through forwards cannot put it off for ever. A *hold* is long, a whole generation: while one lasts, forwards come in at once,
since no gap is near; a further hold waits for the swap, so that generations which overlap cannot put it off either. What a
thread does inside its own forward or hold never waits. Every wait ends after `PATIENCE_S`, without the swap.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

PATIENCE_S = 30.0
"""How long a guest waits for others to leave so that a due swap gets its gap; then it goes in on the version before."""


class Gap:
    """Counts guests. Everything but `in_forward` and the depths is under the lock of `changed`."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.Lock())
        """Notified when a guest came or left, and by its owner when a swap was made or called off."""
        self._forwards = 0
        """Outermost forwards that run, of all threads."""
        self._holders: dict[int, int] = {}
        """Thread → holds that it has entered. A hold may be left in another thread than it was entered in."""
        self._depth = threading.local()

    @property
    def is_empty(self) -> bool:
        return not self._forwards and not self._holders

    def is_inside(self) -> bool:
        """Whether the calling thread is inside by a forward or a hold."""
        return self.in_forward() or threading.get_ident() in self._holders

    # --- forwards ---------------------------------------------------------------------------------------------------------------

    def in_forward(self) -> bool:
        return getattr(self._depth, "count", 0) > 0

    def begin_forward(self, is_due: Callable[[], bool]) -> None:
        """Wait while a swap is due and a gap is near. Call it for an outermost forward, then `enter_forward`."""
        self.changed.wait_for(lambda: self.is_empty or bool(self._holders) or not is_due(), PATIENCE_S)

    def enter_forward(self) -> None:
        self._forwards += 1

    def deepen(self) -> None:
        """The calling thread is one forward deeper inside."""
        self._depth.count = getattr(self._depth, "count", 0) + 1

    def rise(self) -> bool:
        """One forward less; True where it was the outermost. Of a forward that never began, False."""
        depth = getattr(self._depth, "count", 0)
        self._depth.count = max(0, depth - 1)
        return depth == 1

    def leave_forward(self) -> None:
        self._forwards -= 1

    # --- holds ------------------------------------------------------------------------------------------------------------------

    def begin_hold(self, is_due: Callable[[], bool]) -> None:
        """Wait while a swap is due, unless the calling thread is inside already. Then call `enter_hold`."""
        if not self.is_inside():
            self.changed.wait_for(lambda: self.is_empty or not is_due(), PATIENCE_S)

    def enter_hold(self) -> int:
        """Returns what `leave_hold` is to be called with."""
        holder = threading.get_ident()
        self._holders[holder] = self._holders.get(holder, 0) + 1
        self.changed.notify_all()
        return holder

    def leave_hold(self, holder: int) -> None:
        left = self._holders.pop(holder) - 1
        if left:
            self._holders[holder] = left
