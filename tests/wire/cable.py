"""A TCP cable between clients and a broker, which a test cuts after so many bytes and puts back.

    with Cable(broker.endpoint) as cable, ps.connect(cable.endpoint) as client:
        cable.cut_after(1_000_000)
        ...
        cable.mend()

Only what clients reach by the broker's first endpoint goes through it: fetches go to a port of their own.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

_PIECE_BYTES = 65536


class Cable:
    """Whole from the start. Its threads end with `close`."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self._broker = host, int(port)
        self._lock = threading.Lock()
        self._whole = True
        self._left: int | None = None
        """Bytes for clients that it still carries before it is cut; None: any number."""
        self._ends: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._begin(self._accept)

    def cut(self) -> None:
        """Both ends of every connection are closed; new ones are closed at once."""
        with self._lock:
            self._cut()

    def cut_after(self, nbytes: int) -> None:
        """Carry `nbytes` more to the clients, then cut."""
        with self._lock:
            self._left = nbytes

    def mend(self) -> None:
        with self._lock:
            self._whole, self._left = True, None

    @property
    def whole(self) -> bool:
        return self._whole

    def close(self) -> None:
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for end in (*self._ends, self._listener):
            end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self._whole:
                client.close()
                continue
            broker = socket.create_connection(self._broker)
            with self._lock:
                self._ends |= {client, broker}
            self._begin(self._carry, client, broker)
            self._begin(self._carry, broker, client, for_client=True)

    def _carry(self, source: socket.socket, sink: socket.socket, *, for_client: bool = False) -> None:
        try:
            while data := source.recv(_PIECE_BYTES):
                share = self._share(data) if for_client else data
                sink.sendall(share)
                if len(share) < len(data):
                    self.cut()
        except OSError:
            pass  # Cut, or one end has gone.
        with self._lock:
            for end in {source, sink} & self._ends:
                _hang_up(end)

    def _share(self, data: bytes) -> bytes:
        """What of `data` still goes through; the rest is lost with the cable."""
        with self._lock:
            if self._left is None:
                return data
            share = data[: self._left]
            self._left -= len(share)
            return share

    def _cut(self) -> None:
        self._whole = False
        for end in self._ends:
            _hang_up(end)

    def _begin(self, work: Callable[..., None], *arguments: object, **options: bool) -> None:
        thread = threading.Thread(target=work, args=arguments, kwargs=options, name="cable", daemon=True)
        self._threads.append(thread)
        thread.start()


def _hang_up(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # The other side was first.
