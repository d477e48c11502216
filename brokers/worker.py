"""Threads for what may block: opening and dropping partitions. The broker's loop goes on meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from ..errors import ParamstreamError
from .posting import Post

Result = TypeVar("Result")


class Worker:
    """Does jobs, the oldest first, and posts what each came to."""

    def __init__(self, post: Post, threads: int) -> None:
        self._post = post
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"paramstream-opening-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def do(self, job: Callable[[], Result], then: Callable[[Result | ParamstreamError], None]) -> None:
        """`then` is called in the loop with what `job` gave, or raised."""

        def work() -> None:
            result: Result | ParamstreamError
            try:
                result = job()
            except ParamstreamError as error:
                result = error
            self._post(lambda: then(result))

        self._jobs.put(work)

    def close(self, timeout: float) -> bool:
        """Jobs that have not begun are left undone. False where one that has took longer than `timeout` s."""
        self._closing.set()
        deadline = time.monotonic() + timeout
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None and not self._closing.is_set():
            job()
