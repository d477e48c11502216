"""Anonymous shared memory: one file without a name, mapped once for writing and kept mapped.

Why a file: every reader maps the same pages, read-only or copy-on-write, without a copy. Why kept: a page of a fresh file costs ten to
twenty times the copy of the weights into it. Most of that is the mapping and the zeroing of each page, which memory that is only
written once, and read through the mappings of others, is spared: its pages are reserved, and written through the file.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
import threading
import weakref
from functools import cache
from pathlib import Path
from typing import Final

_POPULATE_WRITE: Final = 23
"""MADV_POPULATE_WRITE (Linux 5.14), which the `mmap` module of Python 3.11 has no name for: faults all pages in as writable."""

_PREFAULT_STEP_BYTES: Final = 8 << 20
"""Pages are faulted in by steps, since `madvise` holds the GIL: 8 MiB take about 8 ms, so that heartbeats go on meanwhile. They are
reserved by steps too, since a signal makes a step begin anew."""

_HUGE_PAGES: Final = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


def round_up(nbytes: int, unit: int = mmap.PAGESIZE) -> int:
    """`nbytes` rounded up to whole units (pages), at least one."""
    return max(1, -(-nbytes // unit)) * unit


class Segment:
    """`capacity` bytes of anonymous shared memory, all pages present. Holds two descriptors (Python's `mmap` keeps its own)."""

    def __init__(self, capacity: int) -> None:
        """Makes the memory and takes its pages (about 0.3 ms a MiB). `capacity` is in bytes, a whole number of pages.

        Raises `OSError` if the system lacks memory or descriptors; nothing is left behind then.
        """
        self.capacity: Final = capacity
        self._descriptor: Final = _open_anonymous(capacity)
        # A segment that is dropped without `close`, with the store that held it, leaves no descriptor either.
        self._close_descriptor = weakref.finalize(self, os.close, self._descriptor)
        self._in_use = threading.Lock()
        """Of the descriptor: its number may be another file's once it is closed."""
        self._is_faulted_in = False
        try:
            self._kept: mmap.mmap | None = mmap.mmap(self._descriptor, capacity)
            if _can_be_reserved():
                _reserve(self._descriptor, capacity)
            else:
                self.fault_in()
        except BaseException:
            self._close_descriptor()
            raise

    @property
    def kept(self) -> mmap.mmap:
        """The one writable mapping. It lives as long as the segment, and longer while anybody views it."""
        assert self._kept is not None, "the segment is closed"
        return self._kept

    def fault_in(self) -> None:
        """Gives the kept mapping all of its pages (about 0.3 ms a MiB, 0.7 where nothing was written). A second call does nothing.

        Raises `OSError` where the system lacks memory, `ValueError` after `close`.
        """
        if not self._is_faulted_in:
            if self._kept is None:
                raise ValueError("the segment is closed")
            _prefault(self._kept, self._descriptor)
            self._is_faulted_in = True

    def write(self, data: memoryview, offset: int) -> None:
        """Copies bytes into place, through the kept mapping where that is faulted in. Raises `ValueError` after `close`."""
        with self._in_use:
            if self._kept is None:
                raise ValueError("the segment is closed")
            if self._is_faulted_in:
                self._kept[offset : offset + len(data)] = data
                return
            while data:
                written = os.pwrite(self._descriptor, data, offset)
                data, offset = data[written:], offset + written

    def map_shared(self, nbytes: int) -> mmap.mmap:
        """A new read-only mapping of the first `nbytes` (≥ 1): it shows what is written, and no view of it can be writable."""
        return mmap.mmap(self._descriptor, nbytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)

    def map_private(self, nbytes: int) -> mmap.mmap:
        """A new copy-on-write mapping of the first `nbytes` (≥ 1): writable, and what is written to it is seen by nobody else."""
        return mmap.mmap(self._descriptor, nbytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)

    def close(self) -> None:
        """Closes the descriptor and the kept mapping. Mappings and views handed out stay valid until they are dropped."""
        with self._in_use:
            self._close_descriptor()
            kept, self._kept = self.kept, None
        # Somebody still views the kept mapping where this is refused; it then goes with the last view.
        with contextlib.suppress(BufferError):
            kept.close()


def _open_anonymous(nbytes: int) -> int:
    """A descriptor of a file of `nbytes` that no path names and no child process inherits."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("paramstream")
    else:
        descriptor, path = tempfile.mkstemp(prefix="paramstream-")
        os.unlink(path)
    try:
        os.ftruncate(descriptor, nbytes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _can_be_reserved() -> bool:
    """2 MiB pages that are given to those who ask (`fault_in` does) come with the mapping only: then they are worth more."""
    return hasattr(os, "posix_fallocate") and not _huge_pages_are_advised()


@cache
def _huge_pages_are_advised() -> bool:
    try:
        return "[advise]" in _HUGE_PAGES.read_text()
    except OSError:
        return False


def _reserve(descriptor: int, nbytes: int) -> None:
    """Gives every page of the file its memory, not zeroed and not mapped, so that lack of it is an error here."""
    for start in range(0, nbytes, _PREFAULT_STEP_BYTES):
        os.posix_fallocate(descriptor, start, min(_PREFAULT_STEP_BYTES, nbytes - start))


def _prefault(mapping: mmap.mmap, descriptor: int) -> None:
    """Gives every page of `mapping` its memory, so that no write meets a fault, or a bus error where memory has run out."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # 2 MiB pages where the system allows them for shared memory (shmem_enabled=advise): fewer TLB misses and 512 times fewer
        # faults. It must be said before the pages come. A kernel without them refuses, which changes nothing.
        with contextlib.suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE)
    try:
        for start in range(0, len(mapping), _PREFAULT_STEP_BYTES):
            mapping.madvise(_POPULATE_WRITE, start, min(_PREFAULT_STEP_BYTES, len(mapping) - start))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # An older kernel, or another system: reserve the blocks, so that lack of memory is an error here, then touch each page.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, len(mapping))
        for start in range(0, len(mapping), mmap.PAGESIZE):
            mapping[start] = 0
