"""Which rows leave a tier next: S3-FIFO over slots. Decides and does nothing else: no I/O, no lock, no clock.

Every row that comes in waits in a short queue. One that is used while it waits moves on to the main queue when its turn to leave
comes; one that is not leaves, and a trace of its key stays for a while. A key that comes back while its trace is there goes to the
main queue at once. The main queue is a circle: whoever was used goes round again, once for each use it has saved up, and the others
leave. So a scan of keys that are read once passes through the short queue and moves nothing of what is in use. Every use counts,
reads and writes alike, and to come in is none: who comes in is young, and that protects it (fault M03).

Slots are small integers, as those of a table's arrays; a queue is a chain of slots, so one may leave from anywhere in it. The loops
lie in `policy_steps.py`, and are the same source with numba and without.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from .kernels import uses_numba
from .policy_steps import FIRST, GONE, LEAVING, MAIN, SHORT, Steps, choose, link, unlink

MAX_USES: Final = 3
"""Uses that a row can save up, each good for one round of the main queue. Seven win half a point where popularity stands still, and
lose a whole one where it shifts: what was hot once stays for too long."""

SHORT_SHARE: Final = 40
"""The short queue gives its oldest row up first while it has more than one row in so many of all."""

Slots = NDArray[np.int64]


def load_steps() -> Steps:
    """Compiled where the process uses numba, which is imported here and not before; else plain. Both decide alike."""
    if not uses_numba():
        return Steps(link, unlink, choose)
    from .compiled_policy import STEPS  # numba is optional, and slow to import.

    return STEPS


class EvictionPolicy:
    """The queues of one table's rows in one tier. Not thread-safe: its table's lock is held around each call.

    A slot is in the tier from `admit` to `left` or `forget`. Calls take unique slots, apart from `touch`.
    """

    def __init__(self, slots: int = 0, steps: Steps | None = None) -> None:
        """For slots 0 to `slots` - 1. `steps`: the loops, by default compiled where numba is there."""
        self._steps = steps or load_steps()
        self._queue = np.zeros(0, np.uint8)
        self._uses = np.zeros(0, np.uint8)
        self._pins = np.zeros(0, np.int32)
        # Both queues are empty circles: each end is its own neighbour.
        self._newer = np.arange(FIRST, dtype=np.int32)
        self._older = np.arange(FIRST, dtype=np.int32)
        self._counts = np.zeros(MAIN + 1, np.int64)
        self._pinned = 0
        self._traces = np.zeros(1, np.uint32)
        self.grow(slots)

    def __len__(self) -> int:
        """Slots in the queues: in the tier, and not chosen."""
        return int(self._counts[SHORT] + self._counts[MAIN])

    @property
    def evictable(self) -> int:
        """Slots in the queues that have no pin."""
        return len(self) - self._pinned

    @staticmethod
    def nbytes_for(slots: int) -> int:
        """Bytes held for so many slots: 14 each for its places, uses and pins, and up to 1 for the traces of keys that left."""
        return 14 * slots + 4 * _trace_places(slots)

    def grow(self, slots: int) -> None:
        """Makes room for slots 0 to `slots` - 1. Never fewer than before. The traces are kept where their number stays."""
        more = slots - len(self._queue)
        if more <= 0:
            return
        self._queue = np.concatenate([self._queue, np.zeros(more, np.uint8)])
        self._uses = np.concatenate([self._uses, np.zeros(more, np.uint8)])
        self._pins = np.concatenate([self._pins, np.zeros(more, np.int32)])
        self._newer = np.concatenate([self._newer, np.zeros(more, np.int32)])
        self._older = np.concatenate([self._older, np.zeros(more, np.int32)])
        places = _trace_places(slots)
        # A trace's place is its hash modulo a power of two: it is found in each copy.
        self._traces = np.tile(self._traces, places // len(self._traces))

    def admit(self, slots: Slots, keys: NDArray[np.int64]) -> None:
        """Rows came in, or came back. `keys`: theirs, in the same order."""
        self._uses[slots] = 0
        places, prints = self._traced(keys)
        is_back = self._traces[places] == prints
        self._traces[places[is_back]] = 0
        self._link(slots[is_back], MAIN)
        self._link(slots[~is_back], SHORT)

    def touch(self, slots: Slots) -> None:
        """Rows were used, in one call: a slot that repeats counts once."""
        self._uses[slots] = np.minimum(self._uses[slots] + np.uint8(1), np.uint8(MAX_USES))

    def pin(self, slots: Slots) -> None:
        """None of these is chosen before `unpin` was called as often."""
        self._pinned += int(np.count_nonzero(self._is_queued(slots) & (self._pins[slots] == 0)))
        self._pins[slots] += 1

    def unpin(self, slots: Slots) -> None:
        """Undoes one `pin` of each."""
        self._pins[slots] -= 1
        self._pinned -= int(np.count_nonzero(self._is_queued(slots) & (self._pins[slots] == 0)))

    def are_pinned(self, slots: Slots) -> NDArray[np.bool_]:
        """Which have a pin."""
        are_pinned: NDArray[np.bool_] = self._pins[slots] > 0
        return are_pinned

    def are_held(self, slots: Slots) -> NDArray[np.bool_]:
        """Which are in the tier, chosen or not."""
        are_held: NDArray[np.bool_] = self._queue[slots] != GONE
        return are_held

    def choose(self, count: int) -> Slots:
        """The next `count` slots to leave, fewer where fewer are evictable. Each is leaving until `left` or `stay`."""
        chosen = np.empty(max(0, min(count, self.evictable)), np.int64)
        queues = (self._newer, self._older, self._queue, self._counts)
        self._steps.choose(*queues, self._uses, self._pins, SHORT_SHARE, chosen)
        return chosen

    def take(self, slots: Slots) -> None:
        """These slots leave next, whoever they are: all in the queues, and without a pin."""
        queue = self._queue[slots]
        self._steps.unlink(self._newer, self._older, self._queue, self._counts, slots)
        self._queue[slots] = queue + (LEAVING - SHORT)

    def left(self, slots: Slots, keys: NDArray[np.int64]) -> None:
        """Rows that were chosen have left the tier. Of those that nobody used in their first turn a trace stays."""
        is_traced = self._queue[slots] == LEAVING
        self._queue[slots] = GONE
        places, prints = self._traced(keys[is_traced])
        self._traces[places] = prints

    def stay(self, slots: Slots) -> None:
        """Rows that were chosen could not leave, or were changed meanwhile: they stay, as used ones do. Others are passed over."""
        self._link(slots[self.are_leaving(slots)], MAIN)

    def are_leaving(self, slots: Slots) -> NDArray[np.bool_]:
        """Which are chosen, and neither gone nor said to stay since."""
        are_leaving: NDArray[np.bool_] = self._queue[slots] >= LEAVING
        return are_leaving

    def forget(self, slots: Slots) -> None:
        """Rows are there no more, in no tier: deleted. Without a trace, whether chosen or not; pins go with them."""
        self._pinned -= int(np.count_nonzero(self._is_queued(slots) & (self._pins[slots] > 0)))
        self._pins[slots] = 0
        self._steps.unlink(self._newer, self._older, self._queue, self._counts, slots)

    def _link(self, slots: Slots, to: int) -> None:
        self._pinned += int(np.count_nonzero(self._pins[slots]))
        self._steps.link(self._newer, self._older, self._queue, self._counts, slots, to)

    def _is_queued(self, slots: Slots) -> NDArray[np.bool_]:
        is_queued: NDArray[np.bool_] = (self._queue[slots] == SHORT) | (self._queue[slots] == MAIN)
        return is_queued

    def _traced(self, keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Where the trace of each key would stand, and what it would be: never 0, which is none."""
        mixed = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(0xD6E8FEB86659FD93)
        places = (mixed & np.uint64(len(self._traces) - 1)).astype(np.int64)
        return places, (mixed >> np.uint64(32)).astype(np.uint32) | np.uint32(1)


def _trace_places(slots: int) -> int:
    """Traces kept: for an eighth to a quarter as many keys as there are slots, a power of two. With more, keys that are used seldom come
    back in time too, and push out what is used more; with fewer, a shift of popularity is learnt too slowly.
    """
    return 1 << (max(0, slots - 1) // 8).bit_length()
