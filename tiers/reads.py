"""Many places of a file at once: what is in memory is copied out, what is not is asked of the disk all together."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .rows.kernels import uses_numba

Ints = NDArray[np.int64]
Buffer = NDArray[np.uint8]

NO_WAIT: Final = getattr(os, "RWF_NOWAIT", 0)
"""Reads what is in memory and nothing else; other systems just read."""

ReadNow = Callable[[int, Buffer, Ints, Ints, Ints, NDArray[np.bool_]], None]


def read_places(handle: int, buffer: Buffer, begins: Ints, nbytes: Ints, offsets: Ints) -> None:
    """Fills pieces of a flat buffer: `nbytes` each from `begins` on, out of the file from `offsets` on. Blocks for the disk.

    What is not in memory is announced to the system before the first of it is waited for, so that the disk works on many places side by
    side (measured: a fifth of the time of one after the other). Raises `OSError` where the disk does not give them, or the file ends.
    """
    is_read = np.empty(len(begins), np.bool_)
    _read_now()(handle, buffer, begins, nbytes, offsets, is_read)
    if is_read.all():
        return
    view = buffer.data
    waiting = np.flatnonzero(~is_read)
    places = list(zip(begins[waiting].tolist(), nbytes[waiting].tolist(), offsets[waiting].tolist(), strict=True))
    if len(places) > 1 and hasattr(os, "posix_fadvise"):
        for _, count, offset in places:
            os.posix_fadvise(handle, offset, count, os.POSIX_FADV_WILLNEED)
    for begin, count, offset in places:
        read_into(handle, view[begin : begin + count], offset)


def read_into(handle: int, buffer: memoryview, offset: int) -> None:
    """Fills all of `buffer` (writable, unsigned bytes). Raises `OSError` where the disk does not give it, or the file ends."""
    while buffer:
        got = os.preadv(handle, [buffer], offset)
        if got == 0:
            raise OSError(errno.EIO, f"the file ends at {offset}")
        buffer, offset = buffer[got:], offset + got


@cache
def _read_now() -> ReadNow:
    """Reads what is in memory, and says which pieces that were. Compiled, it takes a third of the time, and no GIL."""
    if uses_numba() and NO_WAIT and hasattr(ctypes.CDLL(None), "preadv2"):
        from .rows.compiled_reads import read_now  # numba is optional, and slow to import.

        return read_now
    return _plain_read_now


def _plain_read_now(
    handle: int, buffer: Buffer, begins: Ints, nbytes: Ints, offsets: Ints, is_read: NDArray[np.bool_]
) -> None:
    view = buffer.data
    for place, (begin, count, offset) in enumerate(
        zip(begins.tolist(), nbytes.tolist(), offsets.tolist(), strict=True)
    ):
        try:
            is_read[place] = os.preadv(handle, [view[begin : begin + count]], offset, NO_WAIT) == count
        except OSError:
            is_read[place] = False  # It has to be waited for, or the file system cannot tell.
