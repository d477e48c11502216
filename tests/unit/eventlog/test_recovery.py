"""What recovery keeps, cuts and refuses, file by file."""

import random
import shutil
import struct
from pathlib import Path

import pytest

from paramstream.consistency.position import position, show
from paramstream.consistency.vector import META
from paramstream.errors import CorruptLog, LogTruncated
from paramstream.eventlog.counting import BEGINNING
from paramstream.eventlog.local import LocalLog, partition_folder
from paramstream.eventlog.log import Recovered
from paramstream.eventlog.segment import HEADER_NBYTES, Header
from paramstream.events.kinds import Note
from records.disk import FaultyDisk
from records.frames import PARTITION, Owner, append_all, as_pairs, make_frame, read_all

LIMIT = 1 << 20


def write(folder: Path, frames: list[bytearray], boot: str = "1") -> None:
    """A log that was stopped cleanly."""
    log = LocalLog(folder, LIMIT, boot=boot)
    try:
        partition = log.open(PARTITION)
        partition.recover()
        append_all(partition, frames)
    finally:
        log.close()


def recover(
    folder: Path, boot: str = "1", max_bytes: int = LIMIT
) -> tuple[Recovered, list[tuple[int, bytes]], list[tuple[int, bytes]]]:
    """(what was recovered, the pairs behind its base, all pairs that are read)."""
    log = LocalLog(folder, LIMIT, boot=boot)
    try:
        partition = log.open(PARTITION)
        recovered = partition.recover()
        return recovered, as_pairs(recovered.records), read_all(partition, max_bytes=max_bytes)
    finally:
        log.close()


def segments(folder: Path) -> list[Path]:
    return sorted(partition_folder(folder, PARTITION).glob("*.segment"))


def change(path: Path, offset: int, new: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[offset : offset + len(new)] = new
    path.write_bytes(data)


def flip(path: Path, offset: int) -> None:
    change(path, offset, bytes([path.read_bytes()[offset] ^ 0x10]))


def test_a_log_torn_at_any_byte_of_its_last_record_keeps_all_before_it_and_names_the_cut(tmp_path: Path) -> None:
    owner = Owner()
    write(tmp_path / "log", [*owner.opening(), owner.put(), owner.put(b"last")])
    whole = segments(tmp_path / "log")[-1].read_bytes()
    begins = len(whole) - len(owner.events[-1][1])
    for end in range(begins, len(whole)):
        folder = tmp_path / str(end)
        shutil.copytree(tmp_path / "log", folder)
        path = segments(folder)[-1]
        path.write_bytes(whole[:end])
        recovered, behind, read = recover(folder)
        assert behind == owner.events[1:-1]
        assert read == owner.events[:-1]
        if end > begins:
            assert f"{path}: {end - begins} bytes from offset {begins} on" in recovered.cut
            assert path.stat().st_size == begins
        else:
            assert recovered.cut == ""
        shutil.rmtree(folder)


def test_a_log_torn_in_its_newest_base_goes_on_from_the_base_before(tmp_path: Path) -> None:
    owner = Owner()
    write(tmp_path / "log", [*owner.opening(), owner.put(), owner.base(b"n" * 100)])
    whole = segments(tmp_path / "log")[-1].read_bytes()
    for end in range(0, len(whole), 7):
        folder = tmp_path / str(end)
        shutil.copytree(tmp_path / "log", folder)
        path = segments(folder)[-1]
        path.write_bytes(whole[:end])
        recovered, behind, read = recover(folder)
        assert recovered.base is not None and bytes(recovered.base.bulk) == b"state"
        assert (behind, read) == (owner.events[1:], owner.events)
        assert str(path) in recovered.cut and not path.exists()


def test_a_flipped_bit_in_the_middle_is_named_and_never_cut_K03(tmp_path: Path) -> None:
    owner = Owner()
    write(tmp_path / "log", [*owner.opening(), *(owner.put(bytes(40)) for _ in range(3))])
    path = segments(tmp_path / "log")[-1]
    whole = path.read_bytes()
    damaged = len(whole) - sum(len(frame) for _, frame in owner.events[-2:])
    for offset in range(damaged, damaged + len(owner.events[-2][1])):
        flip(path, offset)
        with pytest.raises(CorruptLog) as caught:
            recover(tmp_path / "log")
        assert f"{path} is damaged at offset {damaged}" in str(caught.value)
        assert show(owner.events[-3][0]) in str(caught.value)
        assert caught.value.position == owner.events[-3][0]
        assert path.stat().st_size == len(whole)
        path.write_bytes(whole)
    assert recover(tmp_path / "log")[2] == owner.events


def test_a_flipped_bit_in_the_header_of_the_newest_file_is_named_and_never_cut(tmp_path: Path) -> None:
    owner = Owner()
    write(tmp_path, [*owner.opening(), owner.put()])
    path = segments(tmp_path)[-1]
    for offset in range(0, HEADER_NBYTES, 5):
        flip(path, offset)
        with pytest.raises(CorruptLog, match=path.name):
            recover(tmp_path)
        flip(path, offset)
    assert recover(tmp_path)[2] == owner.events


def test_a_flipped_bit_in_a_closed_file_is_met_when_it_is_read_and_the_rest_stays_readable_K03(tmp_path: Path) -> None:
    owner = Owner()
    write(tmp_path, [*owner.opening(), *(owner.put() for _ in range(3)), owner.base(), owner.put()])
    path = segments(tmp_path)[-2]
    first, last = owner.events[1][0], owner.events[-1][0]
    flip(path, path.stat().st_size - 1)
    log = LocalLog(tmp_path, LIMIT, boot="1")
    try:
        partition = log.open(PARTITION)
        assert as_pairs(partition.recover().records) == owner.events[-1:]
        assert len(partition.read(first, LIMIT).frames) == 1
        with pytest.raises(CorruptLog, match=path.name):
            partition.read(first + 1, LIMIT)
        assert partition.read(last - 1, LIMIT).end == last
    finally:
        log.close()


def test_what_stands_behind_a_damaged_record_is_read_by_whoever_asks_for_it_K03(tmp_path: Path) -> None:
    owner = Owner()
    write(tmp_path, [*owner.opening(), *(owner.put(bytes(100)) for _ in range(4)), owner.base(), owner.put()])
    path = segments(tmp_path)[-2]
    first, damaged, behind = (owner.events[at] for at in (-5, -4, -3))
    flip(path, path.stat().st_size - 2 * len(behind[1]) - 10)
    log = LocalLog(tmp_path, LIMIT, boot="1")
    try:
        partition = log.open(PARTITION)
        for _ in partition.recover().records:
            pass
        with pytest.raises(CorruptLog, match=path.name) as caught:
            partition.read(first[0], LIMIT)
        assert caught.value.position == first[0]
        batch = partition.read(damaged[0], LIMIT)
        assert [bytes(frame) for frame in batch.frames] == [frame for _, frame in owner.events[-3:]]
    finally:
        log.close()


def test_a_pickle_in_the_place_of_a_record_is_refused_and_never_run_O01(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    evil = b"cos\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR."
    owner = Owner()
    write(tmp_path / "log", [*owner.opening(), owner.put(), owner.put(bytes(200))])
    path = segments(tmp_path / "log")[-1]
    whole = path.read_bytes()
    path.write_bytes(whole + evil)
    recovered, _, read = recover(tmp_path / "log")
    assert f"{len(evil)} bytes from offset {len(whole)} on" in recovered.cut
    assert read == owner.events
    change(path, len(whole) - sum(len(frame) for _, frame in owner.events[-2:]), evil)
    with pytest.raises(CorruptLog, match=path.name):
        recover(tmp_path / "log")
    assert not canary.exists()


def test_a_record_of_a_newer_format_is_refused_with_both_numbers_and_never_cut_O03(tmp_path: Path) -> None:
    owner = Owner()
    write(tmp_path, [*owner.opening(), owner.put()])
    path = segments(tmp_path)[-1]
    size = path.stat().st_size
    change(path, size - len(owner.events[-1][1]) + 2, b"\x02")
    with pytest.raises(CorruptLog, match=r"format 2, this reader knows format 1.*Upgrade"):
        recover(tmp_path)
    assert path.stat().st_size == size


def test_a_value_that_holds_a_copy_of_an_older_event_does_not_look_like_a_record_behind_the_damage(
    tmp_path: Path,
) -> None:
    owner = Owner()
    write(tmp_path, [*owner.opening(), owner.put(), owner.put()])
    copy = owner.events[1][1]
    torn = make_frame(Note(), owner.at + 1, owner.nonce, bytes(100) + copy + bytes(100))
    torn[3] ^= 0xFF
    path = segments(tmp_path)[-1]
    path.write_bytes(path.read_bytes() + torn)
    recovered, _, read = recover(tmp_path)
    assert str(len(torn)) in recovered.cut and read == owner.events


def test_a_hole_that_a_power_failure_left_behind_the_last_sync_is_cut_and_in_one_boot_is_damage(tmp_path: Path) -> None:
    owner = Owner()
    disk = FaultyDisk(tmp_path / "log")
    log = LocalLog(tmp_path / "log", LIMIT, boot="1", disk=disk)
    partition = log.open(PARTITION)
    partition.recover()
    append_all(partition, [*owner.opening(), owner.put()])
    partition.sync()
    append_all(partition, [owner.put(), owner.put()])
    disk.kill()
    path = segments(tmp_path / "log")[-1]
    flip(path, path.stat().st_size - len(owner.events[-1][1]) - 1)
    with pytest.raises(CorruptLog):
        recover(tmp_path / "log", boot="1")
    recovered, _, read = recover(tmp_path / "log", boot="2")
    assert read == owner.events[:-2] and recovered.cut


@pytest.mark.parametrize("header", ["none", "torn", "whole"])
def test_a_file_that_no_later_one_continues_is_removed(tmp_path: Path, header: str) -> None:
    """Its folder could not be synced, so another took its place; power failed, and its removal was undone."""
    owner = Owner()
    disk = FaultyDisk(tmp_path)
    log = LocalLog(tmp_path, LIMIT, boot="1", disk=disk)
    partition = log.open(PARTITION)
    partition.recover()
    append_all(partition, [*owner.opening(), owner.put()])
    partition.sync()
    before = segments(tmp_path)
    disk.fail("sync_folder", name="")
    append_all(partition, [owner.base(), owner.put()])
    log.close()
    newest = segments(tmp_path)[-1]
    left = newest.with_name("00000003.segment")
    assert before[-1].name < left.name < newest.name and not left.exists()
    content = {"none": b"", "torn": newest.read_bytes()[:40], "whole": before[-1].read_bytes()}[header]
    left.write_bytes(content)
    if header == "whole":
        change(left, 0, Header(PARTITION, 3, 2, HEADER_NBYTES, BEGINNING, False).encode())
    recovered, _, read = recover(tmp_path, boot="2")
    assert read == owner.events
    assert left.name in recovered.cut and not left.exists()


def test_damage_before_the_last_sync_is_damage_after_a_power_failure_too(tmp_path: Path) -> None:
    owner = Owner()
    write(tmp_path, [*owner.opening(), owner.put(), owner.put()])
    path = segments(tmp_path)[-1]
    flip(path, path.stat().st_size - len(owner.events[-1][1]) - 1)
    with pytest.raises(CorruptLog):
        recover(tmp_path, boot="2")


def test_a_missing_file_in_the_middle_is_named(tmp_path: Path) -> None:
    owner = Owner()
    write(tmp_path, [*owner.opening(), owner.base(), owner.put(), owner.base()])
    missing = segments(tmp_path)[-2]
    missing.unlink()
    with pytest.raises(CorruptLog, match=missing.name):
        recover(tmp_path)


def test_the_rest_of_a_cut_that_was_not_finished_is_removed(tmp_path: Path) -> None:
    owner = Owner()
    disk = FaultyDisk(tmp_path)
    log = LocalLog(tmp_path, LIMIT, boot="1", disk=disk)
    partition = log.open(PARTITION)
    partition.recover()
    append_all(partition, [*owner.opening(), owner.put()])
    partition.sync()
    disk.fail("sync")
    append_all(partition, [owner.put()])
    partition.sync()
    append_all(partition, [owner.base(), owner.put()])
    log.close()
    first, based, continued, newest = segments(tmp_path)
    first.unlink()
    based.unlink()
    assert continued.exists(), "it begins with no base, so nothing can be read from it alone"
    _, _, read = recover(tmp_path)
    assert read == owner.events[-1:]
    assert segments(tmp_path) == [newest]


def test_indices_that_are_damaged_or_missing_are_made_again(tmp_path: Path) -> None:
    owner = Owner()
    frames = [*owner.opening(), *(owner.put(bytes(30_000)) for _ in range(20)), owner.base(), owner.put()]
    write(tmp_path, frames)
    (index,) = [path for path in partition_folder(tmp_path, PARTITION).glob("*.index") if path.stat().st_size > 100]
    good = index.read_bytes()
    for bad in (good[:-1], b"", good[:40] + bytes([good[40] ^ 1]) + good[41:], None, good + good[-28:]):
        index.unlink()
        if bad is not None:
            index.write_bytes(bad)
        assert recover(tmp_path, max_bytes=1)[2] == owner.events
        assert index.read_bytes() == good


def test_opening_reads_no_more_than_the_newest_base_and_what_follows(tmp_path: Path) -> None:
    owner = Owner()
    write(tmp_path, [*owner.opening(), owner.put(), owner.base(b"newest"), owner.put()])
    for path in segments(tmp_path)[:-1]:
        change(path, HEADER_NBYTES, bytes(64))
    log = LocalLog(tmp_path, LIMIT, boot="1")
    try:
        recovered = log.open(PARTITION).recover()
        assert recovered.base is not None and bytes(recovered.base.bulk) == b"newest"
        assert as_pairs(recovered.records) == owner.events[-1:]
    finally:
        log.close()


def test_the_next_owner_appends_behind_what_is_kept(tmp_path: Path) -> None:
    owner = Owner()
    write(tmp_path, [*owner.opening(), owner.put(), owner.put()])
    path = segments(tmp_path)[-1]
    path.write_bytes(path.read_bytes()[:-3])
    recovered, _, _ = recover(tmp_path)
    kept = owner.events[:-1]
    owner.continue_from(kept, recovered.last_claim)
    write(tmp_path, [*owner.opening(), owner.put()])
    _, behind, read = recover(tmp_path)
    assert read == owner.events and behind == owner.events[-1:]
    assert owner.at == position(2, 1)


def test_a_cut_log_says_where_it_begins_after_a_restart(tmp_path: Path) -> None:
    owner = Owner()
    log = LocalLog(tmp_path, LIMIT, boot="1")
    partition = log.open(PARTITION)
    partition.recover()
    append_all(partition, [*owner.opening(), owner.put(), owner.base(), owner.put()])
    start = owner.events[1][0]
    partition.sync()
    assert partition.cut(owner.at) == start
    nbytes = log.nbytes
    log.close()
    log = LocalLog(tmp_path, LIMIT, boot="1")
    try:
        assert log.nbytes == nbytes
        partition = log.open(PARTITION)
        partition.recover()
        assert (partition.start, log.nbytes) == (start, nbytes)
        with pytest.raises(LogTruncated):
            partition.read(start - 1, 1)
    finally:
        log.close()


@pytest.mark.parametrize("seed", range(40))
def test_random_damage_never_gives_a_record_that_was_not_written(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    owner = Owner()
    write(
        tmp_path, [*owner.opening(), *(owner.put(chance.randbytes(100)) for _ in range(8)), owner.base(), owner.put()]
    )
    path = chance.choice(segments(tmp_path))
    data = bytearray(path.read_bytes())
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(data))
        data[at : at + 4] = struct.pack("<I", chance.getrandbits(32))[: len(data) - at]
    path.write_bytes(data)
    try:
        read = recover(tmp_path)[2]
    except CorruptLog as error:
        assert path.name in str(error) or "-0/" in str(error)
    else:
        assert read == owner.events[: len(read)]


def damaged_meta(folder: Path, kind: str) -> Path:
    """A log of `__meta` whose last durable record is damaged. Returns its file."""
    log, owner = LocalLog(folder, LIMIT, boot="1"), Owner(META)
    try:
        partition = log.open(META)
        partition.recover()
        append_all(partition, [*owner.opening(), owner.put(), owner.put()])
    finally:
        log.close()
    path = max(partition_folder(folder, META).glob("*.segment"))
    size = path.stat().st_size
    if kind == "flipped":
        flip(path, size - 7)
    elif kind == "header":
        flip(path, 0)
    else:
        path.write_bytes(path.read_bytes()[: -7 if kind == "torn" else -len(owner.events[-1][1])])
    return path


@pytest.mark.parametrize("kind", ["flipped", "torn", "gone", "header"])
def test_topics_that_were_durable_are_never_cut_K02(tmp_path: Path, kind: str) -> None:
    path = damaged_meta(tmp_path, kind)
    before = path.read_bytes()
    log = LocalLog(tmp_path, LIMIT, boot="2")
    try:
        with pytest.raises(CorruptLog, match="durable"):
            log.open(META).recover()
    finally:
        log.close()
    assert path.read_bytes() == before
