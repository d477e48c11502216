"""Positions: where an event stands in its partition.

A position is one unsigned 64-bit integer, 36 bits of *epoch* above 28 bits of dense *offset*, so that plain `<` orders the
positions of a partition. Offset 0 of an epoch is its epoch record; events begin at offset 1. Position 0 stands before
everything.
"""

from __future__ import annotations

OFFSET_BITS = 28
MAX_OFFSET = (1 << OFFSET_BITS) - 1
MAX_EPOCH = (1 << 36) - 1
MAX_POSITION = MAX_EPOCH << OFFSET_BITS | MAX_OFFSET

START = 0
"""The position before the first one of any partition."""

EPOCH_ZERO_UNIX_S = 1_767_225_600
"""2026-01-01T00:00:00Z: epochs count 1/64 s from here, so that they grow even where a log was lost."""

CLOCK_END_UNIX_S = 2_524_608_000
"""2050-01-01T00:00:00Z: a clock past this is broken and would burn epochs."""


def position(epoch: int, offset: int) -> int:
    """The position at `offset` (0 … 2²⁸−1) of `epoch` (0 … 2³⁶−1)."""
    assert 0 <= epoch <= MAX_EPOCH and 0 <= offset <= MAX_OFFSET, (epoch, offset)
    return epoch << OFFSET_BITS | offset


def epoch_of(position: int) -> int:
    return position >> OFFSET_BITS


def offset_of(position: int) -> int:
    return position & MAX_OFFSET


def events_between(after: int, head: int) -> int:
    """Events above position `after`, up to `head`. Where `head` is of a later epoch: those of that epoch alone, as nobody who
    has not read how the earlier ones ended can know more.
    """
    if head <= after:
        return 0
    return head - after if epoch_of(head) == epoch_of(after) else offset_of(head) + 1


def next_epoch(last_epoch: int, clock_s: float) -> int:
    """The epoch of a new tenure: above the last one, and at least the clock (seconds since 1970), where that is sane."""
    by_clock = int((clock_s - EPOCH_ZERO_UNIX_S) * 64) if EPOCH_ZERO_UNIX_S <= clock_s < CLOCK_END_UNIX_S else 0
    return max(last_epoch + 1, by_clock)


def show(position: int) -> str:
    """`epoch:offset`, as users read it in errors and status."""
    return f"{epoch_of(position)}:{offset_of(position)}"
