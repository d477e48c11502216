"""The crash-safe log in a folder: `log="file:DIR"`.

DIR/meta                    which release's format this is
DIR/lock                    held while a broker lives
DIR/failures                how many writes and syncs have failed
DIR/<topic id>-<number>/    a partition: its segments, their indices, and how far it is durable
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ..consistency.vector import PartitionId
from ..errors import BindFailed, CorruptLog, ParamstreamError
from .chain import opened
from .files import Disk, FolderLock, present_boot
from .marks import FailureCount, boot_mark, storage_error
from .partition import LocalPartition
from .tally import Tally, segment_nbytes_for

DEFAULT_LIMIT = 64 * 1024**3
"""`log_limit` where none is given."""

META = "meta"
META_TEXT = "paramstream log, format 1\n"
_DROPPED = ".dropped"
_ROOM = "room"
ROOM_NBYTES = 1024 * 1024
"""So much must be free again before a partition that met a full disk is tried again: more than an event has."""
_PARTITION = re.compile(r"([0-9a-f]{16})-(0|[1-9][0-9]{0,9})")


class LocalLog:
    """All partitions of a broker, in one folder; see `log.EventLog`. Opening it takes the folder's lock."""

    def __init__(
        self, folder: Path, limit: int = DEFAULT_LIMIT, *, boot: str | None = None, disk: Disk | None = None
    ) -> None:
        """Makes the folder where there is none. Reads no record.

        Raises `BindFailed` where another process holds it (naming that) or it cannot be made, `CorruptLog` where it holds
        something else.
        """
        self._folder = Path(folder)
        self._limit = limit
        self._segment_nbytes = segment_nbytes_for(limit)
        self._boot = present_boot() if boot is None else boot
        self._disk = Disk() if disk is None else disk
        self._tally = Tally()
        self._partitions: dict[PartitionId, LocalPartition] = {}
        self._closed = False
        try:
            self._disk.make_folder(self._folder)
            self._lock = FolderLock.exclusive(self._disk, self._folder)
        except OSError as error:
            raise BindFailed(f"cannot use {self._folder} as a log: {error.strerror}") from error
        try:
            self._prepare()
        except BaseException:
            self._lock.close()
            raise

    def _prepare(self) -> None:
        try:
            names = self._disk.names(self._folder)
            if META not in names:
                self._make_meta(names)
            check_meta(self._disk, self._folder)
            self._failures = FailureCount(self._disk, self._folder)
            for name in names:
                if name.endswith(_DROPPED):
                    self._remove(self._folder / name)
        except OSError as error:
            raise storage_error("open", self._folder, error) from error
        for partition in held_partitions(names):
            self.open(partition)

    def _make_meta(self, names: list[str]) -> None:
        strangers = [name for name in names if name not in (FolderLock.NAME, META + ".new")]
        if strangers:
            raise CorruptLog(
                f"{self._folder} is no log, and holds {strangers[0]!r}", remedy="Use an empty folder for a new log"
            )
        aside = self._folder / (META + ".new")
        self._disk.unlink(aside)
        handle = self._disk.create(aside)
        try:
            self._disk.write(handle, memoryview(META_TEXT.encode()), 0)
            self._disk.sync(handle)
        finally:
            self._disk.close(handle)
        self._disk.rename(aside, self._folder / META)
        self._disk.sync_folder(self._folder)
        self._disk.sync_folder(self._folder.parent)

    @property
    def durable_on_append(self) -> bool:
        return False

    @property
    def boot(self) -> str:
        return self._boot

    @property
    def failed_writes(self) -> int:
        return self._failures.count

    @property
    def segment_nbytes(self) -> int:
        return self._segment_nbytes

    @property
    def nbytes(self) -> int:
        return self._tally.nbytes

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def shared(self) -> bool:
        return False

    def create_topic(self, topic: int, name: str, partitions: int) -> None:
        """A partition's folder is made by its first append."""

    def describe_topic(self, topic: int) -> Mapping[str, str]:
        return {}

    def partitions(self) -> list[PartitionId]:
        return sorted(key for key, partition in list(self._partitions.items()) if partition.nbytes)

    def open(self, partition: PartitionId) -> LocalPartition:
        """The same object for each call with the same partition. Makes no file before the first append.

        One that a full disk has stopped is opened anew, and goes on from its last sync. Raises `StorageFull` while there is no room.
        """
        found = self._partitions.get(partition)
        if found is not None and found.is_full:
            self._prove_room()
            found.forget()
            found = None
        if found is None:
            found = self._partitions[partition] = LocalPartition(
                partition_folder(self._folder, partition),
                partition,
                disk=self._disk,
                segment_nbytes=self._segment_nbytes,
                tally=self._tally,
                failures=self._failures,
                boot=boot_mark(self._boot),
            )
        return found

    def _prove_room(self) -> None:
        """Before a stopped partition is given up, from which readers still read."""
        path = self._folder / _ROOM
        try:
            self._disk.unlink(path)
            handle = self._disk.create(path)
            try:
                self._disk.write(handle, memoryview(bytes(ROOM_NBYTES)), 0)
                self._disk.sync(handle)
            finally:
                self._disk.close(handle)
                self._disk.unlink(path)
        except OSError as error:
            raise storage_error("go on in", self._folder, error) from error

    def drop_topic(self, topic: int) -> None:
        try:
            held = held_partitions(self._disk.names(self._folder))
        except OSError as error:
            raise storage_error("read", self._folder, error) from error
        for partition in sorted({*self._partitions, *held}):
            if partition[0] == topic:
                self._drop(partition)

    def _drop(self, partition: PartitionId) -> None:
        dropped = self._partitions.pop(partition, None)
        if dropped is not None:
            dropped.forget()
        folder = partition_folder(self._folder, partition)
        aside = folder.with_suffix(_DROPPED)
        try:
            if self._disk.is_folder(folder):
                self._disk.rename(folder, aside)
                self._disk.sync_folder(self._folder)
            self._remove(aside)
        except OSError as error:
            raise storage_error("remove", folder, error) from error

    def _remove(self, folder: Path) -> None:
        """A dropped partition's folder is none of the log any more, whatever is left of it."""
        if self._disk.is_folder(folder):
            for name in self._disk.names(folder):
                self._disk.unlink(folder / name)
            self._disk.remove_folder(folder)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        failed: ParamstreamError | None = None
        for partition in self._partitions.values():
            try:
                partition.close()
            except ParamstreamError as error:
                failed = failed or error
        self._failures.close()
        self._lock.close()
        if failed is not None:
            raise failed


def partition_folder(folder: Path, partition: PartitionId) -> Path:
    return folder / f"{partition[0]:016x}-{partition[1]}"


def held_partitions(names: list[str]) -> list[PartitionId]:
    """The partitions whose folders are among `names`, in order."""
    matches = (_PARTITION.fullmatch(name) for name in names)
    return sorted((int(match[1], 16), int(match[2])) for match in matches if match is not None)


def check_meta(disk: Disk, folder: Path) -> None:
    """Raises `CorruptLog` where the folder is no log, or one of another format."""
    try:
        with opened(disk, folder / META) as read:
            text = read(4 * len(META_TEXT), 0).decode(errors="replace")
    except FileNotFoundError as error:
        raise CorruptLog(f"{folder} is no log: it has no file {META!r}") from error
    if text != META_TEXT:
        raise CorruptLog(
            f"{folder / META} says {text.strip()[:80]!r}, this reader knows {META_TEXT.strip()!r}",
            remedy="Upgrade this reader",
        )
