"""A client's link to a broker: greets, sends, receives, notices a loss, and connects again.

    link = Link(["tcp://127.0.0.1:7777"], handler, hello)
    link.start(timeout=5.0)
    link.send(frame)                        # from any thread, at once
    answer = link.request(ListTopics(), list[TopicRecord], timeout=30.0)

One thread of the link receives everything and calls the handler; calling threads send for themselves on a socket of their
own under its lock, because a frame handed to another thread beside a busy Python thread waits for the interpreter's switch
interval. Within a connection frames arrive in order. A connection that breaks may have lost a suffix of what was sent:
the handler hears `lost`, and then `connected` for a wholly new connection, over which answers of the old one never come.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from ..errors import ConnectFailed, CorruptLog, OutcomeUnknown, ParamstreamError, ParamstreamTimeout
from ..events.codec import MAGIC as EVENT_MAGIC
from ..events.codec import Buffer
from .calls import Call
from .connection import Connection
from .messages import (
    AnyMessage,
    Fetch,
    Fetched,
    Goodbye,
    Hello,
    Request,
    Response,
    Welcome,
    decode_message,
    decode_result,
    encode_message,
)
from .pieces import AnswerReader
from .sockets import check_process
from .waiting import bounded
from .wire import Message

_log = logging.getLogger(__name__)

TICK_S = 0.05
"""How long the link's thread waits for a frame before it looks after reports, timeouts and a broken connection."""

SILENCE_HEARTBEATS = 6
"""A broker that says nothing for this many heartbeats is taken for gone: the process may hang with its socket open."""

ASYNC_S = 10.0
"""How long an answer that nobody blocks for may take: whoever asked asks again."""

RECONNECT_S = (0.02, 0.5)
"""First and longest pause between attempts to connect."""

BATCH_FRAMES = 256
"""Frames handed to the handler before `drained`: bounds how long credit and acks wait behind a flood."""


class Handler(Protocol):
    """What a link calls, all in the link's own thread. No call may block."""

    def connected(self, welcome: Welcome) -> None:
        """A new connection, the first or after a loss: join and follow again."""
        ...

    def lost(self, error: ParamstreamError) -> None:
        """The connection is gone, and no answer of it is taken any more."""
        ...

    def message(self, message: AnyMessage) -> None: ...

    def event(self, frame: memoryview) -> None:
        """A fanned-out event frame, not decoded; the view keeps its memory alive."""
        ...

    def fetched(self, answer: Fetched, frames: list[memoryview]) -> None: ...

    def drained(self) -> None:
        """A batch of the above is over: return credit, apply, acknowledge."""
        ...

    def tick(self, now: float) -> None:
        """At least every `TICK_S`; `now` is time.monotonic()."""
        ...


Done = Callable[[Any, ParamstreamError | None], None]


class _Pending(NamedTuple):
    """A request without its answer."""

    call: Call
    kind: Any
    done: Done
    deadline: float


class Link:
    """See the module's docstring. Thread-safe but for `fetch`, which belongs to the link's thread."""

    def __init__(
        self, endpoints: Sequence[str], handler: Handler, hello: Callable[[], Hello], name: str = "link"
    ) -> None:
        self._endpoints = list(endpoints)
        self._handler = handler
        self._hello = hello
        self._pid = os.getpid()
        self._connection: Connection | None = None
        self._first: Future[Welcome] = Future()
        self._last_failure = "nothing answered"
        self._closing = threading.Event()
        self._up = threading.Condition()
        self._request_ids = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._pending_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"paramstream-{name}", daemon=True)
        self.garbled_frames = 0
        """Frames of the broker that could not be decoded; each was counted and passed over."""

    # --- for any thread -----------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def start(self, timeout: float) -> Welcome:
        """Connect; blocks until the broker has answered. Raises `ConnectFailed` naming the endpoints after `timeout` s."""
        self._thread.start()
        try:
            return self._first.result(bounded(timeout))
        except TimeoutError:
            self.close(timeout=1.0)
            raise ConnectFailed(
                f"no broker answered at {', '.join(self._endpoints)} within {timeout:g} s ({self._last_failure})",
                remedy="Check the address, and that the broker is running",
            ) from None
        except BaseException:
            # An interrupt, say: nobody has this link, so nobody would close it.
            self.close(timeout=1.0)
            raise

    def send(self, frame: Buffer | Message) -> bool:
        """Send at once from the calling thread. False, with nothing sent, while there is no connection.

        The frame's memory must not change until the outcome is known. Raises where this process was forked.
        """
        check_process(self._pid)
        data = encode_message(frame) if isinstance(frame, Message) else frame
        with self._up:
            return self._connection is not None and self._connection.send_up(data)

    def request(self, call: Call, kind: Any, timeout: float) -> Any:
        """Ask the broker and wait. Not in the link's thread.

        Raises the broker's own error, `OutcomeUnknown` where the connection went before the answer, or
        `ParamstreamTimeout` naming the call.
        """
        deadline = time.monotonic() + timeout
        answer: Future[Any] = Future()

        def done(result: Any, error: ParamstreamError | None) -> None:
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        request_id = self._remember(call, kind, done, timeout)
        if not self._send_when_connected(Request(request_id, call), deadline):  # type: ignore[arg-type]
            self._forget(request_id)
            if self._closing.is_set():
                raise ParamstreamError(
                    f"{type(call).__name__} was not sent: the client is closed", remedy="Connect again"
                )
            raise ParamstreamTimeout(
                f"{type(call).__name__} could not be sent within {timeout:g} s: {self._last_failure}"
            )
        try:
            return answer.result(bounded(max(0.0, deadline - time.monotonic())))
        except TimeoutError:
            if answer.done():
                raise
            self._forget(request_id)
            raise ParamstreamTimeout(f"the broker did not answer {type(call).__name__} within {timeout:g} s") from None

    def request_async(self, call: Call, kind: Any, done: Done) -> None:
        """Ask the broker; `done` is called in the link's thread with the answer or the error, `ParamstreamTimeout` after 10 s."""
        request_id = self._remember(call, kind, done, ASYNC_S)
        if not self.send(Request(request_id, call)):  # type: ignore[arg-type]
            self._forget(request_id)
            done(None, OutcomeUnknown(f"{type(call).__name__} could not be sent: there is no connection"))

    def close(self, timeout: float) -> None:
        """Say goodbye and end the thread. A second call changes nothing."""
        if self._closing.is_set():
            return
        if os.getpid() == self._pid and self.connected:
            self.send(Goodbye())
        self._closing.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(bounded(timeout))

    # --- in the link's thread ---------------------------------------------------------------------------------------------

    def fetch(self, message: Fetch) -> None:
        """Ask the broker's fetch thread. Only in the link's thread; the answer comes to `Handler.fetched`."""
        if self._connection is not None:
            self._connection.send_fetch(encode_message(message))

    def _run(self) -> None:
        pause = RECONNECT_S[0]
        try:
            for endpoint in itertools.cycle(self._endpoints):
                if self._closing.is_set():
                    return
                if self._serve(endpoint):
                    pause = RECONNECT_S[0]
                else:
                    pause = min(pause * 2, RECONNECT_S[1])
                self._wait_disconnected(pause)
        finally:
            self._fail_pending("the link is closed")

    def _serve(self, endpoint: str) -> bool:
        """One connection's life. True if it was ever up."""
        try:
            connection = Connection.open(endpoint, self._hello(), self._closing)
        except ConnectFailed as error:
            self._last_failure = error.problem
            _log.debug("%s: %s", self._thread.name, error.problem)
            return False
        if connection is None:
            return False
        with self._up:
            self._connection = connection
            self._up.notify_all()
        reason = "the link is closed"
        _log.info("%s: connected to %s, broker %s", self._thread.name, endpoint, connection.welcome.broker)
        try:
            self._handler.connected(connection.welcome)
            if not self._first.done():
                self._first.set_result(connection.welcome)
            reason = self._receive(connection)
        finally:
            failure = sys.exc_info()[1]
            if failure is not None:
                # The handler failed, by a fault of ours: the thread ends, and everybody who waits is told why.
                reason = f"its thread ended by an error: {failure!r}"
            with self._up:
                self._connection = None
            connection.close()
            self._last_failure = reason
            _log.info("%s: the connection to %s is gone: %s", self._thread.name, endpoint, reason)
            self._fail_pending(reason)
            self._handler.lost(OutcomeUnknown(f"the connection to {endpoint} is gone: {reason}"))
        return True

    def _receive(self, connection: Connection) -> str:
        """Hand frames to the handler until the connection ends; returns why it did."""
        silence_s = SILENCE_HEARTBEATS * connection.welcome.heartbeat_s
        answers = AnswerReader()
        heard = next_tick = time.monotonic()
        while not self._closing.is_set():
            timeout_s = max(0.0, next_tick - time.monotonic())
            frames = connection.receive(timeout_s, BATCH_FRAMES)
            now = time.monotonic()
            if frames:
                heard = now
                for received in frames:
                    if received.is_answer:
                        self._take_answer(answers, received.data)
                    else:
                        self._dispatch(received.data)
                self._handler.drained()
            if now >= next_tick:
                next_tick = now + TICK_S
                self._fail_overdue(now)
                self._handler.tick(now)
                broken = connection.broken()
                if broken:
                    return broken
                if now - heard > silence_s:
                    return f"the broker said nothing for {silence_s:g} s"
        return "the link is closed"

    def _take_answer(self, answers: AnswerReader, data: memoryview) -> None:
        try:
            whole = answers.take(data)
        except CorruptLog:
            self.garbled_frames += 1
            return
        if whole is not None:
            self._handler.fetched(*whole)

    def _dispatch(self, frame: memoryview) -> None:
        if bytes(frame[:2]) == EVENT_MAGIC:
            self._handler.event(frame)
            return
        try:
            message = decode_message(frame)
        except CorruptLog as error:
            self.garbled_frames += 1
            _log.info("%s: a frame is passed over: %s", self._thread.name, error.problem)
            return
        if isinstance(message, Response):
            self._answered(message)
        else:
            self._handler.message(message)

    def _answered(self, response: Response) -> None:
        with self._pending_lock:
            pending = self._pending.pop(response.id, None)
        if pending is None:
            return
        done = pending.done
        if response.error is not None:
            done(None, response.error.raised())
            return
        try:
            result = decode_result(response.result, pending.kind)
        except CorruptLog as error:
            done(None, error)
        else:
            done(result, None)

    # --- small things -----------------------------------------------------------------------------------------------------

    def _remember(self, call: Call, kind: Any, done: Done, timeout: float) -> int:
        request_id = next(self._request_ids)
        with self._pending_lock:
            self._pending[request_id] = _Pending(call, kind, done, time.monotonic() + timeout)
        return request_id

    def _forget(self, request_id: int) -> None:
        with self._pending_lock:
            self._pending.pop(request_id, None)

    def _fail_overdue(self, now: float) -> None:
        with self._pending_lock:
            overdue = {number: pending for number, pending in self._pending.items() if now > pending.deadline}
            for number in overdue:
                del self._pending[number]
        for pending in overdue.values():
            name = type(pending.call).__name__
            pending.done(None, ParamstreamTimeout(f"the broker did not answer {name} in time"))

    def _fail_pending(self, reason: str) -> None:
        with self._pending_lock:
            pending, self._pending = self._pending, {}
        for each in pending.values():
            problem = f"the connection went before the broker answered: {reason}"
            each.done(None, OutcomeUnknown(problem, remedy="Look, and ask again"))

    def _send_when_connected(self, message: Message, deadline: float) -> bool:
        check_process(self._pid)
        data = encode_message(message)
        with self._up:
            while not (self._connection is not None and self._connection.send_up(data)):
                left = deadline - time.monotonic()
                if left <= 0 or self._closing.is_set():
                    return False
                self._up.wait(min(left, RECONNECT_S[1]))
        return True

    def _wait_disconnected(self, pause_s: float) -> None:
        """Wait before the next attempt; the handler's clock goes on meanwhile."""
        deadline = time.monotonic() + pause_s
        while not self._closing.wait(min(TICK_S, max(0.0, deadline - time.monotonic()))):
            now = time.monotonic()
            self._handler.tick(now)
            if now >= deadline:
                return
