"""Answers that wait until something is durable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..consistency.vector import PartitionId
from ..errors import ParamstreamError
from ..events.codec import Buffer
from ..events.kinds import Payload
from .owned import Owned

Write = Callable[[PartitionId, Payload, Sequence[Buffer]], int]
"""Writes the broker's own event to a partition; returns its position."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The way back to whoever asked. Exactly one of the two is called, at once or later."""

    answer: Callable[[Any], None]
    fail: Callable[[ParamstreamError], None]


@dataclass(slots=True)
class _Waiting:
    """`give` is called once every partition in `needs` is durable up to the position beside it, and of every one in `looks` it is
    certain that no other broker owned it at the time beside it.
    """

    needs: Mapping[PartitionId, int]
    give: Callable[[], None]
    looks: Mapping[PartitionId, float]


class Pending:
    """In the loop's thread. A partition that is owned no longer holds nothing up: those who waited for it were sent away."""

    def __init__(self, owned: Mapping[PartitionId, Owned], is_owner: Callable[[Owned, float], bool]) -> None:
        """`is_owner` looks; False where that is not known yet."""
        self._owned = owned
        self._is_owner = is_owner
        self._waiting: list[_Waiting] = []

    def when(
        self,
        needs: Mapping[PartitionId, int],
        give: Callable[[], None],
        looks: Mapping[PartitionId, float] | None = None,
    ) -> None:
        """`give` as soon as all of `needs` is durable, which may be now. `looks`, for what no record tells of: (partition, a
        `time.monotonic()`), and that no other broker owned it then.
        """
        self._give(_Waiting(needs, give, looks or {}))

    @property
    def is_looking(self) -> bool:
        """Somebody waits for a look, which `durable_moved` asks for again."""
        return any(each.looks for each in self._waiting)

    def durable_moved(self) -> None:
        """Give what has become durable."""
        if not self._waiting:
            return
        # What is given may ask for more.
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self._give(each)

    def _give(self, each: _Waiting) -> None:
        durable = all(self._is_durable(partition, at) for partition, at in each.needs.items())
        # All of them look side by side.
        alone = [self._is_here_alone(partition, since) for partition, since in each.looks.items()]
        if durable and all(alone):
            each.give()
        else:
            self._waiting.append(each)

    def _is_durable(self, partition: PartitionId, position: int) -> bool:
        owned = self._owned.get(partition)
        return owned is None or owned.core.durable >= position

    def _is_here_alone(self, partition: PartitionId, since: float) -> bool:
        owned = self._owned.get(partition)
        return owned is None or self._is_owner(owned, since)
