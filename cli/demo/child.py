"""A child's side of the demo: it speaks on standard output and listens on standard input."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time

from .messages import Order, Report, decode_order, encode

ORPHANED = 3
"""Exit code of a child whose parent is gone."""
READ_BYTES = 4096


class Parent:
    """The process that started this one."""

    def __init__(self) -> None:
        self._orders: queue.Queue[Order] = queue.Queue()
        self._speaking = threading.Lock()
        threading.Thread(target=self._listen, name="paramstream-demo-orders", daemon=True).start()

    def tell(self, report: Report) -> None:
        """One line, whole, from any thread."""
        line = encode(report) + b"\n"
        with self._speaking:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    def order(self, timeout_s: float | None = None) -> Order | None:
        """The next order; None if none came within `timeout_s`."""
        try:
            return self._orders.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _listen(self) -> None:
        # Read without Python's buffer: a thread that waits inside it would keep the interpreter from shutting down.
        unread = b""
        while data := os.read(sys.stdin.fileno(), READ_BYTES):
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                self._orders.put(decode_order(line))
        # Nobody is left to report to, or to end this process, whatever it waits for at the moment.
        os._exit(ORPHANED)


class Pace:
    """Beats at a steady rate; beats that came too late are not made up for."""

    def __init__(self, per_second: float) -> None:
        self._between_s = 1 / per_second
        self._next_at = time.monotonic() + self._between_s

    def left_s(self) -> float:
        """Seconds until the next beat, at least 0."""
        return max(0.0, self._next_at - time.monotonic())

    def is_due(self) -> bool:
        """True once for each beat."""
        now = time.monotonic()
        if now < self._next_at:
            return False
        self._next_at = max(self._next_at + self._between_s, now)
        return True
