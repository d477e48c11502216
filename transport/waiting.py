"""Timeouts as users give them: `math.inf`, or more than the operating system counts, is the longest wait there is."""

from __future__ import annotations

import threading


def bounded(seconds: float) -> float:
    """As much of it as a lock, a condition or a future can wait."""
    return min(seconds, threading.TIMEOUT_MAX)
