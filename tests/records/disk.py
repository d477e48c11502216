"""A disk that fails where it is told to, and forgets at a power failure what was not synced."""

import errno
import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from paramstream.eventlog.files import Disk, FolderLock


@dataclass
class Node:
    """A file, whatever its name is."""

    synced: bytes = b""
    last: bytes = b""
    """Its content when it was last unlinked."""


@dataclass
class Fault:
    operation: str
    """"write", "sync", "truncate", "create", "unlink" or "sync_folder"."""
    errno: int
    name: str
    """The end of the file's name."""
    after: int
    """How many calls succeed first."""
    partly: int = 0
    """How many bytes a failing write still writes."""
    times: int = 1
    """How many calls fail."""


@dataclass
class FaultyDisk(Disk):
    root: Path
    faults: list[Fault] = field(default_factory=list[Fault])
    syncs: int = 0

    def __post_init__(self) -> None:
        self._handles: dict[int, Path] = {}
        self._nodes: dict[Path, Node] = {}
        self._durable: dict[Path, Node] = {}
        self._durable_folders: set[Path] = {self.root}

    def fail(
        self,
        operation: str,
        code: int = errno.EIO,
        name: str = ".segment",
        after: int = 0,
        partly: int = 0,
        times: int = 1,
    ) -> None:
        self.faults.append(Fault(operation, code, name, after, partly, times))

    def _fault(self, operation: str, path: Path) -> Fault | None:
        for fault in self.faults:
            if fault.operation == operation and path.name.endswith(fault.name) and fault.times:
                if fault.after:
                    fault.after -= 1
                    continue
                fault.times -= 1
                return fault
        return None

    def _check(self, operation: str, path: Path) -> None:
        fault = self._fault(operation, path)
        if fault is not None:
            raise OSError(fault.errno, os.strerror(fault.errno))

    def create(self, path: Path) -> int:
        self._check("create", path)
        handle = super().create(path)
        self._handles[handle] = path
        self._nodes[path] = Node()
        return handle

    def open(self, path: Path, *, write: bool = False) -> int:
        handle = super().open(path, write=write)
        self._handles[handle] = path
        return handle

    def open_or_create(self, path: Path) -> int:
        handle = super().open_or_create(path)
        self._handles[handle] = path
        return handle

    def close(self, handle: int) -> None:
        del self._handles[handle]
        super().close(handle)

    def write(self, handle: int, data: memoryview, offset: int) -> None:
        fault = self._fault("write", self._handles[handle])
        if fault is not None:
            super().write(handle, data[: fault.partly], offset)
            raise OSError(fault.errno, os.strerror(fault.errno))
        super().write(handle, data, offset)

    def sync(self, handle: int) -> None:
        path = self._handles[handle]
        self._check("sync", path)
        self.syncs += 1
        node = self._nodes.get(path)
        if node is not None:
            node.synced = path.read_bytes()

    def truncate(self, handle: int, nbytes: int) -> None:
        self._check("truncate", self._handles[handle])
        super().truncate(handle, nbytes)

    def sync_folder(self, path: Path) -> None:
        self._check("sync_folder", path)
        for known in [known for known in self._durable if known.parent == path]:
            del self._durable[known]
        self._durable |= {known: node for known, node in self._nodes.items() if known.parent == path}
        self._durable_folders |= {child for child in path.iterdir() if child.is_dir()} if path.is_dir() else set()

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        for known in list(self._nodes):
            if known == old:
                self._nodes[new] = self._nodes.pop(known)
            elif known.parent == old:
                self._nodes[new / known.name] = self._nodes.pop(known)

    def unlink(self, path: Path) -> None:
        self._check("unlink", path)
        node = self._nodes.pop(path, None)
        if node is not None:
            node.last = path.read_bytes()
        super().unlink(path)

    def kill(self) -> None:
        """The process is gone: its files are closed and its lock is free."""
        for handle in list(self._handles):
            self.close(handle)
        self.faults.clear()

    def power_failure(self, chance: random.Random) -> None:
        """Kill, then lose a part of what was not synced: any of its bytes and any folder's new names."""
        self.kill()
        contents = {id(node): path.read_bytes() for path, node in self._nodes.items()}
        nodes: dict[Path, Node] = {}
        for folder in {path.parent for path in self._nodes | self._durable}:
            if folder in self._durable_folders:
                source = self._nodes if chance.random() < 0.5 else self._durable
                nodes |= {path: node for path, node in source.items() if path.parent == folder}
        for child in self.root.iterdir():
            if child.is_dir():
                shutil.rmtree(child)
            elif child.name != FolderLock.NAME:
                child.unlink()
        for path, node in nodes.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            node.synced = _after_power_failure(node.synced, contents.get(id(node), node.last), chance)
            path.write_bytes(node.synced)
        self._nodes, self._durable = dict(nodes), dict(nodes)


def _after_power_failure(synced: bytes, current: bytes, chance: random.Random) -> bytes:
    """Each block of 512 bytes is the old one or the new one; the file has any length between the two."""
    length = chance.randint(*sorted((len(synced), len(current)))) if chance.random() < 0.7 else len(synced)
    keep = chance.choice((0.0, 0.5, 1.0))
    blocks: list[bytes] = []
    for at in range(0, length, 512):
        end = min(at + 512, length)
        new = chance.random() < keep
        block = (current if new else synced)[at:end]
        blocks.append(block.ljust(end - at, b"\0"))
    data = b"".join(blocks)
    shared = next((at for at, (old, new) in enumerate(zip(synced, current, strict=False)) if old != new), len(synced))
    return synced[: min(shared, length)] + data[shared:]
