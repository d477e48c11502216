"""The sync thread: group commit. The loop appends and goes on; this thread makes it durable and says so.

Everything appended while one `fdatasync` runs shares the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from ..consistency.vector import PartitionId
from ..errors import ParamstreamError
from ..eventlog.log import PartitionLog

Synced = Callable[[list[tuple[PartitionId, int]]], None]
Failed = Callable[[PartitionId, ParamstreamError], None]

MAX_UNSYNCED_BYTES = 128 * 1024 * 1024
"""Appended and not yet synced: past it the loop waits, and producers feel it through their windows. Nothing is dropped."""


class Syncer:
    """`synced` and `failed` are called in the sync thread with what became durable, or could not."""

    def __init__(self, synced: Synced, failed: Failed) -> None:
        self._synced = synced
        self._failed = failed
        self._changed = threading.Condition()
        self._dirty: dict[PartitionId, PartitionLog] = {}
        self._unsynced_bytes = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="paramstream-sync", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def appended(self, logs: Iterable[PartitionLog], nbytes: int) -> None:
        """These logs have something to sync. Blocks while more than `MAX_UNSYNCED_BYTES` waits for the disk."""
        with self._changed:
            for log in logs:
                self._dirty[log.partition] = log
            self._unsynced_bytes += nbytes
            self._changed.notify_all()
            while self._unsynced_bytes > MAX_UNSYNCED_BYTES and self._thread.is_alive():
                self._changed.wait(1.0)

    def close(self, timeout: float) -> bool:
        """Sync what is left, then end. False where the disk took longer than `timeout` s; it goes on, and may be asked again."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._dirty and not self._closing:
                    self._changed.wait()
                if not self._dirty:
                    return
                dirty, self._dirty = self._dirty, {}
                nbytes = self._unsynced_bytes
            heads: list[tuple[PartitionId, int]] = []
            for partition, log in dirty.items():
                try:
                    heads.append((partition, log.sync()))
                except ParamstreamError as error:
                    self._failed(partition, error)
            if heads:
                self._synced(heads)
            with self._changed:
                self._unsynced_bytes -= nbytes
                self._changed.notify_all()
