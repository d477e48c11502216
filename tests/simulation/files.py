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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from paramstream.eventlog.files import Disk

BLOCK = 512


class Killed(BaseException):
    """The process was killed amidst an operation. No error: nobody handles it."""


@dataclass(eq=False)
class Node:
    """A file, whatever its name is."""

    shown: bytearray = field(default_factory=bytearray)
    stored: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set[int])
    """Blocks that the next sync stores."""

    def write(self, data: memoryview | bytes, offset: int) -> None:
        end = offset + len(data)
        if not data:
            return
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
        self._store({block for block in sorted(self.dirty) if chance.random() < kept}, chance.random() < 0.5)
        self.dirty.clear()

    def evict(self) -> None:
        """Memory was short: what no sync would store is read from the disk again."""
        for block in range(-(-len(self.shown) // BLOCK)):
            if block not in self.dirty:
                at, end = block * BLOCK, min(block * BLOCK + BLOCK, len(self.shown))
                self.shown[at:end] = bytes(self.stored[at:end]).ljust(end - at, b"\0")

    def fail_power(self, chance: random.Random) -> None:
        """Of what was not synced any blocks are there, and the file ends anywhere between its two lengths."""
        before = bytes(self.stored)
        kept, old, new = chance.choice((0.0, 0.5, 1.0)), len(self.stored), len(self.shown)
        length = chance.choice((old, new, chance.randint(min(old, new), max(old, new))))
        self._store({block for block in sorted(self.dirty) if chance.random() < kept})
        del self.stored[length:]
        self.stored.extend(before[new:length].ljust(length - len(self.stored), b"\0"))
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
class Fault:
    """Something that fails soon, once or a few times."""

    operation: str
    """"write", "sync", "create", "truncate" or "sync folder"; "grow" is whatever needs room."""
    code: int
    after: int
    """How many such operations succeed first."""
    times: int
    chance: random.Random
    """What a failing operation has done all the same."""


Change = Callable[[dict[str, Node | None]], None]


class SimFiles(Disk):
    """A `Disk` without a system call. It fails where it is told to; folders are nodes of None."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.failed: set[str] = set()
        """Names of the folders in which something has failed in this process's life."""
        self._kill: tuple[int, random.Random] | None = None
        self._dead = False
        self._handles: dict[int, tuple[Path, Node]] = {}
        self._numbers = count(3)
        self._locked: dict[str, int] = {}
        self._now: dict[str, Node | None] = {"/": None}
        self._safe: dict[str, Node | None] = {"/": None}
        self._changes: list[tuple[str, Change]] = []
        """(folder, change of its names) that no sync covers, in order."""

    def mend(self) -> None:
        """Nothing fails any more that has not failed yet."""
        self.faults.clear()
        if not self._dead:
            self._kill = None

    # --- what ends a process ----------------------------------------------------------------------------------------------

    def kill_in(self, operations: int, chance: random.Random) -> None:
        """The process is killed amidst one of its next operations, which raises `Killed` then, as all that follow do."""
        self._kill = operations, chance

    def kill(self) -> None:
        """The process is gone: its files are closed, its locks are free, and what it wrote is shown on."""
        self._handles.clear()
        self._locked.clear()
        self.failed.clear()
        self._kill, self._dead = None, False

    def forget_pages(self) -> None:
        """Memory is short: what the system has no need to keep is read from the disk again."""
        for node in self._nodes(self._now):
            node.evict()

    def fail_power(self, chance: random.Random) -> None:
        self.kill()
        self.faults.clear()
        names, has_journal, ended = dict(self._safe), chance.random() < 0.5, set[str]()
        for folder, change in self._changes:
            # A journal keeps the changes of a folder in order; without one any of them may be there.
            if folder in ended or chance.random() < 0.5:
                if has_journal:
                    ended.add(folder)
            else:
                change(names)
        self._changes.clear()
        for node in self._nodes({**self._now, **names}):
            node.fail_power(chance)
        self._now = {"/": None}
        for name in sorted(names):
            if _parent(name) in self._now:
                self._now[name] = names[name]
        self._safe = dict(self._now)

    @staticmethod
    def _nodes(names: dict[str, Node | None]) -> list[Node]:
        return list({id(node): node for node in names.values() if node is not None}.values())

    # --- what fails -----------------------------------------------------------------------------------------------------------

    def _begin(self) -> random.Random | None:
        """Chance, where the process is killed amidst the operation that begins here."""
        if self._dead:
            raise Killed
        if self._kill is None:
            return None
        left, chance = self._kill
        self._kill = left - 1, chance
        self._dead = left <= 1
        return chance if self._dead else None

    def _fails(self, operations: Sequence[str], path: Path, folder: Path) -> tuple[OSError, random.Random] | None:
        for fault in self.faults:
            if fault.operation in operations:
                if fault.after:
                    fault.after -= 1
                    continue
                fault.times -= 1
                if not fault.times:
                    self.faults.remove(fault)
                self.failed.add(folder.name)
                return OSError(fault.code, os.strerror(fault.code), str(path)), fault.chance
        return None

    def _check(self, path: Path, folder: Path, *operations: str) -> None:
        if self._begin() is not None:
            raise Killed
        failure = self._fails(operations, path, folder)
        if failure is not None:
            raise failure[0]

    # --- files ------------------------------------------------------------------------------------------------------------------

    def create(self, path: Path) -> int:
        self._check(path, path.parent, "create", "grow")
        if str(path) in self._now:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        return self._create(path)

    def _create(self, path: Path) -> int:
        if str(path.parent) not in self._now:
            raise _not_found(path)
        node = Node()
        self._add(path, node)
        return self._handle(path, node)

    def open(self, path: Path, *, write: bool = False) -> int:
        self._check(path, path.parent)
        node = self._now.get(str(path))
        if node is None:
            raise _not_found(path)
        return self._handle(path, node)

    def open_or_create(self, path: Path) -> int:
        if str(path) in self._now:
            return self.open(path)
        self._check(path, path.parent, "create", "grow")
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
        killed = self._begin()
        if killed is not None:
            node.write(data[: killed.randint(0, len(data))], offset)
            raise Killed
        grows = offset + len(data) > len(node.shown)
        failure = self._fails(("write", "grow") if grows else ("write",), path, path.parent)
        if failure is None:
            node.write(data, offset)
            return
        error, chance = failure
        node.write(data[: chance.choice((0, chance.randrange(len(data))))], offset)
        raise error

    def read(self, handle: int, nbytes: int, offset: int) -> bytes:
        if self._dead:
            raise Killed
        _, node = self._handles[handle]
        return bytes(node.shown[offset : offset + nbytes])

    def sync(self, handle: int) -> None:
        path, node = self._handles[handle]
        killed = self._begin()
        if killed is not None:
            if killed.random() < 0.5:
                node.sync()
            raise Killed
        failure = self._fails(("sync",), path, path.parent)
        if failure is None:
            node.sync()
            return
        error, chance = failure
        node.fail_sync(chance)
        raise error

    def truncate(self, handle: int, nbytes: int) -> None:
        path, node = self._handles[handle]
        self._check(path, path.parent, "truncate")
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
        self._check(path, path, "sync folder")
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
        self._check(path, path.parent)
        for folder in (*reversed(path.parents), path):
            if str(folder) not in self._now:
                self._add(folder, None)

    def rename(self, old: Path, new: Path) -> None:
        self._check(old, old.parent)
        node, before, after = self._now[str(old)], str(old), str(new)
        assert node is not None, "no topic is dropped here"

        def change(names: dict[str, Node | None]) -> None:
            names.pop(before, None)
            names[after] = node

        self._change(old.parent, change)

    def unlink(self, path: Path) -> None:
        self._check(path, path.parent)
        name = str(path)

        def change(names: dict[str, Node | None]) -> None:
            names.pop(name, None)

        if name in self._now:
            self._change(path.parent, change)

    def remove_folder(self, path: Path) -> None:
        raise AssertionError("no topic is dropped here")

    def _add(self, path: Path, node: Node | None) -> None:
        name = str(path)

        def change(names: dict[str, Node | None]) -> None:
            names[name] = node

        self._change(path.parent, change)

    def _change(self, folder: Path, change: Change) -> None:
        change(self._now)
        self._changes.append((str(folder), change))


def _parent(name: str) -> str:
    return name.rpartition("/")[0] or "/"


def _not_found(path: Path) -> OSError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
