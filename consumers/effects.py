"""What the subscription core wants done, as data: the shell does it, in this order."""

from __future__ import annotations

from dataclasses import dataclass

from ..consistency.stamp import Stamp
from ..consistency.vector import PartitionId
from ..errors import ParamstreamError
from ..events.codec import EventFrame


@dataclass(frozen=True, slots=True)
class SendFollow:
    partition: PartitionId
    after: int
    credit_bytes: int


@dataclass(frozen=True, slots=True)
class SendUnfollow:
    partition: PartitionId


@dataclass(frozen=True, slots=True)
class SendFetch:
    id: int
    partition: PartitionId
    after: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class SendCredit:
    partition: PartitionId
    consumed_bytes: int
    """In all, since the last `SendFollow`."""


@dataclass(frozen=True, slots=True)
class Deliver:
    """Apply the event, then confirm it."""

    partition: PartitionId
    frame: EventFrame
    stamp: Stamp
    """What the gate asked for. Of the event that a jump led to: with all that rests on what was passed."""
    passed: bool = False
    """It lies below the target of a jump: chunks and parts are staged, a commit seals nothing."""


@dataclass(frozen=True, slots=True)
class Jump:
    """What is staged of the partition is of no use any more; everything up to `start` is passed. Then confirm."""

    partition: PartitionId
    start: int
    target: int
    """The first event at or behind this position is applied as any other, and shows what was passed."""


@dataclass(frozen=True, slots=True)
class EpochBegan:
    """The partition's next epoch: its record stands at `position`, the epoch before ended at `end`. Confirm it when applied."""

    partition: PartitionId
    position: int
    end: int
    time: int
    """ns of sequencing time: entries with a deadline up to here are removed."""


@dataclass(frozen=True, slots=True)
class Undo:
    """Everything applied of the partition above `end` is lost: take it back, then confirm."""

    partition: PartitionId
    end: int


@dataclass(frozen=True, slots=True)
class Durable:
    """What was applied of the partition up to `position` can no longer be lost."""

    partition: PartitionId
    position: int


@dataclass(frozen=True, slots=True)
class Refetched:
    """An event before the one that the partition is held at, fetched once more. Nothing to confirm."""

    partition: PartitionId
    frame: EventFrame


@dataclass(frozen=True, slots=True)
class Stopped:
    """Nothing more of the partition is applied."""

    partition: PartitionId
    error: ParamstreamError


Step = Deliver | EpochBegan | Undo | Jump
"""The effects that the shell confirms one by one, so that what it shows and what it says it has applied change together."""

Effect = SendFollow | SendUnfollow | SendFetch | SendCredit | Durable | Refetched | Stopped | Step
