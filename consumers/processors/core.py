"""When a processor's task keeps a snapshot. A core: no clock, disk or thread; time comes in, what to do comes out.

A snapshot is a state and the position of the last input in it. It is *captured* (copied) between two inputs, and *written*
once every output of the inputs before it is durable, while the task goes on with later ones. At most one is on its way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

EVERY_S = 1.0
"""What a crash makes a task repeat, beside what is not durable yet."""

SHARE = 10
"""A task spends at most about a tenth of its time on snapshots: a large state has fewer."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Captured(Generic[_T]):
    """A state as of `position`, and how many calls of outputs must be durable before it counts."""

    position: int
    state: _T
    outputs: int


class SnapshotPlan(Generic[_T]):
    """The task's position, and the snapshot on its way. Times are seconds of any steady clock."""

    def __init__(self, position: int, now: float) -> None:
        """`position` is of the snapshot that the task began with, or of the source's start."""
        self.position = position
        """Of the last input that is in the state."""
        self.saved = position
        """Of the newest snapshot."""
        self._pending: Captured[_T] | None = None
        self._next_s = now + EVERY_S
        self._cost_s = 0.0

    def took(self, position: int) -> None:
        """An input went into the state."""
        assert position > self.position, "inputs come in order"
        self.position = position

    @property
    def is_saved(self) -> bool:
        """The newest snapshot has all that the state has."""
        return self.saved == self.position

    @property
    def is_pending(self) -> bool:
        return self._pending is not None

    def is_due(self, now: float, *, ending: bool = False) -> bool:
        """Capture the state now. `ending`: the task stops, and keeps what it has."""
        return self._pending is None and not self.is_saved and (ending or now >= self._next_s)

    def captured(self, state: _T, outputs: int, cost_s: float) -> None:
        """The state was copied in `cost_s`; `outputs` calls were made before."""
        assert self._pending is None
        self._pending, self._cost_s = Captured(self.position, state, outputs), cost_s

    def ready(self, durable: int) -> Captured[_T] | None:
        """The snapshot to write: the first `durable` calls of outputs are durable, and that is all that it rests on."""
        pending = self._pending
        return pending if pending is not None and pending.outputs <= durable else None

    def written(self, now: float, cost_s: float) -> None:
        """The snapshot that was ready is safe."""
        assert self._pending is not None
        self.saved, self._pending = self._pending.position, None
        self._next_s = now + max(EVERY_S, SHARE * (self._cost_s + cost_s))

    def failed(self, now: float) -> None:
        """It could not be written: a newer one is tried later."""
        self._pending = None
        self._next_s = now + EVERY_S
