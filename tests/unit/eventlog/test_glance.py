"""Chunks that are believed without their bytes: what is read of them, and which damage is met all the same."""

import mmap
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from paramstream.errors import CorruptLog
from paramstream.eventlog.files import Disk
from paramstream.eventlog.glance import WORTH_NBYTES
from paramstream.eventlog.local import LocalLog, partition_folder
from paramstream.eventlog.reading import FolderReader
from paramstream.events.codec import EventFrame, Head, encode_event, stamp_frame
from paramstream.events.kinds import Chunk, Segment
from records.frames import PARTITION, Owner, append_all

NBYTES = 4 * WORTH_NBYTES
VECTOR = bytes(range(20))


class CountingDisk(Disk):
    """Counts the bytes that are brought in."""

    fetched = 0

    def fetch(self, mapping: mmap.mmap, offset: int, end: int) -> None:
        self.fetched += end - offset
        super().fetch(mapping, offset, end)


def chunk(owner: Owner, sequence: int, version: int = 7, own: bytes = VECTOR, producer: str = "trainer") -> bytearray:
    head = Head(producer, 1, sequence, sequence - 1, owner.epoch, confirmed=sequence // 2, own=own)
    payload = Chunk(version, (Segment("w", sequence * NBYTES, NBYTES),))
    frame = encode_event(PARTITION, head, payload, [bytes(NBYTES)])
    owner.at += 1
    stamp_frame(frame, position=owner.at, time=owner.at, nonce=owner.nonce)
    return frame


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LocalLog]:
    log = LocalLog(tmp_path)
    yield log
    log.close()


def write(log: LocalLog, folder: Path, frames: list[bytearray]) -> tuple[Path, list[int]]:
    """The file that they are in, durably, and where they begin in it."""
    partition = log.open(PARTITION)
    partition.recover()
    append_all(partition, frames)
    partition.sync()
    path = max(partition_folder(folder, PARTITION).glob("*.segment"))
    data = path.read_bytes()
    return path, [data.index(bytes(frame)) for frame in frames]


def flip(path: Path, offset: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def chunks_in(reader: FolderReader) -> list[tuple[Head, Chunk]]:
    """Without what a session has confirmed meanwhile, which says nothing of versions."""
    events: list[EventFrame] = list(reader.read_newest(PARTITION).records)
    return [
        (msgspec.structs.replace(event.head, confirmed=0), event.payload)
        for event in events
        if isinstance(event.payload, Chunk)
    ]


def test_of_large_chunks_little_is_read_and_all_is_told(log: LocalLog, tmp_path: Path) -> None:
    owner, disk = Owner(), CountingDisk()
    write(log, tmp_path, [owner.claim(), owner.open_epoch(), *(chunk(owner, sequence) for sequence in range(1, 21))])
    with FolderReader(tmp_path, disk) as reader:
        assert [head.sequence for head, _ in chunks_in(reader)] == list(range(1, 21))
    assert NBYTES < disk.fetched < 2 * NBYTES  # One of them is proved.


def test_chunks_that_do_not_follow_on_are_read_whole(log: LocalLog, tmp_path: Path) -> None:
    owner, disk = Owner(), CountingDisk()
    frames = [owner.claim(), owner.open_epoch()]
    frames += [chunk(owner, 1), chunk(owner, 2, version=8), chunk(owner, 4, version=8)]
    frames += [chunk(owner, 5, version=8, own=b""), chunk(owner, 1, producer="other")]
    write(log, tmp_path, frames)
    with FolderReader(tmp_path, disk) as reader:
        assert len(chunks_in(reader)) == 5
    assert disk.fetched > 5 * NBYTES


def test_damage_in_the_bytes_of_a_tensor_is_met_by_who_uses_them(log: LocalLog, tmp_path: Path) -> None:
    owner = Owner()
    path, offsets = write(
        log, tmp_path, [owner.claim(), owner.open_epoch(), chunk(owner, 1), chunk(owner, 2), chunk(owner, 3)]
    )
    flip(path, offsets[-2] + NBYTES // 2)
    with FolderReader(tmp_path) as reader:
        assert len(chunks_in(reader)) == 3
        with pytest.raises(CorruptLog, match=f"at offset {offsets[-2]},"):
            list(reader.read(PARTITION).records)


def test_damage_in_a_head_is_met_or_changes_nothing(log: LocalLog, tmp_path: Path) -> None:
    owner = Owner()
    frames = [owner.claim(), owner.open_epoch(), chunk(owner, 1), chunk(owner, 2), chunk(owner, 3)]
    path, offsets = write(log, tmp_path, frames)
    met = 0
    with FolderReader(tmp_path) as reader:
        written = [(head, payload.version) for head, payload in chunks_in(reader)]
        for at in range(offsets[-2], offsets[-2] + len(frames[-2]) - NBYTES):
            for bit in (0, 5):
                flip(path, at, bit)
                try:
                    assert [(head, payload.version) for head, payload in chunks_in(reader)] == written
                except CorruptLog as error:
                    assert f"at offset {offsets[-2]}," in str(error)
                    met += 1
                flip(path, at, bit)
    assert met > 150
