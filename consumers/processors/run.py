"""A processor that runs: the handle that `client.run` returns."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from ...errors import ParamstreamTimeout
from ...transport.waiting import bounded
from .processor import ProcessorStatus
from .task import Surroundings, Task

TIMEOUT_S = 30.0


class ProcessorRun:
    """One task for each source partition, each in a thread of its own, until `close`. A context manager.

    A task that fails for good (its step raised, another run of the name fenced it, its input is gone) ends; the others go on.
    `status` shows the error, `wait` and `close` raise it.
    """

    def __init__(self, around: Surroundings, partitions: Iterable[int], timeout: float = TIMEOUT_S) -> None:
        """Returns when every task has its snapshot and follows its partition; raises what keeps one from that."""
        self._around = around
        self._changed = threading.Event()
        self._tasks = {number: Task(around, number, self._changed) for number in partitions}
        self._closed = False
        deadline = time.monotonic() + timeout
        for task in self._tasks.values():
            task.start()
        try:
            for task in self._tasks.values():
                self._await_begin(task, deadline, timeout)
        except BaseException:
            self._end(time.monotonic() + 1.0)
            raise

    def status(self) -> ProcessorStatus:
        """A moment of all tasks. Never blocks."""
        processor = self._around.processor
        tasks = {number: task.status() for number, task in self._tasks.items()}
        return ProcessorStatus(self._around.name, processor.source, processor.sink, tasks)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until a task has ended by itself, and raise its error; False after `timeout` s, True once closed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._changed.clear()
            if self._closed:
                return True
            self._raise_failed()
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._changed.wait(None if left is None else bounded(left))

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self, timeout: float = TIMEOUT_S) -> None:
        """Take no more inputs, wait until what was written is durable, keep the states, and end all tasks.

        Raises the first error that a task has ended with, or `ParamstreamTimeout` where outputs did not become durable in
        time: the next run repeats what the snapshots do not have. A second close does nothing.
        """
        if self._closed:
            return
        self._closed = True
        late = self._end(time.monotonic() + timeout)
        self._changed.set()
        self._raise_failed()
        if late:
            raise ParamstreamTimeout(
                f"what {', '.join(late)} wrote was not durable within {timeout:g} s",
                remedy="Nothing is lost by that: the next run repeats it, and writes nothing twice",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _await_begin(self, task: Task, deadline: float, timeout: float) -> None:
        if not task.begun.wait(bounded(max(0.0, deadline - time.monotonic()))):
            seen = task.status().last_error
            raise ParamstreamTimeout(
                f"task {task.producer!r} did not begin within {timeout:g} s" + (f"; it met {seen}" if seen else "")
            )
        if task.error is not None:
            raise task.error

    def _end(self, deadline: float) -> list[str]:
        """Stop all tasks; returns those that gave up what was not durable by the deadline."""
        for task in self._tasks.values():
            task.stop()
        late: list[str] = []
        for task in self._tasks.values():
            if not task.join(max(0.0, deadline - time.monotonic())):
                task.give_up()
                late.append(task.producer)
        for task in self._tasks.values():
            task.join(1.0)
        return late

    def _raise_failed(self) -> None:
        for task in self._tasks.values():
            if task.error is not None:
                raise task.error
