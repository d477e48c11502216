"""Reads a partition's log from a broker, page by page, over a link of its own."""

from __future__ import annotations

import itertools
import queue
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from ..consistency.vector import PartitionId
from ..errors import OutcomeUnknown, ParamstreamError, ParamstreamTimeout
from ..events.codec import position_of
from ..transport.calls import Call, DescribePartitions, PartitionRecord
from ..transport.messages import FORMAT, AnyMessage, Fetch, Fetched, FetchFile, Hello, Welcome
from ..transport.waiting import bounded
from .links import ConsumerLink, MakeLink

PAGE_BYTES = 8 * 1024 * 1024
"""One fetch from a broker."""


class Pager:
    """Follows nothing. One thread at a time. What went with its connection is asked again over the next one."""

    def __init__(self, make_link: MakeLink, name: str, patience: Callable[[], float]) -> None:
        """`patience` says how long the next answer may take, in seconds. Raises `ConnectFailed` where nobody answers at first."""
        self._patience = patience
        self._answers = _Answers()
        self._ids = itertools.count(1)
        self.link: ConsumerLink = make_link(self._answers, lambda: Hello(FORMAT), name)
        self.link.start(patience())

    @property
    def brokers(self) -> int:
        """How many there are, as far as is known."""
        return self._answers.brokers

    def ask(self, call: Call, kind: Any) -> Any:
        """The broker's answer to a call that may be repeated. Raises its error, or `ParamstreamTimeout`."""
        answers = queue.SimpleQueue[tuple[Any, ParamstreamError | None]]()

        def done(answer: Any, error: ParamstreamError | None) -> None:
            if not isinstance(error, OutcomeUnknown):
                answers.put((answer, error))

        def send() -> None:
            self.link.request_async(call, kind, done)

        patience = self._patience()
        with self._answers.awaiting(send):
            send()
            try:
                answer, error = answers.get(timeout=bounded(patience))
            except queue.Empty:
                raise self._answers.overdue(f"the broker did not answer {type(call).__name__}", patience) from None
        if error is not None:
            raise error
        return answer

    def read(self, partition: PartitionId, after: int, max_bytes: int) -> list[memoryview]:
        """Frames behind `after`, oldest first, about `max_bytes` of them; none where there are none yet."""
        return self._ask(Fetch(next(self._ids), *partition, after, max_bytes))[1]

    def piece(self, ask: FetchFile) -> tuple[memoryview, int]:
        """(a piece, the bytes of the whole file) of the keeper's snapshot; the number of `ask` is given here."""
        answer, pieces = self._ask(msgspec.structs.replace(ask, id=next(self._ids)))
        return (pieces[0] if pieces else memoryview(b"")), answer.accepted

    def _ask(self, fetch: Fetch | FetchFile) -> tuple[Fetched, list[memoryview]]:
        def ready(_: object, error: ParamstreamError | None) -> None:
            if error is None:
                self.link.fetch(fetch)
            elif not isinstance(error, OutcomeUnknown):
                self._answers.put(error)

        with self._answers.awaiting(lambda: self.link.fetch(fetch)):
            # A fetch belongs to the link's thread, and an answer to any call is how one gets there.
            self.link.request_async(DescribePartitions(fetch.topic), list[PartitionRecord], ready)
            return self._answers.take(fetch, self._patience())

    def frames(self, partition: PartitionId, after: int, until: int) -> Iterator[memoryview]:
        """Frames behind position `after`, up to `until`; ends early where the log does."""
        while after < until:
            page = self.read(partition, after, PAGE_BYTES)
            if not page:
                return
            for frame in page:
                after = position_of(frame)
                if after <= until:
                    yield frame

    def close(self) -> None:
        self.link.close(max(1.0, self._patience()))


class _Answers:
    """The link's handler: fetches are answered one at a time, into a queue."""

    def __init__(self) -> None:
        self._queue: queue.Queue[tuple[Fetched, list[memoryview]] | ParamstreamError] = queue.Queue()
        self._again: Callable[[], None] | None = None
        """Sends what is awaited over a new connection."""
        self._lost: ParamstreamError | None = None
        self.brokers = 1

    @contextmanager
    def awaiting(self, again: Callable[[], None]) -> Generator[None]:
        """Within, `again` is called in the link's thread after each new connection."""
        self._again = again
        try:
            yield
        finally:
            self._again = None

    def put(self, error: ParamstreamError) -> None:
        self._queue.put(error)

    def take(self, fetch: Fetch | FetchFile, timeout: float) -> tuple[Fetched, list[memoryview]]:
        """Raises the broker's error, or `ParamstreamTimeout`."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                found = self._queue.get(timeout=bounded(max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                overdue = self.overdue("the broker did not answer a fetch", timeout)
                overdue.partition = fetch.partition
                overdue.position = fetch.after if isinstance(fetch, Fetch) else None
                raise overdue from None
            if isinstance(found, ParamstreamError):
                raise found
            answer, frames = found
            if answer.id == fetch.id:
                if answer.error is not None:
                    raise answer.error.raised()
                return answer, frames

    def overdue(self, what: str, timeout: float) -> ParamstreamTimeout:
        lost = "" if self._lost is None else f"; {self._lost.problem}"
        return ParamstreamTimeout(f"{what} within {timeout:g} s{lost}")

    def connected(self, welcome: Welcome) -> None:
        self._lost = None
        self.brokers = max(1, sum(1 for owner in welcome.owners if owner.slots))
        again = self._again
        if again is not None:
            again()

    def lost(self, error: ParamstreamError) -> None:
        self._lost = error

    def fetched(self, answer: Fetched, frames: list[memoryview]) -> None:
        self._queue.put((answer, frames))

    def message(self, message: AnyMessage) -> None:
        """Heartbeats say nothing of a log that is read up to one place."""

    def event(self, frame: memoryview) -> None:
        """Nothing is followed."""

    def drained(self) -> None:
        """Each answer is handed on by itself."""

    def tick(self, now: float) -> None:
        """The reader's own timeout watches."""
