"""What leaves DRAM by itself: moved to SSD where that works, and left where it is where it does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..errors import ParamstreamError, StorageFull
from .blobs import Blob, Blobs
from .ssd import Buffer

TRY_AGAIN_S: Final = 1.0
"""How long nothing is tried after a failure: a full disk is not asked for each event, and goes on soon after it has room."""


@dataclass(frozen=True, slots=True)
class SpillCounts:
    """Since the store was made."""

    demoted: int = 0
    """Values and versions that were moved to SSD."""
    promoted: int = 0
    """Those that came back for good."""
    read: int = 0
    """Values and versions read from SSD, promoted or not."""
    failed: int = 0
    """Those that could not be moved, and stayed where they were, and those that could not be read."""


class Spill:
    """Moves bytes to SSD under pressure. Thread-safe. What fails is noted here and shown in the store's status; nothing is lost."""

    def __init__(self, blobs: Blobs, clock: Callable[[], float] = time.monotonic) -> None:
        self.blobs: Final = blobs
        self._clock = clock
        self._lock = threading.Lock()
        self._counts = SpillCounts()
        # Texts, since an error refers to the frames it went through, and these to what was to be written or read.
        self._write_error = ""
        self._read_error = ""
        self._try_at = 0.0

    @property
    def counts(self) -> SpillCounts:
        return self._counts

    @property
    def full(self) -> str:
        """Why the last value that was to be moved stayed, until one is moved again; else ""."""
        return self._write_error

    @property
    def error(self) -> str:
        """`full`, or else the last read that failed, for whoever looks."""
        return self._write_error or self._read_error

    @property
    def hint(self) -> str:
        """For the error of a DRAM that is full."""
        return f"nothing of it could leave, since {self.full}" if self.full else ""

    def put(self, data: Buffer) -> Blob | None:
        """A blob of `data`; None where that failed, or failed within the last `TRY_AGAIN_S` seconds. The caller then keeps what it has.

        With the blob in hand the caller lets go of the bytes, or drops the blob again.
        """
        if self._write_error and self._clock() < self._try_at:
            return None
        try:
            blob = self.blobs.write(data)
        except StorageFull as error:
            self._try_at = self._clock() + TRY_AGAIN_S
            self._write_error = error.problem
            self.count(failed=1)
            return None
        self._write_error = ""
        return blob

    def count(self, *, demoted: int = 0, promoted: int = 0, read: int = 0, failed: int = 0) -> None:
        with self._lock:
            was = self._counts
            self._counts = SpillCounts(
                was.demoted + demoted, was.promoted + promoted, was.read + read, was.failed + failed
            )

    def read_failed(self, error: ParamstreamError) -> None:
        self._read_error = str(error)
        self.count(failed=1)
