"""The world's time: monotonic seconds that only go forward, and a wall clock that may be set to anything."""

from __future__ import annotations

from dataclasses import dataclass

WALL_S = 1_800_000_000.0
"""Where the wall clock stands when a world begins."""


@dataclass
class Clock:
    now: float = 1.0
    """Monotonic seconds: what cores are given."""
    off_s: float = 0.0
    """How far somebody has set the wall clock."""

    @property
    def wall_s(self) -> float:
        """Seconds since 1970, as a process on this machine reads them."""
        return WALL_S + self.now + self.off_s

    @property
    def now_ns(self) -> int:
        return int(self.now * 1e9)

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def set_back_or_forth(self, seconds: float) -> None:
        self.off_s += seconds
