"""Rows moved up ahead of their use: a data loader says what the batches to come will look up, and one thread has it ready by then.

A prefetch is a hint. Where the thread falls behind, what does not fit its queue is passed over and counted: a look-up reads the rows
where they lie. What cannot be read there is raised by the next call.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..errors import ParamstreamError
from ..events.row_keys import Keys

MAX_WAITING_KEYS: Final = 1 << 20
"""Of all that wait: 8 MiB of keys, and some seconds of a disk."""

Move = Callable[[Keys], int]
"""Moves the rows of keys up; how many moved."""


@dataclass(frozen=True, slots=True)
class Prefetches:
    """What prefetching has done for a replica up to now, in keys."""

    asked: int = 0
    """Handed in."""
    moved: int = 0
    """Rows moved up a tier; one that went up two counts twice."""
    passed: int = 0
    """Not done, because too many were waiting."""
    waiting: int = 0
    """Not done yet."""
    failed: int = 0
    """Could not be moved; the next call raises why."""


class Prefetcher:
    """One thread, from the first call on until `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: deque[tuple[Move, Keys]] = deque()
        self._changed = threading.Condition()
        self._asked = self._moved = self._passed = self._waiting = self._failed = 0
        self._error: Exception | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, move: Move, keys: Keys) -> bool:
        """Has `move(keys)` called soon. False where too much is waiting. Never blocks. Raises what the last one failed with, once."""
        with self._changed:
            error, self._error = self._error, None
            if error is not None:
                raise error
            if self._closed:
                raise ParamstreamError("the replica is closed", remedy="Make another one")
            self._asked += len(keys)
            if self._waiting and self._waiting + len(keys) > MAX_WAITING_KEYS:
                self._passed += len(keys)
                return False
            self._waiting += len(keys)
            self._queue.append((move, keys))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"paramstream-prefetch-{self._name}", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()
            return True

    def counters(self) -> Prefetches:
        """Of this moment."""
        with self._changed:
            return Prefetches(self._asked, self._moved, self._passed, self._waiting, self._failed)

    def settle(self, timeout: float) -> bool:
        """Blocks until nothing is waiting, up to `timeout` s; whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting or self._closed, timeout)

    def close(self, timeout: float) -> None:
        """What is waiting is not done any more; blocks for what is being done."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while (task := self._next()) is not None:
            move, keys = task
            moved, error = 0, None
            try:
                moved = move(keys)
            except (ParamstreamError, OSError, RuntimeError) as failed:  # RuntimeError is torch's for a device.
                error = failed
            with self._changed:
                self._waiting -= len(keys)
                self._moved += moved
                if error is not None and not self._closed:
                    self._failed += len(keys)
                    self._error = error
                self._changed.notify_all()

    def _next(self) -> tuple[Move, Keys] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            return None if self._closed else self._queue.popleft()
