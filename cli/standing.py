"""What commands that stand share: they run until SIGTERM or SIGINT, in a process of their own."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

SWITCH_INTERVAL_S = 0.0005
"""How long a thread may keep the interpreter while others want it. Python's own 5 ms is what a small event would wait for; a
process that does nothing else is set lower."""


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
