"""The folder of a local log: who holds it, and what it is taken for."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paramstream.errors import BindFailed, CorruptLog, InvalidEvent
from paramstream.eventlog.files import Disk, SlotFile
from paramstream.eventlog.local import LocalLog
from paramstream.eventlog.memory import MemoryLog
from paramstream.eventlog.open import open_log
from paramstream.eventlog.reading import FolderReader
from records.disk import FaultyDisk
from records.frames import PARTITION, Owner, append_all

HOLD = """
import sys
from pathlib import Path
from paramstream.eventlog.local import LocalLog
log = LocalLog(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_folder_that_is_held_names_the_process_that_holds_it(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == "held\n"
        with pytest.raises(BindFailed, match=f"held by process {child.pid}"):
            LocalLog(tmp_path)
        child.kill()
        child.wait(10)
        LocalLog(tmp_path).close()
    finally:
        child.kill()
        child.communicate(timeout=10)


def test_one_process_cannot_hold_a_folder_twice(tmp_path: Path) -> None:
    log = LocalLog(tmp_path)
    with pytest.raises(BindFailed, match=f"process {os.getpid()}"):
        LocalLog(tmp_path)
    log.close()
    log.close()
    LocalLog(tmp_path).close()


def test_a_folder_whose_owner_cannot_write_its_number_is_free_again(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    disk.fail("write", errno.ENOSPC, name="lock")
    with pytest.raises(BindFailed, match="No space left"):
        LocalLog(tmp_path, disk=disk)
    LocalLog(tmp_path, disk=disk).close()


def test_a_reading_command_keeps_an_owner_out_and_several_go_side_by_side(tmp_path: Path) -> None:
    LocalLog(tmp_path).close()
    with FolderReader(tmp_path), FolderReader(tmp_path), pytest.raises(BindFailed):
        LocalLog(tmp_path)
    LocalLog(tmp_path).close()


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CorruptLog, match=r"notes\.txt"):
        LocalLog(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_log_of_another_format_is_refused(tmp_path: Path) -> None:
    LocalLog(tmp_path).close()
    (tmp_path / "meta").write_text("paramstream log, format 2\n")
    with pytest.raises(CorruptLog, match=r"format 2.*format 1.*Upgrade"):
        LocalLog(tmp_path)
    (tmp_path / "meta").write_text("paramstream log, format 1\n")
    LocalLog(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_a_failed_bind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BindFailed, match="file"):
        LocalLog(tmp_path / "file" / "log")


def test_a_log_knows_its_partitions_and_size_before_any_is_recovered(tmp_path: Path) -> None:
    log = LocalLog(tmp_path)
    for partition in (PARTITION, (0, 0)):
        opened = log.open(partition)
        opened.recover()
        append_all(opened, Owner(partition).opening())
    nbytes = log.nbytes
    log.drop_topic(0)
    log.open((3, 3)).recover()
    log.close()
    log = LocalLog(tmp_path)
    assert log.partitions() == [PARTITION]
    assert log.nbytes == nbytes / 2
    log.close()


def test_what_a_kill_left_of_a_dropped_partition_is_removed(tmp_path: Path) -> None:
    LocalLog(tmp_path).close()
    left = tmp_path / "0000000000000007-0.dropped"
    left.mkdir()
    (left / "00000001.segment").write_bytes(b"x" * 100)
    log = LocalLog(tmp_path)
    assert (log.partitions(), log.nbytes, left.exists()) == ([], 0, False)
    log.close()


def test_a_closed_log_takes_nothing_more(tmp_path: Path) -> None:
    log = LocalLog(tmp_path)
    partition, owner = log.open(PARTITION), Owner()
    partition.recover()
    append_all(partition, owner.opening())
    log.close()
    with pytest.raises(CorruptLog, match="closed"):
        partition.append(owner.put())


def test_a_slot_that_was_half_written_shows_the_record_before(tmp_path: Path) -> None:
    disk, path = Disk(), tmp_path / "slots"
    SlotFile.make(disk, path, b"0")
    handle = disk.open(path, write=True)
    try:
        slots = SlotFile(disk, handle, 1)
        assert slots.read() == b"0"
        for number in range(1, 6):
            slots.replace(b"%d" % number)
            assert SlotFile(disk, handle, 1).read() == b"%d" % number
        disk.write(handle, memoryview(b"\xff" * 8), 6 % 2 * 512)
        assert SlotFile(disk, handle, 1).read() == b"4"
        disk.write(handle, memoryview(b"\xff" * 8), 5 % 2 * 512)
        assert SlotFile(disk, handle, 1).read() is None
    finally:
        disk.close(handle)


def test_a_url_names_a_log(tmp_path: Path) -> None:
    memory = open_log("memory:", "2GiB")
    assert isinstance(memory, MemoryLog) and memory.limit == 2 << 30
    assert open_log("memory:").limit == 4 << 30
    for url in (f"file:{tmp_path}/a", f"file://{tmp_path}/a"):
        log = open_log(url)
        try:
            assert isinstance(log, LocalLog) and log.limit == 64 << 30 and log.segment_nbytes == 64 << 20
        finally:
            log.close()
    assert (tmp_path / "a" / "meta").exists()


@pytest.mark.parametrize(
    "url", ["", "memory", "memory:x", "file:", "disk:/x", "/tmp/log", "kafka:host:9092", "file://host/log"]
)
def test_a_url_that_names_no_log_is_refused_and_repeated(url: str) -> None:
    with pytest.raises(InvalidEvent) as caught:
        open_log(url)
    assert (repr(url) in str(caught.value) and "memory:" in str(caught.value)) or "file:DIR" in str(caught.value)


@pytest.mark.parametrize("limit", [0, -1, "0", "much"])
def test_a_limit_that_is_none_is_refused(limit: int | str) -> None:
    with pytest.raises(InvalidEvent, match="limit"):
        open_log("memory:", limit)
