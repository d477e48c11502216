"""What a consumer uses of a link, and how it gets one from its client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ..errors import ParamstreamError
from ..events.codec import Buffer
from ..transport.calls import Call
from ..transport.link import Handler
from ..transport.messages import Fetch, FetchFile, Hello, Welcome
from ..transport.wire import Message


class ConsumerLink(Protocol):
    """`transport.link.Link` is one."""

    @property
    def connected(self) -> bool: ...
    def start(self, timeout: float) -> Welcome: ...
    def send(self, frame: Buffer | Message) -> bool: ...
    def fetch(self, message: Fetch | FetchFile) -> None: ...
    def request_async(self, call: Call, kind: Any, done: Callable[[Any, ParamstreamError | None], None]) -> None: ...
    def close(self, timeout: float) -> None: ...


MakeLink = Callable[[Handler, Callable[[], Hello], str], ConsumerLink]
"""(handler, hello, name of the thread) → a link that is not started yet."""
