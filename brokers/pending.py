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
    """`give` is called once every partition in `needs` is durable up to the position beside it."""

    needs: Mapping[PartitionId, int]
    give: Callable[[], None]


class Pending:
    """In the loop's thread. A partition that is owned no longer holds nothing up: those who waited for it were sent away."""

    def __init__(self, owned: Mapping[PartitionId, Owned]) -> None:
        self._owned = owned
        self._waiting: list[_Waiting] = []

    def when(self, needs: Mapping[PartitionId, int], give: Callable[[], None]) -> None:
        """`give` as soon as all of `needs` is durable, which may be now."""
        if all(self._is_durable(partition, at) for partition, at in needs.items()):
            give()
        else:
            self._waiting.append(_Waiting(needs, give))

    def durable_moved(self) -> None:
        """Give what has become durable."""
        if not self._waiting:
            return
        # What is given may ask for more.
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self.when(each.needs, each.give)

    def _is_durable(self, partition: PartitionId, position: int) -> bool:
        owned = self._owned.get(partition)
        return owned is None or owned.core.durable >= position
