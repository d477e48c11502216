"""A snapshot that could not be finished, at whichever operation, leaves what was there before."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from paramstream.consistency.vector import EMPTY
from paramstream.consumers.snapshots.entry_pages import decode_page, encode_page
from paramstream.consumers.snapshots.folder import latest_in
from paramstream.consumers.snapshots.reading import open_snapshot
from paramstream.consumers.snapshots.verifying import verify_snapshots
from paramstream.consumers.snapshots.writing import SnapshotWriter
from paramstream.errors import BindFailed, CorruptLog, ParamstreamError, StorageFull
from paramstream.eventlog.files import Disk
from paramstream.events.manifest import Manifest, StateRecord, WeightsRecord, positions_of
from paramstream.tiers.entries import Entry

TOPIC_FOLDER = "model-000000000000004d"


class Killed(BaseException):
    """The process ends here."""


class FailingDisk(Disk):
    """Counts its operations, and fails from one of them on."""

    def __init__(self, fails_at: int = -1, error: type[BaseException] = Killed, *, for_good: bool = True) -> None:
        self.operations = 0
        self._fails_at = fails_at
        self._error = error
        self._for_good = for_good

    def _count(self) -> None:
        self.operations += 1
        at = self.operations - 1
        if at == self._fails_at or (self._for_good and 0 <= self._fails_at < at):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if self._error is OSError else self._error()

    def create(self, path: Path) -> int:
        self._count()
        return super().create(path)

    def write(self, handle: int, data: memoryview, offset: int) -> None:
        try:
            self._count()
        except BaseException:
            super().write(handle, data[: len(data) // 2], offset)
            raise
        super().write(handle, data, offset)

    def sync(self, handle: int) -> None:
        self._count()
        super().sync(handle)

    def sync_folder(self, path: Path) -> None:
        self._count()
        super().sync_folder(path)

    def make_folder(self, path: Path) -> None:
        self._count()
        super().make_folder(path)

    def rename(self, old: Path, new: Path) -> None:
        self._count()
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._count()
        super().unlink(path)

    def remove_folder(self, path: Path) -> None:
        self._count()
        super().remove_folder(path)


def write(root: Path, value: bytes, disk: Disk | None = None, keep: int = 1) -> None:
    """A snapshot of one entry."""
    with SnapshotWriter(root / TOPIC_FOLDER, disk) as writer:
        file = writer.write("state-0-0000.safetensors", encode_page([(b"k", Entry(value, 5))]))
        state = StateRecord(0, 5, 5, 1, (file,))
        manifest = Manifest(
            "model", 77, 1, "write_back", 8, writer.number, writer.number, "r", positions_of(EMPTY), (state,),
            WeightsRecord(1, 3, 3),
        )  # fmt: skip
        writer.finish(manifest, keep)


def value_in(root: Path) -> bytes:
    ((_, entry),) = open_snapshot(root, "model").entries(0)
    return entry.value


def operations_of_a_write(root: Path) -> int:
    disk = FailingDisk()
    write(root, b"first")
    write(root, b"second", disk)
    return disk.operations


def test_a_process_killed_at_any_operation_leaves_a_whole_snapshot_K09(tmp_path: Path) -> None:
    total = operations_of_a_write(tmp_path / "count")
    seen: list[bytes] = []
    for at in range(total):
        root = tmp_path / str(at)
        write(root, b"10")
        with pytest.raises(Killed):
            write(root, b"20", FailingDisk(at))
        seen.append(value_in(root))
        # The newer one is seen only once it is the latest, or all of it has its name.
        assert all(not check.flaws for check in verify_snapshots(root))
        write(root, b"30")
        assert value_in(root) == b"30"
        assert sorted(path.name for path in (root / TOPIC_FOLDER).iterdir() if path.is_dir()) == [
            path.name for path in [latest_in(root / TOPIC_FOLDER)] if path is not None
        ]
    assert seen == sorted(seen) and {*seen} == {b"10", b"20"}


def test_a_disk_that_is_full_at_any_write_is_told_and_leaves_what_was_there_K09(tmp_path: Path) -> None:
    total = operations_of_a_write(tmp_path / "count")
    for at in range(total):
        root = tmp_path / str(at)
        write(root, b"10")
        with pytest.raises(StorageFull):
            write(root, b"20", FailingDisk(at, OSError, for_good=False))
        assert value_in(root) in (b"10", b"20")
        left = {path.name for path in (root / TOPIC_FOLDER).iterdir()}
        # Nothing half-done stays, but what the next writer removes.
        assert len([name for name in left if name.startswith("snapshot-")]) <= 2
        write(root, b"30")
        assert value_in(root) == b"30"


def test_the_older_one_is_there_until_the_newer_one_is_the_latest_K09(tmp_path: Path) -> None:
    root = tmp_path
    write(root, b"10")
    older = latest_in(root / TOPIC_FOLDER)
    assert older is not None

    class Watching(Disk):
        def rename(self, old: Path, new: Path) -> None:
            if new.name.endswith(".removed"):
                assert value_in(root) == b"20" and latest_in(root / TOPIC_FOLDER) != older
            elif new.name == "latest":
                named = root / TOPIC_FOLDER / old.read_text().strip()
                assert named != older and named.is_dir()
            else:
                assert older is not None and older.is_dir()
            super().rename(old, new)

    write(root, b"20", Watching())
    assert not older.exists()


def test_two_writers_never_share_a_folder(tmp_path: Path) -> None:
    with SnapshotWriter(tmp_path / TOPIC_FOLDER), pytest.raises(BindFailed, match="another replica"):
        write(tmp_path, b"1")
    write(tmp_path, b"2")
    assert value_in(tmp_path) == b"2"


def test_entries_come_back_as_they_were() -> None:
    items = [
        (b"plain", Entry(b"value", 1 << 63)),
        (b"\x00\xff", Entry(b"", 7, 4_900_000_000_000_000_000)),
        (b"tied", Entry(b"x" * 1000, 9, 0, ((1 << 63) - 1, (1 << 64) - 1))),
    ]
    data = b"".join(encode_page(items))
    assert list(decode_page(memoryview(data), "page")) == items
    assert list(decode_page(memoryview(b"".join(encode_page([]))), "page")) == []


def test_a_page_that_is_cut_or_that_is_something_else_is_refused() -> None:
    data = b"".join(encode_page([(b"k", Entry(b"v", 1))]))
    for at in range(len(data)):
        with pytest.raises(ParamstreamError):
            list(decode_page(memoryview(data[:at]), "page"))
    with pytest.raises(CorruptLog):
        list(decode_page(memoryview(data.replace(b'"keys"', b'"kays"')), "page"))
