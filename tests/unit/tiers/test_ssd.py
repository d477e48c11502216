"""The folder of an ssd tier: taken by one store, cleared of what was left, written within a budget and nowhere else."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from paramstream.errors import BindFailed, InvalidEvent, StorageFull
from paramstream.tiers.ssd import LOCK_FILE, SsdFolder, TierFile, parse_ssd
from paramstream.tiers.store import TieredStore

LIMIT = 1 << 20


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("text", "path", "nbytes"),
    [("/mnt/x:2KiB", "/mnt/x", 2048), ("a:b:100", "a:b", 100), ("C:/x y:1GB", "C:/x y", 10**9), ("x::1", "x:", 1)],
)
def test_a_folder_may_hold_colons(text: str, path: str, nbytes: int) -> None:
    assert parse_ssd(text) == (Path(path), nbytes)


@pytest.mark.parametrize(
    "text", ["", "/mnt/x", ":1GiB", "/mnt/x:", "/mnt/x:lots", "/mnt/x:0", "/mnt/x:-1", "a\0b:1KiB"]
)
def test_what_is_no_folder_and_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidEvent):
        TieredStore(ssd=text)


def test_a_folder_has_one_store_and_the_error_names_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "made" / "tier"
    with TieredStore(ssd=f"{path}:1MiB"):
        with pytest.raises(BindFailed, match=f"process {os.getpid()} on ") as caught:
            TieredStore(ssd=f"{path}:1MiB")
        assert str(path) in str(caught.value)
    with TieredStore(ssd=f"{path}:1MiB"):
        pass
    assert os.listdir(path) == []


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    before = open_descriptors()
    with pytest.raises(BindFailed, match="file"):
        SsdFolder(tmp_path / "file", LIMIT)
    os.symlink(tmp_path / "file", tmp_path / LOCK_FILE)
    with pytest.raises(BindFailed, match="symbolic"):
        SsdFolder(tmp_path, LIMIT)
    assert open_descriptors() == before


def test_a_store_that_cannot_be_made_leaves_its_folder_to_the_next_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidEvent, match="hbm"):
        TieredStore(hbm=0, ssd=f"{tmp_path}:1MiB")
    assert os.listdir(tmp_path) == []
    TieredStore(ssd=f"{tmp_path}:1MiB").close()


def test_only_what_an_earlier_store_left_is_removed(tmp_path: Path) -> None:
    ours = ["paramstream-rows-00000001.tier", "paramstream-blobs-123456789.tier"]
    others = [
        "notes.txt",
        "paramstream-rows-1.tier",
        "xparamstream-rows-00000001.tier",
        "paramstream-rows-00000001.tier.bak",
    ]
    for name in (*ours, *others):
        (tmp_path / name).write_text("x")
    outside = tmp_path.parent / "outside"
    outside.write_text("x")
    os.symlink(outside, tmp_path / "paramstream-rows-00000002.tier")
    (tmp_path / "paramstream-rows-00000003.tier").mkdir()
    folder = SsdFolder(tmp_path, LIMIT)
    kept = {*others, "paramstream-rows-00000002.tier", "paramstream-rows-00000003.tier"}
    assert set(os.listdir(tmp_path)) == {*kept, LOCK_FILE}
    folder.close()
    assert set(os.listdir(tmp_path)) == kept
    assert outside.read_text() == "x"


def test_a_name_that_is_taken_is_never_written_through(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("x")
    folder = SsdFolder(tmp_path / "tier", LIMIT)
    os.symlink(outside, tmp_path / "tier" / "paramstream-rows-00000001.tier")
    with pytest.raises(StorageFull):
        folder.create("rows")
    folder.create("rows").reserve(4096)
    assert outside.read_text() == "x"
    folder.close()


def test_a_file_is_charged_as_long_as_it_is_and_gone_when_closed(tmp_path: Path) -> None:
    before = open_descriptors()
    folder = SsdFolder(tmp_path, LIMIT)
    one, two = folder.create("rows"), folder.create("blobs")
    one.reserve(8192)
    two.reserve(4096)
    assert folder.budget.held == 12288
    assert one.path.stat().st_size == 8192
    assert one.path.stat().st_blocks * 512 >= 8192
    one.write(b"abc", 4000)
    one.reserve(4096)
    read = bytearray(3)
    one.read_into(memoryview(read), 4000)
    assert bytes(read) == b"abc"
    assert (folder.budget.held, one.path.stat().st_size) == (8192, 4096)
    one.close()
    one.close()
    assert folder.budget.held == 4096
    assert not one.path.exists()
    folder.close()
    folder.close()
    assert folder.budget.held == 0
    assert os.listdir(tmp_path) == []
    assert open_descriptors() == before
    for use in (lambda: folder.create("rows"), lambda: two.reserve(0), lambda: two.read_into(memoryview(read), 0)):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_what_the_budget_does_not_hold_is_refused_by_tier_path_and_bytes_K05(tmp_path: Path) -> None:
    folder = SsdFolder(tmp_path, 10_000)
    file = folder.create("rows")
    file.reserve(8192)
    with pytest.raises(StorageFull) as caught:
        file.reserve(16384)
    assert all(part in str(caught.value) for part in ("ssd", str(tmp_path), "8192 bytes more", "10000"))
    assert (file.nbytes, folder.budget.held) == (8192, 8192)
    file.reserve(10_000)
    folder.close()


def test_a_full_disk_is_named_and_leaves_the_file_as_it_was_K05(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SsdFolder(tmp_path, LIMIT)
    file = folder.create("rows")
    file.reserve(4096)

    def no_room(handle: int, offset: int, nbytes: int) -> None:
        os.ftruncate(handle, offset + nbytes // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "posix_fallocate", no_room)
        with pytest.raises(StorageFull) as caught:
            file.reserve(8192)
    assert all(part in str(caught.value) for part in ("ssd", str(tmp_path), "4096 bytes more", "No space left"))
    assert (file.nbytes, folder.budget.held, file.path.stat().st_size) == (4096, 4096, 4096)
    file.reserve(8192)
    folder.close()


def test_a_file_closed_while_it_is_read_goes_when_the_read_ends(tmp_path: Path) -> None:
    folder = SsdFolder(tmp_path, LIMIT)
    file = folder.create("rows")
    file.reserve(4096)
    with file.using() as handle:
        closing = threading.Thread(target=folder.create("rows").close)
        file.close()
        closing.start()
        closing.join()
        assert len(os.pread(handle, 4096, 0)) == 4096
        assert file.path.exists()
    assert not file.path.exists()
    assert folder.budget.held == 0
    folder.close()


def test_a_folder_closed_while_it_is_read_keeps_descriptor_and_lock_until_the_read_ends(tmp_path: Path) -> None:
    before = open_descriptors()
    folder = SsdFolder(tmp_path, LIMIT)
    file, forgotten = folder.create("rows"), folder.create("rows").path
    file.reserve(4096)
    with file.using() as handle:
        folder.close(timeout=0.0)
        assert len(os.pread(handle, 4096, 0)) == 4096
        assert not forgotten.exists()
        with pytest.raises(BindFailed, match=f"process {os.getpid()}"):
            SsdFolder(tmp_path, LIMIT)
        with pytest.raises(ValueError, match="closed"):
            folder.create("rows")
        closing = threading.Thread(target=folder.close)
        closing.start()
    closing.join()
    assert (os.listdir(tmp_path), folder.budget.held) == ([], 0)
    assert open_descriptors() == before
    SsdFolder(tmp_path, LIMIT).close()


def test_a_folder_dropped_without_close_leaves_nothing(tmp_path: Path) -> None:
    before = open_descriptors()

    def use() -> None:
        file: TierFile = SsdFolder(tmp_path, LIMIT).create("rows")
        file.reserve(4096)

    use()
    assert os.listdir(tmp_path) == []
    assert open_descriptors() == before


_PROCESS = """
import os, sys
import paramstream as ps
store = ps.TieredStore(ssd=sys.argv[1] + ":1MiB")
store.ssd.create("rows").reserve(4096)
print("ready", flush=True)
if sys.argv[2] == "kill":
    os.kill(os.getpid(), 9)
"""


def test_a_killed_process_leaves_files_that_the_next_one_removes_and_one_that_ends_leaves_none(tmp_path: Path) -> None:
    for way, left in (("kill", 2), ("end", 0)):
        ran = subprocess.run(
            [sys.executable, "-c", _PROCESS, str(tmp_path), way], check=False, capture_output=True, timeout=60
        )
        assert ran.stdout == b"ready\n"
        assert len(os.listdir(tmp_path)) == left, ran.stderr
