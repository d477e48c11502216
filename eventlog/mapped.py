"""A file of a log that is read through the system's page cache, without a copy."""

from __future__ import annotations

import mmap
from pathlib import Path

from .ahead import ReadAhead
from .chain import read_at
from .files import Disk

_FIRST_AHEAD_NBYTES = 512 * 1024
_AHEAD_NBYTES = 32 * 1024 * 1024
"""The disk is asked for so much beforehand by whoever goes on reading: it reads on while what came before is worked on. At first,
and where little is read, for none; then for twice as much each time.
"""


class MappedFile:
    """Views of an open file's pages. What is viewed needs no memory of its own: the system may drop it, and read it again.

    The mapping lives until `let_go`, and longer while anybody has a view of it; it holds a descriptor beside `handle`. The file must
    not become shorter than what was viewed meanwhile: who meets that gets a SIGBUS. A log's owner never cuts what is durable.
    Not for several threads.
    """

    def __init__(
        self, disk: Disk, handle: int, path: Path, *, ahead: ReadAhead | None = None, is_glanced_at: bool = False
    ) -> None:
        """`ahead` brings in what will be viewed. `is_glanced_at`: little of it is viewed, here and there, and the disk is asked for no
        more than that.
        """
        self._ahead = ahead
        self._is_glanced_at = is_glanced_at
        self._disk = disk
        self._handle = handle
        self._path = path
        self._mapping: mmap.mmap | None = None
        self._ahead_nbytes = 0
        self._asked_to = 0
        """Up to where the disk was asked."""
        self.next: MappedFile | None = None
        """What will be read behind this one, as far as anybody knows."""

    def read(self, nbytes: int, offset: int) -> bytes:
        """A copy, as `read_at`."""
        return read_at(self._disk, self._handle, self._path, nbytes, offset)

    def glanced_at(self) -> MappedFile:
        """The same file, of which little is viewed."""
        return MappedFile(self._disk, self._handle, self._path, is_glanced_at=True)

    def view(self, nbytes: int, offset: int, wanted: int | None = None) -> memoryview:
        """The bytes there, fewer only at the file's end, fetched from the disk. Raises `CorruptLog` where that fails.

        Where only so many of them are `wanted`, the others may not be touched.
        """
        try:
            mapping = self._mapped()
            end = min(offset + nbytes, len(mapping))
            if not self._is_glanced_at:
                self._ask(offset, len(mapping))
            self._disk.fetch(mapping, offset, end if wanted is None else min(offset + wanted, end))
        except OSError:
            # A file that cannot be mapped, an older kernel, or a disk that fails, which the read names.
            return memoryview(self.read(nbytes, offset))
        return memoryview(mapping)[offset:end]

    def let_go(self) -> None:
        self._mapping = self.next = None
        self._ahead_nbytes = self._asked_to = 0

    def _mapped(self) -> mmap.mmap:
        if self._mapping is None:
            self._mapping = self._disk.map(self._handle, is_glanced_at=self._is_glanced_at)
        return self._mapping

    def _ask(self, offset: int, end: int) -> None:
        """Keep the disk busy with what comes behind `offset`."""
        begin, wanted = max(offset, self._asked_to), min(offset + self._ahead_nbytes, end)
        if wanted > begin and (wanted == end or wanted - begin >= self._ahead_nbytes // 4):
            self._bring(wanted - begin, begin)
            self._asked_to = wanted
            if wanted == end and self.next is not None and not self.next._asked_to:
                self.next._ask_on(self._ahead_nbytes)
        self._ahead_nbytes = min(max(2 * self._ahead_nbytes, _FIRST_AHEAD_NBYTES), _AHEAD_NBYTES)

    def _ask_on(self, nbytes: int) -> None:
        """Reading will go on here."""
        self._bring(nbytes, 0)
        self._ahead_nbytes = self._asked_to = nbytes

    def _bring(self, nbytes: int, offset: int) -> None:
        if self._ahead is not None:
            self._ahead.ask(self._mapped(), offset, nbytes)
