"""What `verify` says of a log: what is whole, what is damaged and where; and it changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramstream.errors import CorruptLog
from paramstream.eventlog.local import LocalLog
from paramstream.eventlog.verifying import PartitionCheck, verify_log
from records.frames import PARTITION, Owner, append_all

VALUE = b"x" * 100


def write(folder: Path, *, segments: int = 2, events: int = 5) -> list[int]:
    """A log of one partition; returns the positions of its events."""
    log = LocalLog(folder)
    partition, owner = log.open(PARTITION), Owner()
    partition.recover()
    append_all(partition, [owner.claim(), owner.open_epoch()])
    for number in range(segments):
        append_all(partition, [owner.base()] if number else [])
        append_all(partition, [owner.put(VALUE) for _ in range(events)])
    log.close()
    return [at for at, _ in owner.events[1:]]


def checked(folder: Path) -> PartitionCheck:
    (check,) = verify_log(folder)
    return check


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.segment"))


def test_a_whole_log_is_counted_and_left_as_it_is(tmp_path: Path) -> None:
    positions = write(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    check = checked(tmp_path)
    assert (check.partition, check.files, check.first, check.last) == (PARTITION, 2, 0, positions[-1])
    assert check.records == len(positions) + 3 and not check.flaws and not check.torn
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_flipped_bit_is_named_with_its_place_and_the_records_behind_it_are_counted_K03(tmp_path: Path) -> None:
    positions = write(tmp_path)
    whole = checked(tmp_path)
    first = files(tmp_path)[0]
    data = first.read_bytes()
    at = data.find(VALUE, data.find(VALUE) + 1)
    first.write_bytes(data[: at - 1] + bytes([data[at - 1] ^ 1]) + data[at:])
    check = checked(tmp_path)
    (flaw,) = check.flaws
    assert flaw.path == first and flaw.offset is not None and 0 < flaw.offset < at and flaw.position in positions
    assert check.records == whole.records - 1 and check.last == positions[-1]


def test_a_torn_tail_is_no_damage(tmp_path: Path) -> None:
    positions = write(tmp_path)
    newest = files(tmp_path)[-1]
    data = newest.read_bytes()
    newest.write_bytes(data + data[-200:-7])
    check = checked(tmp_path)
    assert not check.flaws and str(newest) in check.torn and check.last == positions[-1]


@pytest.mark.parametrize("gone", [7, 200, 300])
def test_what_was_durable_and_is_torn_off_is_damage(tmp_path: Path, gone: int) -> None:
    positions = write(tmp_path)  # Each record has 200 bytes: half of one, a whole one, and more than that.
    newest = files(tmp_path)[-1]
    data = newest.read_bytes()
    newest.write_bytes(data[:-gone])
    check = checked(tmp_path)
    (flaw,) = check.flaws
    assert flaw.path == newest and flaw.offset == len(data) - (200 if gone <= 200 else 400) and not check.torn
    assert flaw.position == check.last == positions[-2 if gone <= 200 else -3]


def test_a_bit_that_was_flipped_in_the_last_record_is_damage_K03(tmp_path: Path) -> None:
    positions = write(tmp_path)
    newest = files(tmp_path)[-1]
    data = newest.read_bytes()
    newest.write_bytes(data[:-7] + bytes([data[-7] ^ 1]) + data[-6:])
    check = checked(tmp_path)
    (flaw,) = check.flaws
    assert flaw.path == newest and "it was durable" in flaw.problem and check.last == positions[-2]


def test_a_newest_file_that_is_missing_or_has_a_damaged_header_is_damage(tmp_path: Path) -> None:
    write(tmp_path)
    newest = files(tmp_path)[-1]
    data = newest.read_bytes()
    newest.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    assert [flaw.path for flaw in checked(tmp_path).flaws] == [newest]
    newest.unlink()
    assert [flaw.path for flaw in checked(tmp_path).flaws] == [newest]


def test_an_index_that_is_damaged_is_named_as_what_is_made_again(tmp_path: Path) -> None:
    write(tmp_path)
    assert not checked(tmp_path).remade
    (index,) = tmp_path.glob("*/*.index")
    data = index.read_bytes()
    index.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    check = checked(tmp_path)
    assert check.remade == (index,) and not check.flaws


def test_a_count_of_failures_that_no_owner_could_read_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "failures").write_bytes(bytes(1024))
    with pytest.raises(CorruptLog, match="failures"):
        list(verify_log(tmp_path))


def test_a_file_that_is_missing_from_the_middle_is_named(tmp_path: Path) -> None:
    write(tmp_path, segments=3)
    missing = files(tmp_path)[1]
    missing.unlink()
    assert any(missing.name in flaw.problem for flaw in checked(tmp_path).flaws)


def test_a_damaged_header_is_named_and_the_other_files_are_read(tmp_path: Path) -> None:
    positions = write(tmp_path)
    first = files(tmp_path)[0]
    data = first.read_bytes()
    first.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    check = checked(tmp_path)
    assert any(flaw.path == first and flaw.offset == 0 for flaw in check.flaws) and check.last == positions[-1]


def test_a_log_whose_owner_lives_is_read_to_what_is_durable(tmp_path: Path) -> None:
    log = LocalLog(tmp_path)
    try:
        partition, owner = log.open(PARTITION), Owner()
        partition.recover()
        append_all(partition, [*owner.opening(), owner.put()])
        durable = partition.sync()
        append_all(partition, [owner.put()])
        check = checked(tmp_path)
        assert check.last == durable == owner.at - 1 and not check.flaws and not check.torn
        append_all(partition, [owner.put()])
    finally:
        log.close()


def test_a_folder_that_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptLog, match="no log"):
        list(verify_log(tmp_path))
