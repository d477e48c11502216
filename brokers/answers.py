"""What a session is told of its event: the acks and refusals of a partition, in words."""

from __future__ import annotations

from ..errors import Fenced, OutcomeUnknown, ParamstreamError
from ..events.codec import EventFrame
from ..transport.messages import Ack, Refused
from ..transport.wire import WireError


def ack(frame: EventFrame, at: int) -> Ack:
    head = frame.head
    return Ack(frame.topic, frame.partition, head.incarnation, ((head.sequence, at),))


def refused(
    frame: EventFrame,
    last_sequence: int,
    error: ParamstreamError,
    *,
    gap: bool = False,
    rejoin: bool = False,
    at: int = 0,
) -> Refused:
    head = frame.head
    return Refused(
        topic=frame.topic,
        partition=frame.partition,
        incarnation=head.incarnation,
        sequence=head.sequence,
        last_sequence=last_sequence,
        error=WireError.of(error),
        gap=gap,
        rejoin=rejoin,
        position=at,
    )


def other_epoch(frame: EventFrame, epoch: int) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the event names epoch {frame.head.joined_epoch}, the partition is in epoch {epoch}",
        remedy="The session joins again by itself",
    )


def fenced(name: str, incarnation: int, newest: int) -> Fenced:
    """`newest`: the incarnation that writes, or wrote last, under the name; 0 if none does."""
    problem = (
        f"a newer session of producer {name!r} has taken over: incarnation {newest} after {incarnation}"
        if newest > incarnation
        else f"incarnation {incarnation} of producer {name!r} has not joined the partition"
    )
    return Fenced(problem, remedy="A producer name has one live session: give each publisher a name of its own")
