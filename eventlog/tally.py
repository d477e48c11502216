"""What a log holds, counted as it comes and goes, and the size of a segment."""

from __future__ import annotations

from threading import Lock

SEGMENT_NBYTES = 64 * 1024 * 1024
"""A segment of this size asks for a base: what a restart reads at most, beside the base."""

SEGMENTS_IN_LIMIT = 16
"""A small log is cut in steps of a sixteenth of its limit."""


class Tally:
    """Bytes of records that all partitions of a log hold. Reading it costs nothing; any thread may add."""

    __slots__ = ("_lock", "_nbytes")

    def __init__(self) -> None:
        self._lock = Lock()
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def add(self, nbytes: int) -> None:
        with self._lock:
            self._nbytes += nbytes


def segment_nbytes_for(limit: int) -> int:
    """The size at which a segment of a log of `limit` bytes is full."""
    return min(SEGMENT_NBYTES, limit // SEGMENTS_IN_LIMIT)
