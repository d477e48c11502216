"""Anonymous shared memory: one file without a name, mapped once for writing and kept mapped.

Why a file: every reader maps the same pages, read-only or copy-on-write, without a copy. Why kept: the kernel zeroes each page of a
fresh file on first touch, which costs ten to twenty times the copy of the weights themselves.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
import weakref
from typing import Final

_POPULATE_WRITE: Final = 23
"""MADV_POPULATE_WRITE (Linux 5.14), which the `mmap` module of Python 3.11 has no name for: faults all pages in as writable."""

_PREFAULT_STEP_BYTES: Final = 8 << 20
"""Pages are faulted in by steps, since `madvise` holds the GIL: 8 MiB take about 8 ms, so that heartbeats go on meanwhile."""


def round_up(nbytes: int, unit: int = mmap.PAGESIZE) -> int:
    """`nbytes` rounded up to whole units (pages), at least one."""
    return max(1, -(-nbytes // unit)) * unit


class Segment:
    """`capacity` bytes of anonymous shared memory, all pages present. Holds two descriptors (Python's `mmap` keeps its own)."""

    def __init__(self, capacity: int) -> None:
        """Makes the memory and faults it in (about 1 ms a MiB). `capacity` is in bytes, a whole number of pages.

        Raises `OSError` if the system lacks memory or descriptors; nothing is left behind then.
        """
        self.capacity: Final = capacity
        self._descriptor: Final = _open_anonymous(capacity)
        # A segment that is dropped without `close`, with the store that held it, leaves no descriptor either.
        self._close_descriptor = weakref.finalize(self, os.close, self._descriptor)
        try:
            self._kept: mmap.mmap | None = _map_kept(self._descriptor, capacity)
        except BaseException:
            self._close_descriptor()
            raise

    @property
    def kept(self) -> mmap.mmap:
        """The one writable mapping. It lives as long as the segment, and longer while anybody views it."""
        assert self._kept is not None, "the segment is closed"
        return self._kept

    def map_shared(self, nbytes: int) -> mmap.mmap:
        """A new read-only mapping of the first `nbytes` (≥ 1): it shows what is written, and no view of it can be writable."""
        return mmap.mmap(self._descriptor, nbytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)

    def map_private(self, nbytes: int) -> mmap.mmap:
        """A new copy-on-write mapping of the first `nbytes` (≥ 1): writable, and what is written to it is seen by nobody else."""
        return mmap.mmap(self._descriptor, nbytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)

    def close(self) -> None:
        """Closes the descriptor and the kept mapping. Mappings and views handed out stay valid until they are dropped."""
        self._close_descriptor()
        # Somebody still views the kept mapping where this is refused; it then goes with the last view.
        with contextlib.suppress(BufferError):
            self.kept.close()
        self._kept = None


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


def _map_kept(descriptor: int, nbytes: int) -> mmap.mmap:
    mapping = mmap.mmap(descriptor, nbytes)
    try:
        _prefault(mapping, descriptor)
    except BaseException:
        mapping.close()
        raise
    return mapping


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
