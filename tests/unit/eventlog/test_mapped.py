"""Reading a log's files through the page cache: what is viewed, and what happens where the system cannot give it."""

import errno
import mmap
import os
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from paramstream.errors import CorruptLog
from paramstream.eventlog import ahead as read_ahead
from paramstream.eventlog.ahead import ReadAhead
from paramstream.eventlog.files import Disk
from paramstream.eventlog.mapped import MappedFile
from reference.waiting import eventually

MIB = 1 << 20
DATA = os.urandom(3 * mmap.PAGESIZE + 100)


class Failing(Disk):
    """Its pages cannot be brought in; `reads` says whether the same bytes can be read."""

    def __init__(self, *, reads: bool) -> None:
        self.reads = reads

    def fetch(self, mapping: mmap.mmap, offset: int, end: int) -> None:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))

    def read(self, handle: int, nbytes: int, offset: int) -> bytes:
        if not self.reads:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(handle, nbytes, offset)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def handle(path: Path) -> Generator[int]:
    handle = os.open(path, os.O_RDONLY)
    yield handle
    os.close(handle)


@pytest.mark.parametrize("offset", [0, 1, mmap.PAGESIZE - 1, mmap.PAGESIZE, len(DATA) - 1, len(DATA)])
@pytest.mark.parametrize("nbytes", [0, 1, mmap.PAGESIZE + 1, len(DATA)])
def test_a_view_is_what_a_read_gives(path: Path, handle: int, nbytes: int, offset: int) -> None:
    file = MappedFile(Disk(), handle, path)
    assert file.view(nbytes, offset) == file.read(nbytes, offset) == DATA[offset : offset + nbytes]
    file.let_go()


def test_a_view_outlives_the_file_and_its_reader(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    file = MappedFile(Disk(), handle, path)
    view = file.view(len(DATA), 0)
    file.let_go()
    os.close(handle)
    path.unlink()
    assert view == DATA
    with pytest.raises(TypeError):
        view[0] = 1


def test_a_view_that_died_leaves_no_descriptor(path: Path, handle: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    file = MappedFile(Disk(), handle, path)
    view = file.view(1, 0)
    file.let_go()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del view
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_cannot_be_brought_in_is_read(path: Path, handle: int) -> None:
    assert MappedFile(Failing(reads=True), handle, path).view(10, 5) == DATA[5:15]


def test_a_disk_that_fails_is_named_and_no_signal(path: Path, handle: int) -> None:
    with pytest.raises(CorruptLog, match=rf"{path} at offset 5: Input/output error"):
        MappedFile(Failing(reads=False), handle, path).view(10, 5)


def test_a_file_that_was_cut_meanwhile_ends_and_is_no_signal(path: Path, handle: int) -> None:
    file = MappedFile(Disk(), handle, path)
    assert file.view(1, 0) == DATA[:1]
    os.truncate(path, mmap.PAGESIZE + 1)
    assert file.view(len(DATA), mmap.PAGESIZE) == DATA[mmap.PAGESIZE : mmap.PAGESIZE + 1]


class Asked(ReadAhead):
    """Notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__(Disk())
        self.asked: list[tuple[int, int, int]] = []
        """(size of the file, offset, nbytes)"""

    def ask(self, mapping: mmap.mmap, offset: int, nbytes: int) -> None:
        assert nbytes > 0
        self.asked.append((len(mapping), offset, nbytes))


def test_the_disk_is_asked_beforehand_by_who_goes_on_reading_and_for_the_next_file_too(
    path: Path, handle: int, tmp_path: Path
) -> None:
    large = tmp_path / "large"
    with large.open("wb") as made:
        made.truncate(100 * MIB)
    ahead = Asked()
    with large.open("rb") as opened:
        file = MappedFile(Disk(), opened.fileno(), large, ahead=ahead)
        file.next = MappedFile(Disk(), handle, path, ahead=ahead)
        file.view(4096, 50 * MIB)
        assert ahead.asked == []
        for at in range(100):
            file.view(MIB, at * MIB)
        *first, last = ahead.asked
        assert last[0] == len(DATA) and {each[0] for each in first} == {100 * MIB}
        ends = [offset + nbytes for _, offset, nbytes in first]
        assert ends[-1] == 100 * MIB
        assert all(offset >= end for (_, offset, _), end in zip(first[1:], ends, strict=False)), "each byte once"
        assert sum(nbytes for _, _, nbytes in first) > 90 * MIB
        file.let_go()


def test_a_file_that_is_glanced_at_is_not_asked_for_beforehand(path: Path, handle: int) -> None:
    ahead = Asked()
    file = MappedFile(Disk(), handle, path, ahead=ahead).glanced_at()
    for offset in range(0, len(DATA), 64):
        assert file.view(mmap.PAGESIZE, offset, wanted=64)[:64] == DATA[offset : offset + 64]
    assert ahead.asked == []


class Brought(Disk):
    """Notes what is brought in, by which thread; a thread that is not the reader's may be held up."""

    def __init__(self) -> None:
        self.by_thread: dict[str, int] = {}
        self.may_go_on = threading.Event()

    def fetch(self, mapping: mmap.mmap, offset: int, end: int) -> None:
        name = threading.current_thread().name
        if name == "paramstream-read-ahead":
            assert self.may_go_on.wait(10)
        self.by_thread[name] = self.by_thread.get(name, 0) + end - offset
        super().fetch(mapping, offset, end)


def test_pages_are_brought_in_by_a_thread_beside_and_nobody_waits_for_it(tmp_path: Path) -> None:
    large = tmp_path / "large"
    data = os.urandom(MIB) * 20
    large.write_bytes(data)
    disk = Brought()
    ahead = ReadAhead(disk)
    with large.open("rb") as opened:
        file = MappedFile(disk, opened.fileno(), large, ahead=ahead)
        for at in range(0, 10 * MIB, MIB):
            assert file.view(MIB, at) == data[at : at + MIB]
        assert "paramstream-read-ahead" not in disk.by_thread
        disk.may_go_on.set()
        eventually(lambda: disk.by_thread.get("paramstream-read-ahead", 0) > 10 * MIB)
        for at in range(10 * MIB, 20 * MIB, MIB):
            assert file.view(MIB, at) == data[at : at + MIB]
        file.let_go()
    ahead.close()
    ahead.close()
    assert not any(thread.name == "paramstream-read-ahead" for thread in threading.enumerate())


def test_what_cannot_be_brought_in_beforehand_is_found_out_by_who_reads_it(path: Path, handle: int) -> None:
    ahead = ReadAhead(Failing(reads=True))
    file = MappedFile(Disk(), handle, path, ahead=ahead)
    for offset in (0, 1, 2):
        assert file.view(len(DATA), offset) == DATA[offset:]
    file.let_go()
    ahead.close()


def test_a_disk_that_does_not_answer_does_not_hold_up_the_close(
    path: Path, handle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "CLOSE_S", 0.1)
    disk = Brought()
    ahead = ReadAhead(disk)
    file = MappedFile(disk, handle, path, ahead=ahead)
    for _ in range(3):
        file.view(len(DATA), 0)
    ahead.close()
    disk.may_go_on.set()
