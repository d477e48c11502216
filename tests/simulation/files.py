"""The files of a machine that may lose power, in memory: what the system shows, and beside it what the disk has.

Bytes that were written and not synced are lost at a power failure block by block: a later one may be there and an earlier one not, and
the file ends anywhere between its old and its new length. A failed sync stores some blocks and forgets the others: they are shown
on, until memory is short, and no later sync stores them. Names are safe once their folder was synced; of those that changed since
then a power failure leaves a part.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from paramstream.eventlog.files import Disk

BLOCK = 512


class Killed(Exception):
    """The process was killed amidst an operation: nothing of it goes on."""


@dataclass(eq=False)
class Node:
    """A file, whatever its name is."""

    shown: bytearray = field(default_factory=bytearray)
    stored: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set[int])
    """Blocks that the next sync stores."""

    def write(self, data: memoryview | bytes, offset: int) -> None:
        end = offset + len(data)
        if len(self.shown) < offset:
            self.resize(offset)
        self.shown[offset:end] = data
        self.dirty.update(range(offset // BLOCK, -(-end // BLOCK)))

    def resize(self, nbytes: int) -> None:
        before = min(len(self.shown), nbytes)
        del self.shown[nbytes:]
        self.shown.extend(bytes(nbytes - len(self.shown)))
        self.dirty = {block for block in self.dirty if block * BLOCK < nbytes}
        self.dirty.update(range(before // BLOCK, -(-nbytes // BLOCK)))

    def sync(self) -> None:
        self._store(self.dirty)
        self.dirty.clear()

    def fail_sync(self, chance: random.Random) -> None:
        """Some blocks are stored; nobody will ever store the others, unless they are written again."""
        kept = chance.choice((0.0, 0.5, 1.0))
        self._store({block for block in self.dirty if chance.random() < kept}, chance.random() < 0.5)
        self.dirty.clear()

    def evict(self) -> None:
        """Memory was short: what no sync would store is read from the disk again."""
        for block in range(-(-len(self.shown) // BLOCK)):
            if block not in self.dirty:
                at, end = block * BLOCK, min(block * BLOCK + BLOCK, len(self.shown))
                self.shown[at:end] = bytes(self.stored[at:end]).ljust(end - at, b"\0")

    def fail_power(self, chance: random.Random) -> None:
        kept, old, new = chance.choice((0.0, 0.5, 1.0)), len(self.stored), len(self.shown)
        length = chance.choice((old, new, chance.randint(min(old, new), max(old, new))))
        self._store({block for block in self.dirty if chance.random() < kept})
        del self.stored[length:]
        self.stored.extend(bytes(length - len(self.stored)))
        self.shown = bytearray(self.stored)
        self.dirty.clear()

    def _store(self, blocks: set[int], new_length: bool = True) -> None:
        length = len(self.shown) if new_length else len(self.stored)
        if len(self.stored) < length:
            self.stored.extend(bytes(length - len(self.stored)))
        for block in blocks:
            at = block * BLOCK
            piece = self.shown[at : at + BLOCK][: max(0, length - at)]
            self.stored[at : at + len(piece)] = piece
        if new_length:
            del self.stored[length:]


@dataclass
class Faults:
    """How often operations fail: chances of each call."""

    write: float = 0.0
    sync: float = 0.0
    create: float = 0.0
    truncate: float = 0.0
    sync_folder: float = 0.0
    full: float = 0.0
    """That the disk is full from here on, for a few calls that need room."""

    @classmethod
    def of_some_world(cls, chance: random.Random) -> Faults:
        """Most disks are sound; of the others each has troubles of its own."""
        if chance.random() < 0.5:
            return cls()
        often = chance.choice((0.003, 0.01, 0.03))
        return cls(*(often * chance.choice((0.0, 1.0, 1.0, 3.0)) for _ in range(6)))


Change = Callable[[dict[str, Node | None]], None]


class SimFiles(Disk):
    """A `Disk` without a system call. Folders are nodes of None. Deterministic by its `chance`."""

    def __init__(self, chance: random.Random, faults: Faults | None = None) -> None:
        self._chance = chance
        self.faults = Faults() if faults is None else faults
        self.calm = False
        """No more faults."""
        self.failed: set[str] = set()
        """Names of the folders in which something has failed in this process's life."""
        self._full_for = 0
        self._kill_in = 0
        self._dead = False
        self._handles: dict[int, tuple[Path, Node]] = {}
        self._numbers = count(3)
        self._locked: dict[str, int] = {}
        self._now: dict[str, Node | None] = {}
        self._safe: dict[str, Node | None] = {}
        self._changes: list[tuple[str, Change]] = []
        """(folder, change of its names) that no sync covers, in order."""

    # --- what ends a process ----------------------------------------------------------------------------------------------

    def kill_in(self, operations: int) -> None:
        """The process is killed amidst one of its next operations."""
        self._kill_in = operations

    def kill(self) -> None:
        """The process is gone: its files are closed, its locks are free, and what it wrote is shown on."""
        self._handles.clear()
        self._locked.clear()
        self.failed.clear()
        self._kill_in, self._dead = 0, False
        if self._chance.random() < 0.3:
            for node in self._nodes():
                node.evict()

    def fail_power(self) -> None:
        self.kill()
        all_or_some = self._chance.random() < 0.5
        names = dict(self._safe)
        stopped = set[str]()
        for folder, change in self._changes:
            # A journal keeps the changes of a folder in order; without one any of them may be there.
            if folder in stopped or self._chance.random() < 0.5:
                if all_or_some:
                    stopped.add(folder)
                continue
            change(names)
        self._changes.clear()
        for node in {id(node): node for node in (*self._nodes(), *names.values()) if node is not None}.values():
            node.fail_power(self._chance)
        self._now = {name: node for name, node in names.items() if _parent(name) in names or name == "/"}
        self._safe = dict(self._now)
        self._full_for = 0

    def _nodes(self) -> list[Node]:
        return [node for node in self._now.values() if node is not None]

    # --- what fails -----------------------------------------------------------------------------------------------------------

    def _begin(self) -> bool:
        """True where the process is killed amidst the operation that begins here."""
        if self._dead:
            raise Killed
        if self._kill_in:
            self._kill_in -= 1
            self._dead = not self._kill_in
        return self._dead

    def _fails(self, path: Path, chance: float, *, grows: bool = False) -> OSError | None:
        if self.calm:
            self._full_for = 0
            return None
        if grows and not self._full_for and self._chance.random() < self.faults.full:
            self._full_for = self._chance.choice((1, 2, 5, 30))
        code = 0
        if grows and self._full_for:
            self._full_for -= 1
            code = errno.ENOSPC
        elif chance and self._chance.random() < chance:
            code = errno.EIO
        if not code:
            return None
        self.failed.add(path.parent.name)
        return OSError(code, os.strerror(code), str(path))

    def _check(self, path: Path, chance: float, *, grows: bool = False) -> None:
        if self._begin():
            raise Killed
        failure = self._fails(path, chance, grows=grows)
        if failure is not None:
            raise failure

    # --- files ------------------------------------------------------------------------------------------------------------------

    def create(self, path: Path) -> int:
        self._check(path, self.faults.create, grows=True)
        if str(path) in self._now:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        return self._create(path)

    def _create(self, path: Path) -> int:
        if str(path.parent) not in self._now:
            raise _not_found(path)
        node, name = Node(), str(path)
        self._change(path.parent, lambda names: names.update({name: node}))
        return self._handle(path, node)

    def open(self, path: Path, *, write: bool = False) -> int:
        if self._begin():
            raise Killed
        node = self._now.get(str(path))
        if node is None:
            raise _not_found(path)
        return self._handle(path, node)

    def open_or_create(self, path: Path) -> int:
        if str(path) in self._now:
            return self.open(path)
        self._check(path, self.faults.create, grows=True)
        return self._create(path)

    def _handle(self, path: Path, node: Node) -> int:
        handle = next(self._numbers)
        self._handles[handle] = path, node
        return handle

    def close(self, handle: int) -> None:
        path, _ = self._handles.pop(handle)
        if self._locked.get(str(path)) == handle:
            del self._locked[str(path)]

    def lock(self, handle: int, *, exclusive: bool) -> None:
        path, _ = self._handles[handle]
        if self._locked.setdefault(str(path), handle) != handle:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), str(path))

    def write(self, handle: int, data: memoryview, offset: int) -> None:
        path, node = self._handles[handle]
        if self._begin():
            node.write(data[: self._chance.randint(0, len(data))], offset)
            raise Killed
        failure = self._fails(path, self.faults.write, grows=offset + len(data) > len(node.shown))
        if failure is None:
            node.write(data, offset)
            return
        node.write(data[: self._chance.choice((0, self._chance.randrange(len(data))))], offset)
        raise failure

    def read(self, handle: int, nbytes: int, offset: int) -> bytes:
        if self._dead:
            raise Killed
        _, node = self._handles[handle]
        return bytes(node.shown[offset : offset + nbytes])

    def sync(self, handle: int) -> None:
        path, node = self._handles[handle]
        if self._begin():
            if self._chance.random() < 0.5:
                node.sync()
            raise Killed
        failure = self._fails(path, self.faults.sync)
        if failure is not None:
            node.fail_sync(self._chance)
            raise failure
        node.sync()

    def truncate(self, handle: int, nbytes: int) -> None:
        path, node = self._handles[handle]
        self._check(path, self.faults.truncate)
        node.resize(nbytes)

    def size(self, path: Path) -> int:
        node = self._now.get(str(path))
        if node is None:
            raise _not_found(path)
        return len(node.shown)

    def size_of(self, handle: int) -> int:
        return len(self._handles[handle][1].shown)

    # --- names ------------------------------------------------------------------------------------------------------------------

    def sync_folder(self, path: Path) -> None:
        self._check(path / ".", self.faults.sync_folder)
        folder = str(path)
        for of, change in self._changes:
            if of == folder:
                change(self._safe)
        self._changes = [(of, change) for of, change in self._changes if of != folder]

    def names(self, folder: Path) -> list[str]:
        if self._dead:
            raise Killed
        return sorted(name.rpartition("/")[2] for name in self._now if _parent(name) == str(folder))

    def is_folder(self, path: Path) -> bool:
        return self._now.get(str(path), self) is None

    def make_folder(self, path: Path) -> None:
        if self._begin():
            raise Killed
        for folder in (*reversed(path.parents), path):
            name = str(folder)
            if name not in self._now:
                self._change(folder.parent, lambda names, name=name: names.update({name: None}))

    def rename(self, old: Path, new: Path) -> None:
        if self._begin():
            raise Killed
        node, before, after = self._now[str(old)], str(old), str(new)
        assert node is not None, "no topic is dropped here"

        def change(names: dict[str, Node | None]) -> None:
            names.pop(before, None)
            names[after] = node

        self._change(old.parent, change)

    def unlink(self, path: Path) -> None:
        if self._begin():
            raise Killed
        if str(path) in self._now:
            self._change(path.parent, lambda names: names.pop(str(path), None) and None)

    def remove_folder(self, path: Path) -> None:
        raise AssertionError("no topic is dropped here")

    def _change(self, folder: Path, change: Change) -> None:
        change(self._now)
        self._changes.append((str(folder), change))


def _parent(name: str) -> str:
    return name.rpartition("/")[0] or "/"


def _not_found(path: Path) -> OSError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
