"""The way into the broker's loop from its other threads: jobs, which the loop does between two messages.

They are told through the loop's own ROUTER over an inproc address, so that there is one socket to wait on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import zmq

from ..transport.sockets import Socket, context

POST_ID = b"post"
"""The routing id of those frames; a client's is longer."""

Job = Callable[[], None]
Post = Callable[[Job], None]


class Posting:
    """`post` may be called from any thread, `run` in the loop's only. Jobs are done in the order in which they came."""

    def __init__(self, in_process: str) -> None:
        self._jobs: deque[Job] = deque()
        self._lock = threading.Lock()
        self._is_closed = False
        self._socket: Socket = context().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.ROUTING_ID, POST_ID)
        self._socket.connect(in_process)

    def post(self, job: Job) -> None:
        """Never waits. After `close` nothing is done any more."""
        with self._lock:
            if self._is_closed:
                return
            self._jobs.append(job)
            if len(self._jobs) == 1:
                # One that is not taken yet tells of all.
                self._socket.send(b"", zmq.NOBLOCK)

    def run(self) -> None:
        """Do what has come."""
        while True:
            with self._lock:
                if not self._jobs:
                    return
                job = self._jobs.popleft()
            job()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._jobs.clear()
            self._socket.close(linger=0)
