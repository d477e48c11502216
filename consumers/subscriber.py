"""Raw subscriptions: the events of a topic one by one, in order, with what was lost said in between.

    for event in client.subscribe("model", start="earliest"):
        print(event.kind, event.position)

Memory is bounded: where the user takes events slower than they come, the broker stops fanning out to this client, which
fetches from the log instead; nothing is skipped.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Container, Iterator
from types import TracebackType
from typing import Protocol, Self

from ..consistency.gate import Ordering
from ..consistency.position import show
from ..consistency.vector import VersionVector, check_named
from ..errors import InvalidEvent, LogTruncated, OutcomeUnknown, ParamstreamError, ParamstreamTimeout
from ..transport.calls import DescribePartitions, PartitionRecord
from ..transport.directory import Directory
from ..transport.messages import FORMAT, Following, Heartbeat, Hello, Report, Welcome
from ..transport.waiting import bounded
from .effects import Deliver, Durable, EpochBegan, Jump, Refetched, Step, Stopped, Undo
from .events import Event, event_of, lost_event
from .feed import Feed
from .links import MakeLink
from .scope import check_durable, is_durable_only
from .subscription_core import SubscriptionCore

TIMEOUT_S = 30.0

REPORT_S = 0.5

BUFFER_BYTES = 16 * 1024 * 1024
"""Of events that the user has not taken yet, all partitions together; the last one may go beyond."""


class Follower(Protocol):
    """Who a subscription is for, where that has a name."""

    @property
    def name(self) -> str: ...
    @property
    def incarnation(self) -> int:
        """From `OpenReplica`: a newer one of the name fences this subscription, which ends with `Fenced`."""
        ...

    @property
    def report(self) -> Callable[[int], Report]:
        """Given the events that are accepted and not yielded, as far as is known; called in the link's thread."""
        ...


class Subscription(Iterator[Event], AsyncIterator[Event]):
    """Events of one topic, by `for` or `async for`; one consumer at a time. Ends when it is closed.

    Within a partition events come without gap or repeat, over partitions in PRAM or causal order. Where a partition's epoch
    lost events that were yielded, a "lost" event says where it ended; under `visibility="durable"` none ever are. An event that
    cannot be decoded, or a log that was trimmed away, ends the iteration with its error, once all before it is yielded.
    """

    def __init__(
        self,
        topic: str,
        *,
        directory: Directory,
        make_link: MakeLink,
        ordering: Ordering = Ordering.CAUSAL,
        start: str | VersionVector[str] = "head",
        visibility: str = "accepted",
        partitions: Container[int] | None = None,
        follower: Follower | None = None,
        timeout: float = TIMEOUT_S,
    ) -> None:
        """The start is fixed when this returns. `partitions`: only these are followed. `follower`: who follows, by a name that has
        one live owner, and reports what it still needs of the log. `visibility="durable"`: nothing is yielded that could still be
        lost. Raises `UnknownTopic`, `InvalidEvent`, `NotDurable`, `ConnectFailed`."""
        deadline = time.monotonic() + timeout
        if not isinstance(start, VersionVector) and start not in ("head", "earliest"):
            raise InvalidEvent(f"start={start!r} is neither 'head', 'earliest' nor a version vector")
        if isinstance(start, VersionVector):
            check_named(start)
        durable_only = is_durable_only(visibility)
        record = directory.topic(topic)
        if durable_only:
            check_durable(record)
        numbers = range(record.partitions + 1)
        followed = tuple(number for number in numbers if partitions is None or number in partitions)
        found: list[PartitionRecord] = directory.request(
            DescribePartitions(record.id, followed), list[PartitionRecord], max(0.001, deadline - time.monotonic())
        )
        missing = set(followed).difference(at.partition for at in found)
        if missing:
            problem = "nobody serves the partition at the moment"
            raise OutcomeUnknown(problem, topic=topic, partition=min(missing), remedy="Subscribe again")
        self._topic = topic
        self._directory = directory
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._events: deque[tuple[Event, int]] = deque()
        self._buffered_bytes = 0
        self._error: ParamstreamError | None = None
        self._closed = False
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        starts = {(at.topic, at.partition): _start_of(at, topic, start, durable_only) for at in found}
        self._core = SubscriptionCore(ordering, starts, durable_only=durable_only)
        self._feed = Feed(self._core, self, self._lock)
        self._follower = follower
        self._report_at = 0.0
        hello = Hello(FORMAT) if follower is None else Hello(FORMAT, follower.name, follower.incarnation)
        self._link = self._feed.link = make_link(self._feed, lambda: hello, f"subscription-{topic}")
        self._link.start(max(0.001, deadline - time.monotonic()))

    # --- for the user -----------------------------------------------------------------------------------------------------------

    def next(self, timeout: float | None = None) -> Event:
        """The next event; blocks for it, at most `timeout` s where that is given.

        Raises `StopIteration` once closed, the error that ended a partition, or `ParamstreamTimeout`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                event = self._take()
                if event is not None:
                    return event
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise ParamstreamTimeout(f"no event came within {timeout:g} s", topic=self._topic)
                self._changed.wait(None if left is None else bounded(left))

    def __next__(self) -> Event:
        return self.next()

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        loop = asyncio.get_running_loop()
        while True:
            with self._changed:
                try:
                    event = self._take()
                except StopIteration:
                    raise StopAsyncIteration from None
                if event is not None:
                    return event
                ready: asyncio.Future[None] = loop.create_future()
                self._waiters.append((loop, ready))
            try:
                await ready
            finally:
                # Whoever polls with a timeout is cancelled again and again.
                with self._changed:
                    self._waiters = [waiter for waiter in self._waiters if waiter[1] is not ready]

    @property
    def buffered_bytes(self) -> int:
        """Bytes of events that are here and not taken yet, and of those that wait for their turn."""
        with self._lock:
            return self._buffered_bytes + self._core.buffered_bytes

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self, timeout: float = TIMEOUT_S) -> None:
        """Stop following and end the iteration. A second call changes nothing."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._wake()
        self._link.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self) -> Event | None:
        """Under the lock: the next event, None where there is none yet."""
        if self._closed:
            raise StopIteration
        if self._events:
            event, nbytes = self._events.popleft()
            self._buffered_bytes -= nbytes
            return event
        if self._error is not None:
            raise self._error
        return None

    # --- the feed's sink: in the link's thread ------------------------------------------------------------------------------------

    def step(self, step: Step) -> None:
        event: Event | None = None
        nbytes = 0
        match step:
            case Deliver():
                event = event_of(step.frame, step.stamp, self._topic, self._directory.to_names)
                nbytes = step.frame.nbytes
            case Undo():
                event = lost_event(self._topic, step.partition[1], step.end)
            case EpochBegan() | Jump():
                pass
        with self._lock:
            self._core.confirm(step)
            if event is not None:
                self._events.append((event, nbytes))
                self._buffered_bytes += nbytes
                self._core.paused = self._buffered_bytes >= BUFFER_BYTES

    def told(self, effect: Durable | Refetched | Stopped) -> None:
        if isinstance(effect, Stopped):
            error = effect.error
            error.topic = error.topic or self._topic
            error.partition = effect.partition[1] if error.partition is None else error.partition
            with self._changed:
                self._error = self._error or error
                self._wake()

    def connected(self, welcome: Welcome) -> None:
        """The core follows again by itself."""

    def lost(self, error: ParamstreamError) -> None:
        """The link connects again by itself."""

    def heard(self, message: Heartbeat | Following) -> None:
        """A subscription keeps no time."""

    def drained(self) -> None:
        with self._changed:
            if self._events:
                self._wake()

    def tick(self, now: float) -> None:
        # The user has taken some: what waits in the core goes on.
        with self._lock:
            self._core.paused = self._buffered_bytes >= BUFFER_BYTES
        if self._follower is not None and now >= self._report_at and self._link.connected:
            self._report_at = now + REPORT_S
            with self._lock:
                lag = self._core.lag_events()
            self._link.send(self._follower.report(lag))

    def _wake(self) -> None:
        self._changed.notify_all()
        waiters, self._waiters = self._waiters, []
        for loop, ready in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_set, ready)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _start_of(at: PartitionRecord, topic: str, start: str | VersionVector[str], durable_only: bool) -> int:
    if isinstance(start, VersionVector):
        position = start.get((topic, at.partition), at.start)
        if position < at.start:
            raise LogTruncated(
                f"the log begins behind {show(at.start)}, and {show(position)} lies before that",
                topic=topic,
                partition=at.partition,
                position=position,
                remedy='Begin with start="earliest", which has what there is',
            )
        return position
    if start == "earliest":
        return at.start
    return at.durable if durable_only else at.accepted
