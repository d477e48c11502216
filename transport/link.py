"""A client's link to its brokers: greets, sends, receives, notices a loss, and connects again.

    link = Link(["tcp://127.0.0.1:7777"], handler, hello)
    link.start(timeout=5.0)
    link.send(frame)                        # from any thread, at once
    answer = link.request(ListTopics(), list[TopicRecord], timeout=30.0)

One thread of the link receives everything and calls the handler; calling threads send for themselves on a socket of their
own under its lock, because a frame handed to another thread beside a busy Python thread waits for the interpreter's switch
interval. Within a connection frames arrive in order. A connection that breaks may have lost a suffix of what was sent:
the handler hears `lost`, and then `connected` for a wholly new connection, over which answers of the old one never come.

Several brokers that share a log are one to the handler (`fleet.py`): their connections are lost and made anew together.
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
from typing import Any, Protocol

import msgspec

from ..errors import ConnectFailed, CorruptLog, NotOwner, OutcomeUnknown, ParamstreamError, ParamstreamTimeout
from ..events.codec import MAGIC as EVENT_MAGIC
from ..events.codec import Buffer, partition_in
from .asking import Done, Question, Questions
from .calls import Call
from .connection import Connection, Received
from .fleet import Fleet
from .messages import (
    AnyMessage,
    Demoted,
    Fetch,
    Fetched,
    FetchFile,
    Goodbye,
    Hello,
    Moved,
    Refused,
    Response,
    Welcome,
    decode_message,
    encode_message,
)
from .sockets import check_process
from .waiting import bounded
from .wire import Message, WireError

_log = logging.getLogger(__name__)

TICK_S = 0.05
"""How long the link's thread waits for a frame before it looks after reports, timeouts and a broken connection."""

ASYNC_S = 10.0
"""How long an answer that nobody blocks for may take: whoever asked asks again."""

RECONNECT_S = (0.02, 0.5)
"""First and longest pause between attempts to connect."""

LINK_ID_BYTES = 16

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


class Link:
    """See the module's docstring. Thread-safe but for `fetch`, which belongs to the link's thread."""

    def __init__(
        self, endpoints: Sequence[str], handler: Handler, hello: Callable[[], Hello], name: str = "link"
    ) -> None:
        """`endpoints` are tried in turn. The first broker that answers tells of all others."""
        self._endpoints = list(endpoints)
        self._told: list[str] = []
        """Endpoints of the last fleet: brokers that the user need not have named."""
        self._handler = handler
        self._hello = hello
        self._identity = os.urandom(LINK_ID_BYTES)
        self._turns = itertools.count(1)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        """Held by whoever sends, and for the change from one fleet to another."""
        self._fleet: Fleet | None = None
        self._first: Future[Welcome] = Future()
        self._last_failure = "nothing answered"
        self._moved = ""
        """What a broker has said of its fleet being over."""
        self._closing = threading.Event()
        self._numbers = itertools.count(1)
        self._questions = Questions()
        self._thread = threading.Thread(target=self._run, name=f"paramstream-{name}", daemon=True)
        self.garbled_frames = 0
        """Frames of a broker that could not be decoded; each was counted and passed over."""

    # --- for any thread -----------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self._fleet is not None

    @property
    def endpoints(self) -> list[str]:
        """Where brokers are looked for: those of the last connection, and those that were given."""
        return list(dict.fromkeys([*self._told, *self._endpoints]))

    def start(self, timeout: float) -> Welcome:
        """Connect; blocks until the broker, or all of several, have answered. The answer says what holds of them all.

        Raises `ConnectFailed` naming the endpoints after `timeout` s.
        """
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
        """Send at once from the calling thread, an event to its partition's owner, a message to whom it is for.

        False while there is no connection, and nothing was sent; or where a broker takes nothing more at the moment. The
        frame's memory must not change until the outcome is known. Raises where this process was forked.
        """
        check_process(self._pid)
        if isinstance(frame, Message):
            data = encode_message(frame)
            with self._lock:
                return self._fleet is not None and self._fleet.send(frame, data)
        with self._lock:
            fleet = self._fleet
            if fleet is None:
                return False
            return (fleet.only or fleet.owner(partition_in(frame))).send_up(frame)

    def request(self, call: Call, kind: Any, timeout: float) -> Any:
        """Ask those whom the call is for, and wait for one answer of them all. Not in the link's thread.

        Asked again over the next connection where that does no harm (`Call.may_be_repeated`), or a partition has another owner by
        now. Raises the broker's own error, `OutcomeUnknown` where the connection went before the answer, or
        `ParamstreamTimeout` naming the call.
        """
        check_process(self._pid)
        answer: Future[Any] = Future()

        def done(result: Any, error: ParamstreamError | None) -> None:
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        question = Question(next(self._numbers), call, kind, done, time.monotonic() + timeout, waits=True)
        self._questions.add(question)
        # Where there is no connection yet, the link's thread sends it over the next one.
        self._ask(question)
        try:
            return answer.result(bounded(timeout))
        except TimeoutError:
            if answer.done():
                raise
            self._questions.remove(question)
            if question.is_asked:
                raise ParamstreamTimeout(f"the broker did not answer {question.name} within {timeout:g} s") from None
            raise ParamstreamTimeout(
                f"{question.name} could not be sent within {timeout:g} s: {self._last_failure}"
            ) from None

    def request_async(self, call: Call, kind: Any, done: Done) -> None:
        """Ask those whom the call is for; `done` is called in the link's thread with the answer or the error, `ParamstreamTimeout`
        after 10 s.
        """
        check_process(self._pid)
        question = Question(next(self._numbers), call, kind, done, time.monotonic() + ASYNC_S, waits=False)
        self._questions.add(question)
        if not self._ask(question) and self._questions.remove(question):
            done(None, OutcomeUnknown(f"{question.name} could not be sent: there is no connection"))

    def close(self, timeout: float) -> None:
        """Say goodbye and end the thread. A second call changes nothing."""
        if self._closing.is_set():
            return
        if os.getpid() == self._pid and self.connected:
            self.send(Goodbye())
        self._closing.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(bounded(timeout))

    def _ask(self, question: Question) -> bool:
        """False where it could not be sent, or not to all."""
        with self._lock:
            if self._fleet is None or question.is_asked:
                return False
            return question.ask(self._fleet)

    # --- in the link's thread ---------------------------------------------------------------------------------------------

    def fetch(self, message: Fetch | FetchFile) -> None:
        """Ask the owner's fetch thread, or the one that `FetchFile.other` says. Only in the link's thread; the answer comes to
        `Handler.fetched`.
        """
        if self._fleet is not None:
            brokers = self._fleet.keepers((message.topic, message.partition))
            other = message.other % len(brokers) if isinstance(message, FetchFile) else 0
            brokers[other].send_fetch(encode_message(message))

    def _run(self) -> None:
        pause = RECONNECT_S[0]
        failure = "the client is closed"
        try:
            for turn in itertools.count():
                if self._closing.is_set():
                    return
                if self._serve(self.endpoints[turn % len(self.endpoints)]):
                    pause = RECONNECT_S[0]
                else:
                    pause = min(pause * 2, RECONNECT_S[1])
                self._wait_disconnected(pause)
        except BaseException as error:
            failure = f"the thread of this link ended by an error: {error!r}"
            raise
        finally:
            self._questions.end(failure)

    def _serve(self, endpoint: str) -> bool:
        """One fleet's life. True if it was ever up."""
        try:
            hello = msgspec.structs.replace(self._hello(), link=self._identity, turn=next(self._turns))
            fleet = Fleet.gather(endpoint, hello, self._closing)
        except ConnectFailed as error:
            self._last_failure = error.problem
            _log.debug("%s: %s", self._thread.name, error.problem)
            return False
        if fleet is None:
            return False
        self._told = [owner.endpoint for owner in fleet.welcome.owners]
        self._moved = ""
        with self._lock:
            self._fleet = fleet
        reason = "the link is closed"
        where = ", ".join(fleet.endpoints())
        _log.info("%s: connected to %s, broker %s", self._thread.name, where, fleet.welcome.broker)
        try:
            self._handler.connected(fleet.welcome)
            if not self._first.done():
                self._first.set_result(fleet.welcome)
            self._send_waiting()
            reason = self._receive(fleet)
        finally:
            failure = sys.exc_info()[1]
            if failure is not None:
                # The handler failed, by a fault of ours: the thread ends, and everybody who waits is told why.
                reason = f"its thread ended by an error: {failure!r}"
            with self._lock:
                self._fleet = None
            fleet.close()
            self._last_failure = reason
            _log.info("%s: the connection to %s is gone: %s", self._thread.name, where, reason)
            self._questions.lost(reason)
            self._handler.lost(OutcomeUnknown(f"the connection to {where} is gone: {reason}"))
        return True

    def _receive(self, fleet: Fleet) -> str:
        """Hand frames to the handler until the fleet's life ends; returns why it did."""
        next_tick = time.monotonic()
        while not self._closing.is_set():
            received = fleet.receive(max(0.0, next_tick - time.monotonic()), BATCH_FRAMES)
            for each in received:
                self._take(each)
            if received:
                self._handler.drained()
            if self._moved:
                return self._moved
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + TICK_S
                self._send_waiting()
                self._questions.fail_overdue(now)
                self._handler.tick(now)
                ended = fleet.ended(now)
                if ended:
                    return ended
        return "the link is closed"

    def _take(self, received: Received) -> None:
        if self._moved:
            # Others own its partitions by now, and the next connection tells of them.
            return
        if received.is_answer:
            self._take_answer(received)
        elif bytes(received.data[:2]) == EVENT_MAGIC:
            self._handler.event(received.data)
        else:
            self._take_message(received)

    def _take_answer(self, received: Received) -> None:
        try:
            whole = received.connection.answers.take(received.data)
        except CorruptLog:
            self.garbled_frames += 1
            return
        if whole is None:
            return
        answer, frames = whole
        if _is_elsewhere(answer.error):
            self._has_moved(received.connection)
        else:
            self._handler.fetched(answer, frames)

    def _take_message(self, received: Received) -> None:
        try:
            message = decode_message(received.data)
        except CorruptLog as error:
            self.garbled_frames += 1
            _log.info("%s: a frame is passed over: %s", self._thread.name, error.problem)
            return
        match message:
            case Response():
                self._answered(received.connection, message)
            case Moved():
                self._has_moved(received.connection)
            case Refused() | Demoted() if _is_elsewhere(message.error):
                self._has_moved(received.connection)
            case _:
                self._handler.message(message)

    def _has_moved(self, connection: Connection) -> None:
        self._moved = f"{connection.address} no longer has all of its partitions"

    def _answered(self, connection: Connection, response: Response) -> None:
        question = self._questions.get(response.id)
        if question is None:
            return
        outcome = question.take(connection, response)
        if outcome is None:
            if question.goes_on:
                with self._lock:
                    question.go_on()
        elif isinstance(outcome[1], NotOwner):
            self._has_moved(connection)
        elif self._questions.remove(question):
            question.done(*outcome)

    def _send_waiting(self) -> None:
        """Send what was asked while there was no connection, or a broker took nothing more."""
        for question in self._questions.all():
            with self._lock:
                if self._fleet is not None and not question.is_asked:
                    question.ask(self._fleet)
                else:
                    question.send_rest()

    def _wait_disconnected(self, pause_s: float) -> None:
        """Wait before the next attempt; the handler's clock goes on meanwhile."""
        deadline = time.monotonic() + pause_s
        while not self._closing.wait(min(TICK_S, max(0.0, deadline - time.monotonic()))):
            now = time.monotonic()
            self._handler.tick(now)
            if now >= deadline:
                return


def _is_elsewhere(error: WireError | None) -> bool:
    return error is not None and error.code == NotOwner.__name__
