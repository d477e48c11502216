"""What went through a partition since this broker opened it, and how long it takes to become durable. For people who look."""

from __future__ import annotations

from collections import deque


class Load:
    """Counts of one partition. Kept by the loop's thread, a few additions an event; times are monotonic ns."""

    __slots__ = ("_undurable", "durable_after_ns", "nbytes", "records")

    def __init__(self) -> None:
        self.records = 0
        """Appended to the log: events, and a few of the broker's own."""
        self.nbytes = 0
        self.durable_after_ns = 0
        """What the last batch that became durable had waited for that."""
        self._undurable: deque[tuple[int, int]] = deque()
        """(last position, time) of batches that are appended and not durable, oldest first."""

    def appended(self, nbytes: int) -> None:
        self.records += 1
        self.nbytes += nbytes

    def batch_ended(self, position: int, now_ns: int) -> None:
        """Everything up to `position` is in the log's hands."""
        self._undurable.append((position, now_ns))

    def durable(self, position: int, now_ns: int) -> None:
        """Everything up to `position` is there for good."""
        while self._undurable and self._undurable[0][0] <= position:
            self.durable_after_ns = now_ns - self._undurable.popleft()[1]

    def undurable_ns(self, now_ns: int) -> int:
        """How long the oldest batch that is not durable has waited for it; 0 where all is durable."""
        return max(0, now_ns - self._undurable[0][1]) if self._undurable else 0
