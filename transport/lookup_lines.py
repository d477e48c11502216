"""The connections of a client to the replicas that serve look-ups: kept, lent to one calling thread at a time, and taken back.

A look-up is asked and awaited by the thread that wants it, on a socket that nobody else uses meanwhile: no thread of ours stands
between, since each hand-over beside a busy Python thread costs ten times what the answer takes.
"""

from __future__ import annotations

import itertools
import os
import threading
import time

import zmq

from ..errors import ParamstreamError
from .connection import Monitored
from .lookups import MAX_FRAME_BYTES, MAX_OPEN
from .sockets import COPY_THRESHOLD_BYTES, check_process
from .waiting import bounded

KEEP_IDLE = 8
"""Connections to one replica that are kept while nobody uses them; more threads than that connect anew each time."""

ROUTING_ID_BYTES = 16


class Line:
    """A connection to one replica. Whoever took it has it alone until it gives it back."""

    def __init__(self, endpoint: str) -> None:
        """Raises `ConnectFailed` where the address cannot be connected to; that nothing listens there shows later (`gone`)."""
        self.endpoint = endpoint
        self._connection = Monitored(
            endpoint, os.urandom(ROUTING_ID_BYTES), most_waiting=2 * MAX_OPEN, most_bytes=MAX_FRAME_BYTES
        )
        self.socket = self._connection.socket
        self._numbers = itertools.count(1)

    def next_number(self) -> int:
        """Of a question: of this connection no other has it."""
        return next(self._numbers)

    def send(self, frame: bytes) -> bool:
        """False where it takes nothing more."""
        try:
            self.socket.send(frame, zmq.NOBLOCK, copy=len(frame) < COPY_THRESHOLD_BYTES)
        except zmq.Again:
            return False
        return True

    def receive(self) -> memoryview | None:
        """The next frame that is there."""
        try:
            return self.socket.recv(zmq.NOBLOCK, copy=False).buffer
        except zmq.Again:
            return None

    def gone(self) -> bool:
        """Its replica is not there any more, or never was."""
        return self._connection.gone()

    def close(self) -> None:
        self._connection.close()


class Lines:
    """All connections of a client to replicas. Thread-safe."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._idle: dict[str, list[Line]] = {}
        self._lent = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def take(self, endpoint: str) -> Line:
        """One for the calling thread alone, which gives it back, or drops it. Raises `ConnectFailed`, and where the client is
        closed or of another process.
        """
        check_process(self._pid)
        while True:
            with self._changed:
                if self._closed:
                    raise ParamstreamError("the client is closed", remedy="Connect again")
                idle = self._idle.get(endpoint)
                line = idle.pop() if idle else None
                if line is None or not line.gone():
                    self._lent += 1
                    break
            line.close()
        if line is not None:
            return line
        try:
            return Line(endpoint)
        except BaseException:
            self._returned()
            raise

    def give(self, line: Line) -> None:
        """Back, with no question open."""
        with self._changed:
            idle = self._idle.setdefault(line.endpoint, [])
            keep = not self._closed and len(idle) < KEEP_IDLE
            if keep:
                idle.append(line)
        if not keep:
            line.close()
        self._returned()

    def drop(self, line: Line) -> None:
        """Of no use any more: it is gone, or answers may still come that nobody awaits."""
        line.close()
        self._returned()

    def forget(self, endpoint: str) -> None:
        """Nobody serves there any more."""
        with self._changed:
            idle = self._idle.pop(endpoint, [])
        for line in idle:
            line.close()

    def close(self, timeout: float) -> None:
        """Nothing is lent any more, and those that are lent end soon: waits for them. A second call changes nothing."""
        deadline = time.monotonic() + bounded(timeout)
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, {}
            self._changed.wait_for(lambda: not self._lent, max(0.0, deadline - time.monotonic()))
        for lines in idle.values():
            for line in lines:
                line.close()

    def _returned(self) -> None:
        with self._changed:
            self._lent -= 1
            self._changed.notify_all()
