"""The steps of a takeover, which are the steps of every start.

    recover   decode the newest base, apply the records behind it: all that stands
    claim     a claim with a higher epoch goes to the log; where brokers share one, the log is reread up to it
    open      the epoch record names where the epoch before ended, a base follows it; then events are accepted

What is above the end is lost, for everybody alike. This file makes the records and answers what may go again by itself.
"""

from __future__ import annotations

from ..consistency.position import position
from ..consistency.vector import PartitionId
from ..events.codec import MAX_BASE_BYTES, Head, encode_event, stamp_frame
from ..events.kinds import Base, Claim, Epoch
from ..transport.calls import Unconfirmed
from .state import PartitionState, Tenure

OWNER = Head(producer="", incarnation=0, sequence=0)
"""The head of what a partition's owner writes itself: it belongs to no session."""


def claim_record(partition: PartitionId, epoch: int, nonce: int, owner: str) -> bytearray:
    """A stamped claim. It takes no position of its own; it is stamped with offset 0 of its epoch."""
    frame = encode_event(partition, OWNER, Claim(epoch=epoch, nonce=nonce, owner=owner))
    stamp_frame(frame, position=position(epoch, 0), time=0, nonce=nonce)
    return frame


def epoch_record(partition: PartitionId, tenure: Tenure, previous_end: int, time: int, nonce: int) -> bytearray:
    """A stamped epoch record: offset 0 of the tenure's epoch, with the time at which the partition goes on."""
    payload = Epoch(previous_end=previous_end, boot=tenure.boot, failed_writes=tenure.failed_writes)
    frame = encode_event(partition, OWNER, payload)
    stamp_frame(frame, position=position(tenure.epoch, 0), time=time, nonce=nonce)
    return frame


def base_record(partition: PartitionId, state: PartitionState, epoch: int, nonce: int) -> bytearray:
    """A stamped base: the whole of `state`, stamped with the position and time it stands at."""
    frame = encode_event(partition, OWNER, Base(epoch=epoch), [state.encode()], limit=MAX_BASE_BYTES)
    stamp_frame(frame, position=state.position, time=state.time, nonce=nonce)
    return frame


def may_resend(state: PartitionState, present: Tenure, persistence: str, unconfirmed: Unconfirmed) -> bool:
    """Whether nobody can have seen what the session sent in `unconfirmed.epoch` and the log lacks.

    In the present epoch nothing that was fanned out is missing. Of an earlier one the log has all that was fanned out under
    `write_through`; or where its owner left it, by a note which is the last record of that epoch; or where the log lies on this
    machine, which has not restarted since that epoch was opened, and no write has failed since. It is that epoch's own record
    which counts, not the last one's: a power failure may lie between.
    """
    if unconfirmed.epoch == present.epoch:
        return True
    if persistence == "none" or not 0 < unconfirmed.epoch < present.epoch:
        return False
    if persistence == "write_through":
        return True
    joined = state.tenure(unconfirmed.epoch)
    if joined is None:
        return False
    same_boot = joined.boot != "" and joined.boot == present.boot
    return joined.left or (same_boot and joined.failed_writes == present.failed_writes)
