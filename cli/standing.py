"""What commands that stand share: they run until SIGTERM or SIGINT, in a process of their own."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from types import FrameType

SWITCH_INTERVAL_S = 0.0005
"""How long a thread may keep the interpreter while others want it. Python's own 5 ms is what a small event would wait for; a
process that does nothing else is set lower."""


KEPT_FREE_BYTES = 64 * 1024 * 1024
"""How much freed memory the allocator keeps at the end of each of its heaps. glibc's own bound is that of about two chunks: what
ZeroMQ receives beyond that would be fresh memory again and again, whose page faults cost more than the copy into it."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_FROM_BYTES = 32 * 1024 * 1024
"""Only larger pieces get a mapping of their own, which goes back as soon as they are freed: the most that glibc takes."""


class StopSignal:
    """Ends a standing command: set by SIGTERM and SIGINT from its making on. Made in the main thread."""

    def __init__(self) -> None:
        self._event = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._received)

    def wait(self, seconds: float | None = None) -> bool:
        """Blocks until the signal came, or for `seconds`; True if it came."""
        return self._event.wait(seconds)

    def _received(self, number: int, frame: FrameType | None) -> None:
        self._event.set()


def favour_small_events() -> None:
    """Lets this process's threads take turns quickly. For processes of our own, never in a user's."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def keep_freed_memory() -> None:
    """Lets this process use freed memory again instead of giving it back; where the allocator is not glibc's, nothing happens.

    For processes of our own, never in a user's.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, KEPT_FREE_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_FROM_BYTES)
