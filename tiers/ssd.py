"""The folder of an SSD tier: who has it, what it may hold, and the files in it.

    folder = SsdFolder(Path("/mnt/nvme/tier"), 100 << 30)
    file = folder.create("rows")           # /mnt/nvme/tier/paramstream-rows-00000001.tier
    file.reserve(1 << 20)                  # takes the disk's blocks and the budget's bytes, or raises StorageFull
    file.write(b"...", 0)
    file.read_into(memoryview(bytearray(3)), 0)
    folder.close()

Tier files are no truth over restarts: whatever the process before left is removed when the folder is taken. Names are made of a
kind and a number, never of what a user named; everything is opened relative to the folder itself and follows no link, so that nothing
is read, written or removed outside of it.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import socket
import threading
import weakref
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..errors import BindFailed, InvalidEvent, StorageFull
from .budget import Budget
from .reads import Ints, read_into, read_places
from .sizes import parse_size

LOCK_FILE: Final = "paramstream-tier.lock"

_FILE = re.compile(r"paramstream-[a-z]{1,16}-[0-9]{8,}\.tier")

_LOCK_ATTEMPTS: Final = 16
"""How often the lock's file may vanish under us, since its holder is just closing, before that is an error."""

_HOLDER_BYTES: Final = 512

Buffer = bytes | bytearray | memoryview


def parse_ssd(ssd: str) -> tuple[Path, int]:
    """Folder and bytes meant by `DIR:SIZE`; DIR may hold colons. Raises `InvalidEvent` for anything else."""
    directory, colon, size = ssd.rpartition(":")
    if not colon or not directory:
        raise InvalidEvent(
            f"not a folder and a size: {ssd!r}", remedy='Write "DIR:SIZE", as in "/mnt/nvme/tier:100GiB"'
        )
    if "\0" in directory:
        raise InvalidEvent(f"no folder can have that name: {directory!r}")
    limit = parse_size(size)
    if limit == 0:
        raise InvalidEvent(f"an ssd tier of no bytes: {ssd!r}", remedy="Leave ssd= out, or give it a size")
    return Path(directory), limit


class _Taken:
    """What of a folder has to be given back, also by whoever forgets to: no descriptor and no file outlives the store or the process."""

    def __init__(self, folder: int) -> None:
        self.folder: Final = folder
        self.lock_file: int | None = None
        self.files: dict[str, int] = {}
        """Name → descriptor of the files that are not closed."""
        self._process = os.getpid()

    def end(self, names: Iterable[str]) -> None:
        """Nobody uses these files any more."""
        for name in list(names):
            os.close(self.files.pop(name))
            self.remove(name)

    def remove(self, name: str) -> None:
        """In a fork of the process only the descriptors are its own; the files are its parent's."""
        if os.getpid() == self._process:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self.folder)

    def give_back(self) -> None:
        """Once."""
        self.end(self.files)
        if self.lock_file is not None:
            # The name goes while the lock is held: whoever waits for it makes a new one.
            self.remove(LOCK_FILE)
            os.close(self.lock_file)
        os.close(self.folder)


class SsdFolder:
    """One folder that this process has to itself, and the budget of what lies in it. Thread-safe."""

    def __init__(self, path: Path, limit: int) -> None:
        """Makes the folder if need be, takes it, and removes the tier files that an earlier process left.

        Raises `BindFailed` where another store has it (naming the holder) or it cannot be made or written.
        """
        self.path: Final = path.absolute()
        self.budget: Final = Budget(limit, "ssd", str(self.path))
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        """Notified when the last file of a folder that is closed has gone."""
        self._closed = False
        self._files: weakref.WeakSet[TierFile] = weakref.WeakSet()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._taken = _Taken(os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except OSError as error:
            raise self._cannot_be_taken(error) from error
        # Also runs at the end of the process, and where the folder is dropped without `close`.
        self._give_back = weakref.finalize(self, self._taken.give_back)
        try:
            self._taken.lock_file = self._lock_folder()
            self._remove_leftovers()
        except OSError as error:
            self._give_back()
            raise self._cannot_be_taken(error) from error
        except BindFailed:
            self._give_back()
            raise

    def create(self, kind: str) -> TierFile:
        """A new, empty file. `kind`: lower-case letters, for whoever looks into the folder.

        Raises `StorageFull` where the system refuses (no inode, no descriptor, a folder that has gone), `ValueError` after `close`.
        """
        name = f"paramstream-{kind}-{next(self._numbers):08d}.tier"
        assert _FILE.fullmatch(name), f"not a name of a tier file: {name!r}"
        with self._lock:
            if self._closed:
                raise ValueError("the store of this folder is closed")
            try:
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                handle = os.open(name, flags, 0o600, dir_fd=self._taken.folder)
            except OSError as error:
                raise self.budget.full(0, because=f"no file can be made there: {error.strerror}") from error
            self._taken.files[name] = handle
            file = TierFile(self, name, handle)
            self._files.add(file)
            return file

    def close(self, timeout: float = 30.0) -> None:
        """Closes and removes all files and lets go of the folder, which itself stays. A second call does nothing.

        Reads and writes that are under way end first: a descriptor that is closed under one may be another file's by then. Waits for
        them up to `timeout` s; what takes longer lets go of the folder when it ends.
        """
        with self._lock:
            self._closed = True
            files = list(self._files)
        for file in files:
            file.close()
        with self._lock:
            # Those that nobody has any more.
            self._taken.end(self._taken.files.keys() - {file.path.name for file in files})
            self._let_go()
            self._ended.wait_for(lambda: not self._give_back.alive, timeout)

    # What files call.

    def forget(self, name: str) -> None:
        """Nobody uses the file any more."""
        with self._lock:
            self._taken.end([name] if name in self._taken.files else [])
            self._let_go()

    # Inside.

    def _let_go(self) -> None:
        """Under the lock."""
        if self._closed and not self._taken.files:
            self._give_back()
            self._ended.notify_all()

    def _lock_folder(self) -> int:
        """The handle of the lock's file, locked."""
        for _ in range(_LOCK_ATTEMPTS):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            handle = os.open(LOCK_FILE, flags, 0o600, dir_fd=self._taken.folder)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_current(handle):
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
                    return handle
            except BlockingIOError as error:
                holder = os.pread(handle, _HOLDER_BYTES, 0).decode(errors="replace")
                os.close(handle)
                raise self._is_held(holder) from error
            except OSError:
                os.close(handle)
                raise
            os.close(handle)
        raise self._is_held("")

    def _is_current(self, handle: int) -> bool:
        """Whether the folder still has that file: its last holder removes it, and a lock on what was removed keeps nobody out."""
        try:
            found = os.stat(LOCK_FILE, dir_fd=self._taken.folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(handle))

    def _remove_leftovers(self) -> None:
        with os.scandir(self._taken.folder) as found:
            names = [each.name for each in found if _FILE.fullmatch(each.name) and each.is_file(follow_symlinks=False)]
        for name in names:
            self._taken.remove(name)

    def _is_held(self, holder: str) -> BindFailed:
        return BindFailed(
            f"the folder of an ssd tier is in use: {self.path} is held by {holder or 'another store'}",
            remedy="Give each store a folder of its own, or close the other one first",
        )

    def _cannot_be_taken(self, error: OSError) -> BindFailed:
        return BindFailed(f"the folder of an ssd tier cannot be used: {self.path}: {error.strerror}")


class TierFile:
    """One file of the folder, whose blocks are there before they are written. Removed by `close`, or with the folder.

    `write`, `read_into` and `using` may be called from any thread; `reserve` by one owner.
    """

    def __init__(self, folder: SsdFolder, name: str, handle: int) -> None:
        self.path: Final = folder.path / name
        """For errors and whoever looks."""
        self._folder = folder
        self._name = name
        self._handle = handle
        self._nbytes = 0
        self._lock = threading.Lock()
        self._users = 0
        """Calls that have the descriptor: with the last of them a closed file goes. Its number may then be another file's."""
        self._closed = False

    @property
    def nbytes(self) -> int:
        """Its length, all of it reserved on the disk and charged to the folder's budget."""
        return self._nbytes

    @contextmanager
    def using(self) -> Generator[int]:
        """The descriptor, for reads and writes within `nbytes`, until the block ends. Raises `ValueError` after `close`."""
        with self._lock:
            if self._closed:
                raise ValueError(f"the tier file {self.path} is closed")
            self._users += 1
        try:
            yield self._handle
        finally:
            with self._lock:
                self._users -= 1
                is_last = self._closed and self._users == 0
            if is_last:
                self._go()

    def reserve(self, nbytes: int) -> None:
        """Makes the file `nbytes` long, longer or shorter than it was; what is cut off goes back to disk and budget.

        Raises `StorageFull`, naming the path and the bytes, with nothing changed, where the budget or the disk lacks room.
        """
        growth = nbytes - self._nbytes
        with self.using() as handle:
            if growth > 0:
                self._grow(handle, growth)
            elif growth < 0:
                os.ftruncate(handle, nbytes)
                self._folder.budget.refund(-growth)
            self._nbytes = nbytes

    def write(self, data: Buffer, offset: int) -> None:
        """All of `data`, into bytes that are reserved. Raises `StorageFull` where the system refuses."""
        left = memoryview(data).cast("B")
        assert offset + len(left) <= self._nbytes, "a write beyond what is reserved"
        with self.using() as handle:
            try:
                while left:
                    written = os.pwrite(handle, left, offset)
                    left, offset = left[written:], offset + written
            except OSError as error:
                raise self.refused(len(left), error) from error

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fills all of `buffer` (writable, unsigned bytes). Raises `OSError` where the disk does not give them."""
        with self.using() as handle:
            read_into(handle, buffer, offset)

    def read_places(self, buffer: NDArray[np.uint8], begins: Ints, nbytes: Ints, offsets: Ints) -> None:
        """Fills pieces of a flat buffer, as `reads.read_places`. Raises `OSError` as `read_into`."""
        with self.using() as handle:
            read_places(handle, buffer, begins, nbytes, offsets)

    def refused(self, nbytes: int, error: OSError) -> StorageFull:
        """The error for `nbytes` that the system did not take."""
        return self._folder.budget.full(nbytes, because=f"the system refused them: {error.strerror}")

    def close(self) -> None:
        """Ends its use: it is removed, and its bytes are given back, as soon as no call is under way. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            is_last = self._users == 0
        if is_last:
            self._go()

    def _grow(self, handle: int, growth: int) -> None:
        self._folder.budget.charge(growth)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(handle, self._nbytes, growth)
            else:
                os.ftruncate(handle, self._nbytes + growth)
        except OSError as error:
            # Some file systems keep what they had found by then.
            os.ftruncate(handle, self._nbytes)
            self._folder.budget.refund(growth)
            raise self.refused(growth, error) from error

    def _go(self) -> None:
        self._folder.forget(self._name)
        self._folder.budget.refund(self._nbytes)
        self._nbytes = 0
