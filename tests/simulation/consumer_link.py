"""What a replica's feed uses of a link, over a connection of the simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paramstream.errors import OutcomeUnknown, ParamstreamError
from paramstream.events.codec import Buffer
from paramstream.transport.messages import Fetch, FetchFile, Welcome
from paramstream.transport.wire import Message

from .network import Asked, Connection, Told

Done = Callable[[Any, ParamstreamError | None], None]


class SimLink:
    def __init__(self) -> None:
        self.connection: Connection | None = None
        self._asked: list[tuple[Message, Done]] = []

    @property
    def connected(self) -> bool:
        return self.connection is not None

    def start(self, timeout: float) -> Welcome:
        raise AssertionError("the simulation connects")

    def send(self, frame: Buffer | Message) -> bool:
        return self.connection is not None and self.connection.send(frame)

    def fetch(self, message: Fetch | FetchFile) -> None:
        assert isinstance(message, Fetch)
        if self.connection is not None:
            self.connection.fetch(message)

    def request_async(self, call: Message, kind: Any, done: Done) -> None:
        self._asked.append((call, done))
        if self.connection is None or not self.connection.send(Asked(call)):
            self.lost()

    def told(self, answer: Told) -> None:
        """An answer has come: of equal questions the first one's."""
        index = next(index for index, (call, _) in enumerate(self._asked) if call == answer.call)
        _, done = self._asked.pop(index)
        if isinstance(answer.answer, ParamstreamError):
            done(None, answer.answer)
        else:
            done(answer.answer, None)

    def lost(self) -> None:
        self.connection = None
        asked, self._asked = self._asked, []
        for _, done in asked:
            done(None, OutcomeUnknown("the connection is gone"))

    def close(self, timeout: float) -> None:
        self.lost()
