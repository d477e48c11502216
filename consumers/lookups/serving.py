"""A replica that serves look-ups to other processes and hosts.

    with rep.serve("tcp://127.0.0.1:0") as serving:
        serving.endpoint                # what the replica's reports say from now on: clients find it by themselves

One thread with one ROUTER answers one question after the other, each bounded in keys and in bytes. A question that must see what is not
applied yet waits aside, at most `MAX_ASIDE` of them, and holds up nobody.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from types import TracebackType
from typing import Self

import zmq

from ...errors import CorruptLog, InvalidEvent, ParamstreamError
from ...transport.lookups import (
    MAX_FRAME_BYTES,
    MAX_OPEN,
    AnyQuestion,
    Declined,
    decode_question,
    encode_frame,
)
from ...transport.sockets import COPY_THRESHOLD_BYTES, Socket, is_local, release, router
from ...transport.waiting import bounded
from .answers import Source, Waiting, answer, declined
from .waking import Wake

_log = logging.getLogger(__name__)

POLL_MS = 50
"""How long the thread waits for a question before it looks whether it is to end."""

MAX_ASIDE = 1024
"""Questions that wait for what is not applied yet, of all clients; further ones are sent elsewhere at once."""

MAX_ASIDE_BYTES = 64 * 1024 * 1024
"""Of keys in those."""

BATCH = 64
"""Questions answered before those aside are looked at again."""


@dataclass(frozen=True, slots=True)
class ServingCounters:
    """What one served address has done since it was bound."""

    questions: int
    declined: int
    """Answered with an error."""
    aside: int
    """Waiting now for what is not applied yet."""
    dropped: int
    """Answers that nobody took: their clients were gone, or took nothing."""
    garbled_frames: int
    """Frames that were no question."""


@dataclass(slots=True)
class _Aside:
    client: bytes
    question: AnyQuestion
    bulk: memoryview
    deadline: float


class Serving:
    """Answers look-ups at `endpoint` until it, or its replica, is closed."""

    def __init__(
        self,
        source: Source,
        bind: str,
        name: str,
        *,
        insecure: bool = False,
        advertise: str | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """`name` is the replica's. `advertise`: the address that clients are told, where that is not the one bound.

        Raises `AccessDenied` for an address beyond loopback without `insecure`, `BindFailed` where it cannot be taken, `InvalidEvent`
        where clients could not be told of it.
        """
        self._source = source
        self._on_close = on_close
        self._pid = os.getpid()
        _check_told(bind, advertise)
        self._socket, self._bound = router(
            bind, insecure=insecure, most_waiting=2 * MAX_OPEN, most_bytes=MAX_FRAME_BYTES
        )
        self.endpoint = advertise or self._bound
        """Where clients reach it."""
        self._closing = threading.Event()
        self._aside: list[_Aside] = []
        self._aside_bytes = 0
        self._questions = self._declined = self._dropped = self._garbled = 0
        self._look_at = 0.0
        self._wake = Wake()
        self._thread = threading.Thread(target=self._run, name=f"paramstream-serving-{name}", daemon=True)
        self._thread.start()
        _log.info("replica %s serves look-ups at %s", name, self._bound)

    # --- any thread -----------------------------------------------------------------------------------------------------------

    def counters(self) -> ServingCounters:
        return ServingCounters(self._questions, self._declined, len(self._aside), self._dropped, self._garbled)

    def wake(self) -> None:
        """The replica has applied something: those aside may have their answers now. Never blocks."""
        if self._aside:
            self._wake.up()

    @property
    def closed(self) -> bool:
        return self._closing.is_set()

    def close(self, timeout: float = 30.0) -> None:
        """No answer any more: clients ask other replicas. The address can be bound again. A second call changes nothing."""
        if self._closing.is_set() or os.getpid() != self._pid:
            return
        self._closing.set()
        self._thread.join(bounded(timeout))
        self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the thread -------------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        try:
            while not self._closing.is_set():
                ready = dict(poller.poll(self._patience_ms()))
                if self._socket in ready:
                    self._serve(self._socket)
                woken = self._wake.fileno() in ready and self._wake.taken()
                if self._aside and (woken or time.monotonic() >= self._look_at):
                    self._look_aside()
        finally:
            release(self._socket, self._bound)
            self._wake.close()

    def _patience_ms(self) -> int:
        if not self._aside:
            return POLL_MS
        return min(POLL_MS, max(0, ceil((self._look_at - time.monotonic()) * 1000)))

    def _serve(self, socket: Socket) -> None:
        for _ in range(BATCH):
            if self._closing.is_set():
                return
            try:
                client, *frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._questions += 1
            try:
                if len(frames) != 1:
                    raise CorruptLog(f"a question of {len(frames)} frames")
                question, bulk = decode_question(frames[0].buffer)
            except CorruptLog as error:
                self._garbled += 1
                _log.info("%s: a frame is passed over: %s", self._thread.name, error.problem)
                continue
            self._take(client.bytes, question, bulk)

    def _take(self, client: bytes, question: AnyQuestion, bulk: memoryview) -> None:
        found = answer(self._source, question, bulk)
        if not isinstance(found, Waiting):
            self._send(client, found)
        elif found.most_s <= 0:
            self._send(client, found.late)
        elif len(self._aside) >= MAX_ASIDE or self._aside_bytes + len(bulk) > MAX_ASIDE_BYTES:
            problem = f"{len(self._aside)} look-ups wait here already for what is not applied yet"
            self._send(client, declined(question.id, ParamstreamError(problem), elsewhere=True))
        else:
            self._aside.append(_Aside(client, question, bulk, time.monotonic() + found.most_s))
            self._aside_bytes += len(bulk)
            # What it waits for may have come between its look and its being seen to wait.
            self._look_at = 0.0

    def _look_aside(self) -> None:
        now, still = time.monotonic(), list[_Aside]()
        for each in self._aside:
            found = answer(self._source, each.question, each.bulk)
            if isinstance(found, Waiting):
                if now < each.deadline:
                    still.append(each)
                    continue
                found = found.late
            self._aside_bytes -= len(each.bulk)
            self._send(each.client, found)
        self._aside = still
        self._look_at = min([now + POLL_MS / 1000, *(each.deadline for each in still)])

    def _send(self, client: bytes, found: bytes | Declined) -> None:
        if isinstance(found, bytes):
            frame = found
        else:
            frame = encode_frame(found)
            self._declined += 1
        try:
            self._socket.send_multipart([client, frame], zmq.NOBLOCK, copy=len(frame) < COPY_THRESHOLD_BYTES)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            # The client is gone, or takes nothing although it asks; it asks again where it still wants to know.
            self._dropped += 1


def _check_told(bind: str, advertise: str | None) -> None:
    host = bind.removeprefix("tcp://").rpartition(":")[0]
    if advertise is None and not is_local(bind) and host in ("0.0.0.0", "[::]", "*"):
        raise InvalidEvent(
            f"clients cannot be told that a replica serves at {bind}",
            item=bind,
            remedy='Give advertise="tcp://HOST:PORT" as clients reach it',
        )
