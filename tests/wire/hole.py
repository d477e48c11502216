"""A black hole between clients and a broker: nothing is closed, nothing comes through, and later everything does.

    with Hole(broker) as hole, ps.connect(hole.endpoint) as client:
        hole.swallow()
        ...
        hole.give_back()

It listens on another loopback address at the broker's own ports, fetches included, because a client looks for those at the
host that it knows the broker by. What was sent meanwhile comes late, as TCP sends lost packets again.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import paramstream as ps

HOST = "127.0.0.2"
_PIECE_BYTES = 65536


class Hole:
    """Open from the start. Its threads end with `close`."""

    def __init__(self, broker: ps.Broker) -> None:
        """`broker` is bound to tcp://127.0.0.1."""
        fetches: str = vars(broker)["_fetches"].address
        ports = [urlsplit(address).port or 0 for address in (broker.endpoint, fetches)]
        self.endpoint = f"tcp://{HOST}:{ports[0]}"
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        self._lock = threading.Lock()
        self._ends: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listeners = [socket.create_server((HOST, port)) for port in ports]
        for listener, port in zip(self._listeners, ports, strict=True):
            self._begin(self._accept, listener, port)

    def swallow(self) -> None:
        """From now on nothing comes through, in either direction; new connections hear nothing either."""
        self._open.clear()

    def give_back(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._closed = True
        self._open.set()
        with self._lock:
            for end in (*self._ends, *self._listeners):
                _hang_up(end)
        for thread in self._threads:
            thread.join(10)
        for end in (*self._ends, *self._listeners):
            end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self, listener: socket.socket, port: int) -> None:
        while True:
            try:
                client, _ = listener.accept()
                broker = socket.create_connection(("127.0.0.1", port))
            except OSError:
                return
            with self._lock:
                self._ends |= {client, broker}
                if self._closed:
                    return
            self._begin(self._carry, client, broker)
            self._begin(self._carry, broker, client)

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(_PIECE_BYTES):
                self._open.wait()
                sink.sendall(data)
        except OSError:
            pass  # One end has gone.
        self._open.wait()
        _hang_up(source)
        _hang_up(sink)

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="hole", daemon=True)
        self._threads.append(thread)
        thread.start()


def _hang_up(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # The other side was first.
