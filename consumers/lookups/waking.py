"""Wakes a thread that waits for sockets, from another thread."""

from __future__ import annotations

import os
import threading

_ENOUGH = 4096
"""Bytes read at once: so many wake-ups are one."""


class Wake:
    """A pipe: its reading end is what a poller waits for. Thread-safe."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)
        self._lock = threading.Lock()
        self._closed = False

    def fileno(self) -> int:
        """What a poller waits for."""
        return self._out

    def up(self) -> None:
        """Wake it. Never blocks; once closed it does nothing."""
        with self._lock:
            if not self._closed:
                try:
                    os.write(self._in, b"!")
                except BlockingIOError:
                    # Nobody has looked yet, and will.
                    return

    def taken(self) -> bool:
        """By the thread that waits: it was woken, and is not any more."""
        try:
            return bool(os.read(self._out, _ENOUGH))
        except BlockingIOError:
            return False

    def close(self) -> None:
        with self._lock:
            self._closed = True
        os.close(self._in)
        os.close(self._out)
