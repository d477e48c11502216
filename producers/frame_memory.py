"""Memory for large frames, kept and used again: writing to fresh memory costs ten times the copy into memory that is there.

A frame is viewed by its event until that is answered, and by ZeroMQ until it has been sent. When the last view of it dies, a
finalizer puts its memory back. Finalizers run on any thread and inside garbage collection, so they only append to a deque
(one atomic step).
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque

KEPT_FROM_BYTES = 64 * 1024
"""Smaller frames are not kept: ZeroMQ copies them as it sends, and the allocator has memory for them at hand."""

KEPT_PIECES = 48
"""Free pieces of one size that are kept: as many as a broker's usual window has chunks. What is above goes with the oldest."""


class FrameMemory:
    """Pieces of memory whose sizes are powers of two. Pages of a piece that no frame has reached take no memory."""

    def __init__(self) -> None:
        self._free: dict[int, deque[bytearray]] = {}

    @property
    def free_pieces(self) -> int:
        """Pieces that nobody views, of all sizes."""
        return sum(len(free) for free in list(self._free.values()))

    def take(self, nbytes: int) -> memoryview:
        """Writable bytes, `nbytes` long, with undefined content. They are used again once no view of them is left."""
        capacity = 1 << max(0, nbytes - 1).bit_length()
        free = self._free.setdefault(capacity, deque(maxlen=KEPT_PIECES))
        try:
            # The newest: what was used last is the likeliest to be in a cache.
            piece = free.pop()
        except IndexError:
            piece = bytearray(capacity)
        lease = (ctypes.c_ubyte * capacity).from_buffer(piece)
        # At exit the process drops everything at once; a finalizer would only run against a half-gone interpreter.
        weakref.finalize(lease, free.append, piece).atexit = False
        return memoryview(lease).cast("B")[:nbytes]
