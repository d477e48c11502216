"""What we promise, switched off one by one: the simulator must catch each within a stated number of seeds.

A mutation is data. To add one: say which rule is switched off, give its patches (whose attribute, and what stands there
instead), and a text that the problem found by it must contain, so that nothing else passes for it. Then let
`python -m simulation --mutations` look for the first seed that finds it, and write that down as `found_at` with a `seeds` well
above it. The tests try `found_at` first, and then, as `--mutations` does, from seed 1 on, but for a minute only: any change of the
worlds may make another seed the first one, which costs the tests some seconds until it is written down, and fails where it is a late one.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from paramstream.brokers import partition
from paramstream.brokers.partition import PartitionCore
from paramstream.brokers.state import SessionState
from paramstream.consistency.gate import Gate
from paramstream.consistency.stamp import Stamp
from paramstream.consistency.vector import PartitionId
from paramstream.consumers.followed import Followed
from paramstream.consumers.undo import BeforeImages
from paramstream.errors import Fenced
from paramstream.events.codec import EventFrame
from paramstream.producers.past import Past
from paramstream.producers.session_core import SessionCore
from paramstream.transport.messages import Refused

from .mutation import Mutation, Patch
from .mutations_disk import DISK
from .mutations_replicas import REPLICAS
from .mutations_rows import ROWS
from .mutations_shared import SHARED

# --- what stands there instead --------------------------------------------------------------------------------------------


def _everything_may_be_applied(gate: Gate, at: PartitionId, stamp: Stamp) -> None: ...


def _passed_counts_at_the_target(gate: Gate, at: PartitionId, position: int) -> None: ...


def _every_call_starts_at_once(core: SessionCore, call: object) -> bool:
    return True


def _nothing_was_seen(past: Past, vector: object) -> None: ...


def _nothing_is_taken_back(images: BeforeImages, end: int) -> None: ...


def _accepted_is_durable(followed: Followed, position: int) -> bool:
    return True


def _everything_goes_again(*args: object) -> bool:
    return True


_check_session = PartitionCore._check_session  # pyright: ignore[reportPrivateUsage]


def _any_epoch_will_do(
    core: PartitionCore, frame: EventFrame, session: SessionState | None, last: int
) -> Refused | None:
    this_one = replace(frame, head=msgspec.structs.replace(frame.head, joined_epoch=core.epoch))
    return _check_session(core, this_one, session, last)


def _older_sessions_write_on(
    core: PartitionCore, frame: EventFrame, session: SessionState | None, last: int
) -> Refused | None:
    turned_down = _check_session(core, frame, session, last)
    return None if turned_down is not None and isinstance(turned_down.error.raised(), Fenced) else turned_down


MUTATIONS = {
    mutation.name: mutation
    for mutation in [
        *SHARED,
        *REPLICAS,
        *ROWS,
        *DISK,
        Mutation(
            "gate",
            "an event is applied only once what it depends on is",
            (Patch(Gate, "blocked_by", _everything_may_be_applied),),
            "before",
            seeds=10,
            found_at=1,
        ),
        Mutation(
            "rule 1",
            "a call waits for the acks of what is unacknowledged in other partitions",
            (Patch(SessionCore, "_may_start", _every_call_starts_at_once),),
            "after",
            seeds=50,
            found_at=1,
        ),
        Mutation(
            "observed",
            "an event depends on what its producer has observed",
            (Patch(Past, "observe", _nothing_was_seen),),
            "before",
            seeds=50,
            found_at=14,
        ),
        Mutation(
            "undo",
            "what is lost is taken back",
            (Patch(BeforeImages, "undo", _nothing_is_taken_back),),
            "the log says",
            seeds=200,
            found_at=13,
        ),
        Mutation(
            "durable only",
            "who asked for durable events is shown none that can be lost",
            (Patch(Followed, "is_durable", _accepted_is_durable),),
            "was shown durable events only",
            seeds=200,
            found_at=7,
        ),
        Mutation(
            "seen is not sent again",
            "a session sends by itself only what nobody can have seen",
            (Patch(partition, "may_resend", _everything_goes_again),),
            "it stands",
            seeds=2000,
            found_at=13,
        ),
        Mutation(
            "epoch of an event",
            "an event that names another epoch than the present one is refused, and goes again once its session has joined that",
            (Patch(PartitionCore, "_check_session", _any_epoch_will_do),),
            "has not joined",
            seeds=400,
            found_at=15,
        ),
        Mutation(
            "fence of a session",
            "once a newer session of a name has joined, an older one writes nothing",
            (Patch(PartitionCore, "_check_session", _older_sessions_write_on),),
            "had fenced",
            seeds=400,
            found_at=5,
        ),
        Mutation(
            "passed counts at once",
            "what a jump passes counts for the gate at once",
            (Patch(Gate, "passed", _passed_counts_at_the_target),),
            "stuck",
            seeds=400,
            found_at=5,
        ),
    ]
}
