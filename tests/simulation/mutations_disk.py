"""What the local log promises, switched off."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from contextlib import suppress

from paramstream.eventlog.chain import Segment
from paramstream.eventlog.partition import LocalPartition
from paramstream.eventlog.recovery import Recovery

from .mutation import Mutation, Patch

TRIES = 4


def _told_unsynced(log: LocalPartition) -> int:
    with log._sync_lock, log._lock:
        log._check()
        if log._unsynced:
            log._take_synced(log._segments[-1].end, log._counting.point)
        return log._synced.reached


def _a_failed_sync_is_tried_again(log: LocalPartition) -> int:
    for _ in range(TRIES):
        with suppress(OSError):
            log._disk.sync(log._handle)
            break
    return _told_unsynced(log)


def _nothing_is_written_again(recovery: Recovery, newest: Segment, handle: int) -> None: ...


DISK = [
    Mutation(
        "durable is synced",
        "nothing is durable before the disk has it",
        (Patch(LocalPartition, "sync", _told_unsynced),),
        "log: the log of",
        seeds=100,
        found_at=7,
        kind="alone",
    ),
    Mutation(
        "a failed sync is believed by nobody",
        "after a failed sync only bytes under an earlier one count",
        (Patch(LocalPartition, "sync", _a_failed_sync_is_tried_again),),
        "log: the log of",
        seeds=400,
        found_at=101,
        kind="alone",
    ),
    Mutation(
        "written again",
        "what a recovery keeps and no sync is known to cover is written again before it is synced",
        (Patch(Recovery, "_write_again", _nothing_is_written_again),),
        "log: the log of",
        seeds=1000,
        found_at=258,
        kind="alone",
    ),
]
