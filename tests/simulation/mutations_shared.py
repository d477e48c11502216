"""Promises of a log that brokers share, switched off."""

from __future__ import annotations

from paramstream.brokers.calls import Calls
from paramstream.brokers.owned import Owned
from paramstream.errors import Fenced
from paramstream.eventlog.counting import Counting
from paramstream.eventlog.kafka.core import OwnerCore, Stood
from paramstream.eventlog.kafka.records import Whole
from paramstream.events.kinds import Kind

from .mutation import Mutation, Patch

_acked, _met = OwnerCore.acked, OwnerCore.met


def _every_ack_is_believed(core: OwnerCore, offset: int) -> Stood | None:
    vars(core)["_next_offset"] = offset
    return _acked(core, offset)


def _a_claims_ack_is_believed(core: OwnerCore, offset: int) -> Stood | None:
    if core.pending()[0].prefix.kind is Kind.CLAIM:
        vars(core)["_next_offset"] = offset
    return _acked(core, offset)


def _claims_of_others_are_passed_over(core: OwnerCore, whole: Whole) -> Stood | None:
    known = core.known
    try:
        return _met(core, whole)
    except Fenced:
        vars(core)["_known"] = Counting(known)
        return None


def _answers_wait_for_no_record(calls: Calls, owned: Owned) -> int:
    return owned.core.answers_wait_for


SHARED = [
    Mutation(
        "fence by claim",
        "a record counts only if the latest claim is its writer's own",
        (Patch(OwnerCore, "met", _claims_of_others_are_passed_over),),
        "was durable and stands in",
        seeds=200,
        found_at=52,
        kind="shared",
    ),
    Mutation(
        "contiguity of acks",
        "an ack is believed only if its records follow directly on the owner's own last one",
        (Patch(OwnerCore, "acked", _every_ack_is_believed),),
        "was durable and stands in",
        seeds=400,
        found_at=24,
        kind="shared",
    ),
    Mutation(
        "claims are read back",
        "an owner takes in what was written before its claim stood",
        (Patch(OwnerCore, "acked", _a_claims_ack_is_believed),),
        "was durable and stands in",
        seeds=4000,
        found_at=1548,
        kind="shared",
    ),
    Mutation(
        "answers wait for a record that counts",
        "whoever was taken over answers no join, and calls nothing lost",
        (Patch(Calls, "_confirmed_by", _answers_wait_for_no_record),),
        "joins: ",
        seeds=200,
        found_at=4,
        kind="shared",
    ),
]
"""One world in four is of this kind: so many of the `seeds` are looked at."""
