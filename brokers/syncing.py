"""The sync thread: group commit. The loop appends and goes on; this thread makes it durable and says so.

Everything appended while one `fdatasync` runs shares the next one. How much may stand between accepted and durable is bounded,
in bytes and in time: past it the loop holds the events that come (`holding.py`) and goes on with all else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from ..consistency.vector import PartitionId
from ..errors import ParamstreamError
from ..eventlog.log import PartitionLog

Synced = Callable[[list[tuple[PartitionId, int]]], None]
Failed = Callable[[PartitionLog, ParamstreamError], None]

MAX_UNSYNCED_BYTES = 128 * 1024 * 1024
"""Appended and not yet synced, of all partitions: what a power failure takes at most, but for the event that reaches it."""

MAX_UNSYNCED_S = 5.0
"""The oldest of it may be so old: far above a sync of a sound disk or Kafka, and short beside the timeout of a publish."""


class Syncer:
    """`synced` and `failed` are called in the sync thread with what became durable, or could not."""

    def __init__(self, synced: Synced, failed: Failed) -> None:
        self._synced = synced
        self._failed = failed
        self._changed = threading.Condition()
        self._dirty: dict[PartitionId, tuple[PartitionLog, int]] = {}
        """Logs, each with the position up to which it is to be synced."""
        self._dirty_since: float | None = None
        self._syncing_since: float | None = None
        """Of what the present sync covers: when the oldest of it was appended."""
        self._unsynced_bytes = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="paramstream-sync", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def appended(self, logs: Iterable[tuple[PartitionLog, int]], nbytes: int) -> None:
        """These logs have something to sync, up to the position beside each. Never waits for the disk."""
        with self._changed:
            for log, at in logs:
                self._dirty[log.partition] = log, at
            if self._dirty_since is None:
                self._dirty_since = time.monotonic()
            self._unsynced_bytes += nbytes
            self._changed.notify_all()

    def is_behind(self, more_bytes: int = 0) -> bool:
        """Whether the window between accepted and durable is used up, `more_bytes` that were appended since included.

        Asked for each event, so without the lock: an answer may be as old as the last sync, which wakes the loop.
        """
        if self._unsynced_bytes + more_bytes > MAX_UNSYNCED_BYTES:
            return True
        since = self._syncing_since or self._dirty_since
        return since is not None and time.monotonic() - since > MAX_UNSYNCED_S

    def close(self, timeout: float) -> bool:
        """Sync what is left, then end. False where the disk took longer than `timeout` s; it goes on, and may be asked again."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def sync_dirty(self) -> None:
        """One turn of the thread: sync all that was appended by now, and say how far it is durable."""
        with self._changed:
            dirty, self._dirty = self._dirty, {}
            self._syncing_since, self._dirty_since = self._dirty_since, None
            nbytes = self._unsynced_bytes
        heads: list[tuple[PartitionId, int]] = []
        left: dict[PartitionId, tuple[PartitionLog, int]] = {}
        for partition, (log, at) in dirty.items():
            try:
                head = log.sync()
            except ParamstreamError as error:
                self._failed(log, error)
                continue
            heads.append((partition, head))
            if head < at:
                left[partition] = log, at
        with self._changed:
            if left:
                # All of it stays in the window, as old as it is, until the rest is durable too.
                self._dirty = left | self._dirty
                self._dirty_since = self._syncing_since
            else:
                self._unsynced_bytes -= nbytes
            self._syncing_since = None
        # Only now: whom this wakes finds the window as it is.
        if heads:
            self._synced(heads)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._dirty and not self._closing:
                    self._changed.wait()
                if not self._dirty:
                    return
            self.sync_dirty()
