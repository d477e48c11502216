"""A link whose partitions are delayed at random, each by itself: events of one wait while those of another go on."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paramstream.consistency.vector import PartitionId
from paramstream.consumers.links import ConsumerLink
from paramstream.errors import ParamstreamError
from paramstream.events.codec import read_prefix
from paramstream.transport.link import Handler, Link
from paramstream.transport.messages import AnyMessage, Demoted, Fetched, Following, Heartbeat, Hello, Welcome

STALL_S = 0.25
"""At most: several hundred calls of a writer."""

STALL_CHANCE = 0.05
"""Of each event, answer or message."""


@dataclass
class _Queue:
    """What one partition was sent, in order; `open_at` is when the next of it may go on."""

    waiting: deque[Callable[[], None]] = field(default_factory=deque[Callable[[], None]])
    open_at: float = 0.0


class DelayingHandler:
    """Stands between a link and its handler. Order within a partition stays, between partitions it does not; fetches have a
    queue of their own, as they have a connection of their own.
    """

    def __init__(self, inner: Handler, seed: int) -> None:
        self._inner = inner
        self._random = random.Random(seed)
        self._events: dict[PartitionId, _Queue] = {}
        self._fetches: dict[PartitionId, _Queue] = {}

    def connected(self, welcome: Welcome) -> None:
        self._inner.connected(welcome)

    def lost(self, error: ParamstreamError) -> None:
        self._events.clear()
        self._fetches.clear()
        self._inner.lost(error)

    def message(self, message: AnyMessage) -> None:
        match message:
            case Heartbeat():
                for heads in message.heads:
                    self._put_message((heads.topic, heads.partition), Heartbeat((heads,)))
            case Following() | Demoted():
                self._put_message((message.topic, message.partition), message)
            case _:
                self._inner.message(message)

    def event(self, frame: memoryview) -> None:
        prefix = read_prefix(frame)
        self._put(self._events, (prefix.topic, prefix.partition), lambda: self._inner.event(frame))

    def fetched(self, answer: Fetched, frames: list[memoryview]) -> None:
        self._put(self._fetches, (answer.topic, answer.partition), lambda: self._inner.fetched(answer, frames))

    def drained(self) -> None:
        self._let_go()
        self._inner.drained()

    def tick(self, now: float) -> None:
        self._let_go()
        self._inner.tick(now)

    def _put_message(self, partition: PartitionId, message: AnyMessage) -> None:
        self._put(self._events, partition, lambda: self._inner.message(message))

    def _put(self, queues: dict[PartitionId, _Queue], partition: PartitionId, do: Callable[[], None]) -> None:
        queues.setdefault(partition, _Queue()).waiting.append(do)

    def _let_go(self) -> None:
        queues = [*self._events.values(), *self._fetches.values()]
        self._random.shuffle(queues)
        for queue in queues:
            while queue.waiting and time.monotonic() >= queue.open_at:
                queue.waiting.popleft()()
                if self._random.random() < STALL_CHANCE:
                    queue.open_at = time.monotonic() + self._random.uniform(0.0, STALL_S)


def delaying_links(endpoints: Sequence[str], seed: int) -> Callable[[Handler, Callable[[], Hello], str], ConsumerLink]:
    """A `MakeLink` over real links."""

    def make(handler: Handler, hello: Callable[[], Hello], name: str) -> ConsumerLink:
        return Link(endpoints, DelayingHandler(handler, seed), hello, name)

    return make
