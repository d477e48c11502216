"""The shell around the subscription core: the link's handler, which feeds the core and does what it says."""

from __future__ import annotations

import threading
from typing import Protocol

from ..errors import ParamstreamError
from ..transport.messages import (
    AnyMessage,
    Credit,
    Demoted,
    Fetch,
    Fetched,
    Follow,
    Following,
    Heartbeat,
    Unfollow,
    Welcome,
)
from .effects import Durable, Effect, Refetched, SendCredit, SendFetch, SendFollow, SendUnfollow, Step, Stopped
from .links import ConsumerLink
from .subscription_core import SubscriptionCore


class Sink(Protocol):
    """Who applies. All calls come from the link's thread, without the lock."""

    def step(self, step: Step) -> None:
        """Apply it, and under the lock show and confirm it; or stop or hold its partition."""
        ...

    def told(self, effect: Durable | Refetched | Stopped) -> None: ...

    def connected(self, welcome: Welcome) -> None: ...

    def lost(self, error: ParamstreamError) -> None: ...

    def heard(self, message: Heartbeat | Following) -> None:
        """The broker lives; the message carries the time of partitions."""
        ...

    def drained(self) -> None:
        """A batch is applied: wake those who wait."""
        ...

    def tick(self, now: float) -> None: ...


class Feed:
    """A `transport.link.Handler`. The core is changed under `lock` only, so other threads may look at it under the same lock."""

    link: ConsumerLink
    """Set before the link is started."""

    def __init__(self, core: SubscriptionCore, sink: Sink, lock: threading.Lock) -> None:
        self._core = core
        self._sink = sink
        self._lock = lock

    def connected(self, welcome: Welcome) -> None:
        with self._lock:
            self._core.connected()
        self._sink.connected(welcome)
        self.run()

    def lost(self, error: ParamstreamError) -> None:
        with self._lock:
            self._core.disconnected()
        self._sink.lost(error)
        self.run()
        self._sink.drained()

    def message(self, message: AnyMessage) -> None:
        with self._lock:
            match message:
                case Following():
                    self._core.following(message)
                case Demoted():
                    self._core.demoted(message)
                case Heartbeat():
                    self._core.heartbeat(message)
                case _:
                    return
        if not isinstance(message, Demoted):
            self._sink.heard(message)
        self.run()

    def event(self, frame: memoryview) -> None:
        with self._lock:
            self._core.event(frame)
        self.run()

    def fetched(self, answer: Fetched, frames: list[memoryview]) -> None:
        with self._lock:
            self._core.fetched(answer, frames)
        self.run()

    def drained(self) -> None:
        self._sink.drained()

    def tick(self, now: float) -> None:
        self._sink.tick(now)
        with self._lock:
            self._core.tick(now)
        self.run()
        self._sink.drained()

    def run(self) -> None:
        """Do all that the core wants done. In the link's thread only."""
        steps = self._core.steps()
        while True:
            with self._lock:
                effect = next(steps, None)
            if effect is None:
                return
            self._do(effect)

    def _do(self, effect: Effect) -> None:
        # What cannot be sent is sent again by the core: after a new connection, or when no answer comes.
        match effect:
            case SendFollow():
                self.link.send(Follow(*effect.partition, effect.after, effect.credit_bytes))
            case SendUnfollow():
                self.link.send(Unfollow(*effect.partition))
            case SendFetch():
                self.link.fetch(Fetch(effect.id, *effect.partition, effect.after, effect.max_bytes))
            case SendCredit():
                self.link.send(Credit(*effect.partition, effect.consumed_bytes))
            case Durable() | Refetched() | Stopped():
                self._sink.told(effect)
            case _:
                self._sink.step(effect)
