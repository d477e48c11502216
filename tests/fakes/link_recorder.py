"""A link's handler that notes what it is told, and lets a test wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from paramstream.errors import ParamstreamError
from paramstream.transport.messages import AnyMessage, Fetched, Welcome


class Recorder:
    """`told` holds "connected", "lost", messages, and the bytes of events, in the order they came."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.welcomes: list[Welcome] = []
        self.losses: list[ParamstreamError] = []
        self.fetches: list[tuple[Fetched, list[bytes]]] = []
        self._changed = threading.Condition()

    def note(self, what: object) -> None:
        with self._changed:
            self.told.append(what)
            self._changed.notify_all()

    def wait_for(self, enough: Callable[[list[object]], bool], timeout: float = 5.0) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: enough(self.told), timeout), self.told

    def connected(self, welcome: Welcome) -> None:
        self.welcomes.append(welcome)
        self.note("connected")

    def lost(self, error: ParamstreamError) -> None:
        self.losses.append(error)
        self.note("lost")

    def message(self, message: AnyMessage) -> None:
        self.note(message)

    def event(self, frame: memoryview) -> None:
        self.note(bytes(frame))

    def fetched(self, answer: Fetched, frames: list[memoryview]) -> None:
        self.fetches.append((answer, [bytes(frame) for frame in frames]))
        self.note(answer)

    def drained(self) -> None:
        return

    def tick(self, now: float) -> None:
        return
