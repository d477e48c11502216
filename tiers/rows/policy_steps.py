"""The two steps of `policy.py` that go slot by slot. Plain loops over arrays: numba compiles them where it is there.

A queue is a circle of slots behind one fixed place of the chain, its end: `newer[end]` is its oldest slot, `older[end]` its newest.
The ends stand at 0 and 1, and slot n stands at `n + FIRST`, so the arrays grow at their end only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

GONE: Final = 0
"""Not in the tier."""
SHORT: Final = 1
"""In the short queue: came in lately. The number of a queue is one above the place of its end."""
MAIN: Final = 2
"""In the main queue: used since it came in, or back soon after it left."""
LEAVING: Final = 3
"""Chosen out of the short queue, and still there until it is said to have left."""
LEAVING_MAIN: Final = 4
"""Chosen out of the main queue."""
FIRST: Final = 2
"""The place of slot 0 in the chains."""


class Steps(NamedTuple):
    """The loops, compiled or plain."""

    link: Callable[..., None]
    unlink: Callable[..., None]
    choose: Callable[..., None]


def link(
    newer: NDArray[np.int32],
    older: NDArray[np.int32],
    queue: NDArray[np.uint8],
    counts: NDArray[np.int64],
    slots: NDArray[np.int64],
    to: int,
) -> None:
    """Puts slots that are in no queue into the queue `to`, as its newest, in the order given."""
    end = to - 1
    for slot in slots:
        at = slot + 2
        newest = older[end]
        newer[newest] = at
        older[at] = newest
        newer[at] = end
        older[end] = at
        queue[slot] = to
    counts[to] += len(slots)


def unlink(
    newer: NDArray[np.int32],
    older: NDArray[np.int32],
    queue: NDArray[np.uint8],
    counts: NDArray[np.int64],
    slots: NDArray[np.int64],
) -> None:
    """Takes slots out of whatever queue they are in, if they are in one: they are gone."""
    for slot in slots:
        held = queue[slot]
        if held == 1 or held == 2:
            at = slot + 2
            newer[older[at]] = newer[at]
            older[newer[at]] = older[at]
            counts[held] -= 1
        queue[slot] = 0


def choose(
    newer: NDArray[np.int32],
    older: NDArray[np.int32],
    queue: NDArray[np.uint8],
    counts: NDArray[np.int64],
    uses: NDArray[np.uint8],
    pins: NDArray[np.int32],
    short_share: int,
    chosen: NDArray[np.int64],
) -> None:
    """Fills `chosen` with the slots that leave next. At least as many as it is long must be in the queues without a pin.

    Ends: a slot without a pin loses a use at each turn of its own, so it is chosen within as many rounds as uses can be saved up.
    """
    found = 0
    passed = 0  # Slots with a pin at the new end of the main queue. Where it has no others, the short queue gives what it has.
    while found < len(chosen):
        held = 1 if counts[1] * short_share > counts[1] + counts[2] or passed >= counts[2] else 2
        at = newer[held - 1]
        slot = at - 2
        newer[older[at]] = newer[at]
        older[newer[at]] = older[at]
        counts[held] -= 1
        if uses[slot] == 0 and pins[slot] == 0:
            queue[slot] = held + 2
            chosen[found] = slot
            found += 1
            continue
        if pins[slot] == 0:
            uses[slot] = 0 if held == 1 else uses[slot] - 1
            passed = 0
        else:
            passed += 1
        newest = older[1]
        newer[newest] = at
        older[at] = newest
        newer[at] = 1
        older[1] = at
        queue[slot] = 2
        counts[2] += 1
