"""A client of one broker that asks nobody else: what a broker answers, frame by frame."""

from __future__ import annotations

import itertools
import os
import time
from types import TracebackType
from typing import Any, Self

from paramstream.events.codec import Buffer
from paramstream.transport.calls import Call
from paramstream.transport.messages import (
    CLIENT_ID_BYTES,
    DOWN,
    FORMAT,
    AnyMessage,
    Hello,
    Request,
    Response,
    Welcome,
    decode_message,
    decode_result,
    encode_message,
)
from paramstream.transport.sockets import dealer
from paramstream.transport.wire import Message


class RawClient:
    def __init__(self, endpoint: str, hello: Hello | None = None) -> None:
        self._socket = dealer(endpoint, os.urandom(CLIENT_ID_BYTES) + DOWN)
        self._ids = itertools.count(1)
        self.events: list[bytes] = []
        """Those that were fanned out."""
        self._socket.send(encode_message(hello or Hello(FORMAT)))

    def welcome(self, timeout: float) -> Welcome | None:
        """None where it does not come in time."""
        welcome: Welcome | None = self.take(Welcome, timeout)
        return welcome

    def send(self, frame: Message | Buffer) -> None:
        self._socket.send(encode_message(frame) if isinstance(frame, Message) else frame)

    def ask(self, call: Call, kind: Any, timeout: float) -> Any:
        """The answer; raises the broker's error, `TimeoutError` where there is none in time."""
        number = next(self._ids)
        self.send(Request(number, call))  # type: ignore[arg-type]
        answer = self.take(Response, timeout)
        if answer is None:
            raise TimeoutError
        assert answer.id == number
        if answer.error is not None:
            raise answer.error.raised()
        return decode_result(answer.result, kind)

    def take(self, kind: type[Any] | tuple[type[Any], ...], timeout: float) -> Any:
        """The next message of the kind; what comes before it is dropped. None where it does not come in time."""
        deadline = time.monotonic() + timeout
        while self._socket.poll(max(0, int((deadline - time.monotonic()) * 1000))):
            frame = self._socket.recv()
            if frame[:2] == b"PS":
                self.events.append(frame)
                continue
            message: AnyMessage = decode_message(frame)
            if isinstance(message, kind):
                return message
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close(linger=0)
