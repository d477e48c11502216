"""A lane that does its work in a thread of its own and later: what a CUDA stream does, on the CPU."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

WAIT_SECONDS = 10.0


class ThreadDone:
    def __init__(self) -> None:
        self.event = threading.Event()

    def reached(self) -> bool:
        return self.event.is_set()

    def wait(self) -> None:
        assert self.event.wait(WAIT_SECONDS)


class ThreadLane:
    """Runs work in order while it is open; `pause` keeps it from the next piece."""

    is_immediate = False

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], None], ThreadDone] | None] = queue.SimpleQueue()
        self._may_run = threading.Event()
        self._may_run.set()
        self._thread = threading.Thread(target=self._run, name="paramstream-test-lane")
        self._thread.start()

    def run(self, work: Callable[[], None]) -> ThreadDone:
        done = ThreadDone()
        self._work.put((work, done))
        return done

    def pause(self) -> None:
        self._may_run.clear()

    def go_on(self) -> None:
        self._may_run.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.go_on()
        self._work.put(None)
        self._thread.join(WAIT_SECONDS)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, done = item
            assert self._may_run.wait(WAIT_SECONDS)
            work()
            done.event.set()
