"""Brings pages of mapped files in before they are read, in a thread of its own: the disk, and the system's work on pages, beside ours."""

from __future__ import annotations

import mmap
import threading
from queue import SimpleQueue

from .files import Disk

_STEP_NBYTES = 2 * 1024 * 1024
"""Brought in at a time: so long a `close` takes, on a disk that answers."""

CLOSE_S = 10.0
"""How long a `close` waits for one that does not; the thread ends with what it waits for."""

_Asked = tuple[mmap.mmap, int, int]


class ReadAhead:
    """One thread, named paramstream-read-ahead, from the first `ask` until `close`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
        self._closing = False
        self._thread: threading.Thread | None = None

    def ask(self, mapping: mmap.mmap, offset: int, nbytes: int) -> None:
        """These bytes will be read soon. Does not wait; where they cannot be brought in, whoever reads them finds that out."""
        if self._closing:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="paramstream-read-ahead", daemon=True)
            self._thread.start()
        self._asked.put((mapping, offset, nbytes))

    def close(self) -> None:
        """End the thread, whatever was asked. A second call changes nothing."""
        self._closing = True
        thread, self._thread = self._thread, None
        if thread is not None:
            self._asked.put(None)
            thread.join(CLOSE_S)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            mapping, offset, nbytes = asked
            end = min(offset + nbytes, len(mapping))
            try:
                for at in range(offset, end, _STEP_NBYTES):
                    if self._closing:
                        return
                    self._disk.fetch(mapping, at, min(at + _STEP_NBYTES, end))
            except OSError:
                continue
            finally:
                # The last mapping asked for is nobody's to keep.
                del mapping, asked
