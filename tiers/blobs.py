"""Blobs: values and whole sets of weights on SSD, each with its checksum, in files whose freed space is used again.

    blobs = Blobs(folder)
    blob = blobs.write(b"a value")         # raises StorageFull, with nothing changed
    blob.read()                            # raises CorruptTier where the bytes are not those that were written

Why pieces of a few large files rather than a file for each: a value of a kilobyte would cost an inode, a block of 4 KiB and three system
calls each way, and a million of them a million names. What is as large as such a file (a set of weights) has one for itself, so
that its bytes go back to the disk as soon as it is gone. Where a blob lies is known in memory alone: files are no truth over restarts.

A blob lives as long as somebody refers to it: a reader, a before-image or a snapshot that still holds one can read it, whatever
became of its entry. Its bytes are used again once nobody does. That is noticed in `__del__`, on any thread and perhaps inside garbage
collection, which therefore only appends to a deque; each later call settles what stands in it.
"""

from __future__ import annotations

import mmap
import threading
from collections import deque
from typing import Final, final

import xxhash

from ..errors import CorruptTier, ParamstreamError, StorageFull
from .extents import Extents
from .ssd import Buffer, SsdFolder, TierFile

BLOB_OVERHEAD_BYTES: Final = 352
"""Of DRAM that a blob takes: the object and its numbers (measured: 160), and the hole that there may be beside it (190)."""

_PART_OF_LIMIT: Final = 64
"""A file holds at most this part of the tier: that bounds the descriptors, and lets small tiers give files back."""

_LEAST_CAPACITY: Final = 4 << 20

_LARGEST_STEP: Final = 4 << 20
"""Files grow by steps, each a system call that reserves the disk's blocks; small tiers take smaller ones."""

_PIECE_BYTES: Final = 8 << 20
"""Large blobs are written and read piece by piece."""


@final
class Blob:
    """Immutable bytes on SSD. Thread-safe; two are equal only if they are the same."""

    __slots__ = ("_checksum", "_segment", "nbytes", "offset")

    def __init__(self, segment: _Segment, offset: int, nbytes: int, checksum: int) -> None:
        self._segment = segment
        self.offset: Final = offset
        self.nbytes: Final = nbytes
        self._checksum: Final = checksum

    @property
    def place(self) -> str:
        """For errors: its file and the bytes there, the last one not included."""
        return f"{self._segment.file.path}, bytes {self.offset} to {self.offset + self.nbytes}"

    def read(self) -> bytes:
        """All of it. Raises `CorruptTier`, naming the place, where the disk does not give the bytes that were written."""
        data = bytearray(self.nbytes)
        self.read_into(memoryview(data))
        return bytes(data)

    def read_into(self, buffer: memoryview) -> None:
        """Fills `buffer`, unsigned bytes of length `nbytes`. Raises as `read` does; what is in the buffer then means nothing."""
        assert len(buffer) == self.nbytes
        digest = xxhash.xxh3_64()
        try:
            for at in range(0, self.nbytes, _PIECE_BYTES):
                piece = buffer[at : at + _PIECE_BYTES]
                self._segment.file.read_into(piece, self.offset + at)
                digest.update(piece)
        except OSError as error:
            raise CorruptTier(
                f"the ssd tier does not give back what it took: {self.place}: {error.strerror}"
            ) from error
        except ValueError as error:
            raise ParamstreamError(
                f"the store was closed while something was read from its ssd tier: {self.place}"
            ) from error
        if digest.intdigest() != self._checksum:
            raise CorruptTier(
                f"the ssd tier does not give back what it took: {self.place}: the checksum is another one"
            )

    def __del__(self) -> None:
        self._segment.dropped.append((self._segment, self.offset, self.nbytes))


class _Segment:
    """One file, and which of its bytes are in use. All but `file` is guarded by the lock of its `Blobs`."""

    def __init__(self, file: TierFile, capacity: int, dropped: deque[tuple[_Segment, int, int]]) -> None:
        self.file = file
        self.extents = Extents(capacity)
        self.dropped = dropped

    def take(self, nbytes: int, step: int) -> int | None:
        """The offset of a new piece, reserved on the disk; None where the file has no room. Raises `StorageFull`."""
        offset = self.extents.find(nbytes)
        if offset is None:
            return None
        if offset + nbytes > self.file.nbytes:
            end = offset + nbytes
            try:
                self.file.reserve(_round_up(end, step))
            except StorageFull:
                self.file.reserve(_round_up(end, mmap.PAGESIZE))
        self.extents.take(offset, nbytes)
        return offset

    def give(self, offset: int, nbytes: int, step: int) -> None:
        self.extents.give(offset, nbytes)
        spare = self.file.nbytes - _round_up(self.extents.end, step)
        if spare > step:
            self.file.reserve(_round_up(self.extents.end, step))


class Blobs:
    """All blobs of a folder. Thread-safe; bytes are written and read with no lock held."""

    def __init__(self, folder: SsdFolder) -> None:
        self._folder = folder
        limit = folder.budget.limit
        self._capacity = max(limit // _PART_OF_LIMIT, _LEAST_CAPACITY)
        self._step = _round_up(min(limit // _PART_OF_LIMIT, _LARGEST_STEP), mmap.PAGESIZE)
        self._lock = threading.Lock()
        self._segments: list[_Segment] = []
        self._dropped = deque[tuple[_Segment, int, int]]()
        self._closed = False

    def write(self, data: Buffer) -> Blob:
        """A blob of `data`, which is not looked at after that. Blocks for the disk.

        Raises `StorageFull`, naming tier, path and bytes, with nothing changed, where budget or disk take no more.
        """
        left = memoryview(data).cast("B")
        segment, offset = self._take(len(left))
        digest = xxhash.xxh3_64()
        try:
            for at in range(0, len(left), _PIECE_BYTES):
                piece = left[at : at + _PIECE_BYTES]
                digest.update(piece)
                segment.file.write(piece, offset + at)
        except BaseException:
            self._dropped.append((segment, offset, len(left)))
            raise
        return Blob(segment, offset, len(left), digest.intdigest())

    @property
    def used_bytes(self) -> int:
        """Of all blobs that somebody refers to, rounded up to 64 each."""
        with self._lock:
            self._settle()
            return sum(segment.extents.used for segment in self._segments)

    def settle(self) -> None:
        """Gives back to the disk what blobs that nobody refers to any more had."""
        if self._dropped:
            with self._lock:
                self._settle()

    def close(self) -> None:
        """The folder is about to be closed. Blobs that somebody still has cannot be read after that."""
        with self._lock:
            self._closed = True
            self._segments.clear()

    def _take(self, nbytes: int) -> tuple[_Segment, int]:
        size = max(1, nbytes)
        is_small = size <= self._capacity // 2
        with self._lock:
            if self._closed:
                raise ValueError("the store of these blobs is closed")
            self._settle()
            full: StorageFull | None = None
            for segment in self._segments if is_small else ():
                try:
                    offset = segment.take(size, self._step)
                except StorageFull as error:
                    # It cannot grow; another one may have a hole.
                    full = error
                    continue
                if offset is not None:
                    return segment, offset
            if full is not None:
                raise full
            return self._take_new(size, self._capacity if is_small else _round_up(size, mmap.PAGESIZE))

    def _take_new(self, nbytes: int, capacity: int) -> tuple[_Segment, int]:
        segment = _Segment(self._folder.create("blobs"), capacity, self._dropped)
        try:
            offset = segment.take(nbytes, self._step)
        except BaseException:
            segment.file.close()
            raise
        assert offset is not None
        self._segments.append(segment)
        return segment, offset

    def _settle(self) -> None:
        while self._dropped and not self._closed:
            segment, offset, nbytes = self._dropped.popleft()
            segment.give(offset, max(1, nbytes), self._step)
            if segment.extents.used == 0:
                self._segments.remove(segment)
                segment.file.close()


def _round_up(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit
