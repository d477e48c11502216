"""Reading a log's folder beside its owner, or without one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from paramstream.consistency.vector import META, PartitionId
from paramstream.errors import BindFailed, CorruptLog, LogTruncated
from paramstream.eventlog.files import Disk
from paramstream.eventlog.local import LocalLog, partition_folder
from paramstream.eventlog.partition import LocalPartition
from paramstream.eventlog.reading import ATTEMPTS, FolderReader
from paramstream.events.kinds import Kind
from records.frames import PARTITION, Owner, append_all, as_pairs


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LocalLog]:
    log = LocalLog(tmp_path)
    yield log
    log.close()


def opened(log: LocalLog) -> tuple[LocalPartition, Owner]:
    partition, owner = log.open(PARTITION), Owner()
    partition.recover()
    append_all(partition, owner.opening())
    partition.sync()
    return partition, owner


def newest(folder: Path) -> Path:
    return max(partition_folder(folder, PARTITION).glob("*.segment"))


def test_beside_its_owner_a_log_is_read_to_the_end_that_was_durable(log: LocalLog, tmp_path: Path) -> None:
    partition, owner = opened(log)
    append_all(partition, [owner.put()])
    partition.sync()
    durable = list(owner.events)
    append_all(partition, [owner.put()])
    with FolderReader(tmp_path) as reader:
        assert reader.owner_lives and reader.partitions() == [PARTITION]
        read = reader.read(PARTITION)
        assert (read.base, read.start, read.torn) == (None, 0, "")
        assert as_pairs(read.records) == durable
        partition.sync()
        assert as_pairs(reader.read(PARTITION).records) == owner.events


def test_what_the_owner_cuts_meanwhile_stays_readable(log: LocalLog, tmp_path: Path) -> None:
    partition, owner = opened(log)
    append_all(partition, [owner.put(), owner.base(b"next"), owner.put()])
    partition.sync()
    with FolderReader(tmp_path) as reader:
        read = reader.read(PARTITION)
        partition.cut(owner.at)
        assert as_pairs(read.records) == owner.events
        later = reader.read(PARTITION)
        assert later.base is not None and bytes(later.base.bulk) == b"next"
        assert later.start == partition.start
        assert as_pairs(later.records) == owner.events[-1:]


@pytest.mark.parametrize("owned", [True, False])
def test_reading_begins_behind_a_position_and_with_the_newest_base(log: LocalLog, tmp_path: Path, owned: bool) -> None:
    partition, owner = opened(log)
    append_all(partition, [owner.put() for _ in range(500)])
    append_all(partition, [owner.base(), *(owner.put() for _ in range(500)), owner.base(b"newest"), owner.put()])
    partition.sync()
    if not owned:
        log.close()
    with FolderReader(tmp_path) as reader:
        whole = as_pairs(reader.read(PARTITION).records)
        assert whole == owner.events
        for after in (whole[10][0], whole[700][0], whole[499][0], whole[-2][0], whole[-1][0]):
            read = reader.read(PARTITION, after)
            found = as_pairs(read.records)
            assert [pair for pair in found if pair[0] > after] == [pair for pair in whole if pair[0] > after]
            assert read.base is None and read.start == 0
        newest_read = reader.read_newest(PARTITION)
        assert newest_read.base is not None and bytes(newest_read.base.bulk) == b"newest"
        assert (newest_read.start, as_pairs(newest_read.records)) == (0, owner.events[-1:])


def test_a_newest_base_that_is_torn_is_passed_for_the_one_before(log: LocalLog, tmp_path: Path) -> None:
    partition, owner = opened(log)
    append_all(partition, [owner.put(), owner.base(b"whole"), owner.put(), owner.base(b"torn")])
    log.close()
    path = newest(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with FolderReader(tmp_path) as reader:
        read = reader.read_newest(PARTITION)
        assert read.base is not None and bytes(read.base.bulk) == b"whole"
        assert as_pairs(read.records) == owner.events[-1:]


def test_what_lies_before_the_start_is_not_read(log: LocalLog, tmp_path: Path) -> None:
    partition, owner = opened(log)
    append_all(partition, [owner.put(), owner.put(), owner.base(), owner.put()])
    partition.sync()
    first = owner.events[0][0]
    partition.cut(owner.at)
    with FolderReader(tmp_path) as reader, pytest.raises(LogTruncated) as caught:
        reader.read(PARTITION, first)
    assert caught.value.position == first


class CuttingDisk(Disk):
    """Lets the owner cut just before a file is opened."""

    def __init__(self, partition: LocalPartition, owner: Owner, times: int) -> None:
        self.partition = partition
        self.owner = owner
        self.times = times

    def open(self, path: Path, *, write: bool = False) -> int:
        if path.suffix == ".segment" and self.times:
            self.times -= 1
            append_all(self.partition, [self.owner.base(), self.owner.put()])
            self.partition.sync()
            self.partition.cut(self.owner.at)
        return super().open(path, write=write)


def test_reading_begins_again_from_the_newer_base_where_a_file_is_gone(log: LocalLog, tmp_path: Path) -> None:
    partition, owner = opened(log)
    with FolderReader(tmp_path, CuttingDisk(partition, owner, ATTEMPTS - 1)) as reader:
        read = reader.read(PARTITION)
        assert read.start == partition.start
        assert as_pairs(read.records) == owner.events[-1:]


def test_an_owner_that_cuts_each_time_ends_in_log_truncated(log: LocalLog, tmp_path: Path) -> None:
    partition, owner = opened(log)
    with FolderReader(tmp_path, CuttingDisk(partition, owner, ATTEMPTS)) as reader, pytest.raises(LogTruncated):
        reader.read(PARTITION)


def test_without_an_owner_a_log_is_read_to_its_last_whole_record(log: LocalLog, tmp_path: Path) -> None:
    partition, owner = opened(log)
    append_all(partition, [owner.put(), owner.base(), owner.put(), owner.put()])
    log.close()
    path = newest(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with FolderReader(tmp_path) as reader:
        read = reader.read(PARTITION)
        assert str(path) in read.torn
        records = list(read.records)
        assert as_pairs(records) == owner.events[:-1]
        assert [frame.kind for frame in records].count(Kind.BASE) == 2
    with FolderReader(tmp_path) as reader:
        assert not reader.owner_lives


def test_damage_is_named_where_reading_meets_it(log: LocalLog, tmp_path: Path) -> None:
    partition, owner = opened(log)
    append_all(partition, [owner.put(), owner.put(), owner.put()])
    log.close()
    path = newest(tmp_path)
    data = bytearray(path.read_bytes())
    data[-len(owner.events[-1][1]) - 1] ^= 1
    path.write_bytes(data)
    found: list[int] = []
    with FolderReader(tmp_path) as reader, pytest.raises(CorruptLog, match=path.name):
        found.extend(frame.position for frame in reader.read(PARTITION).records)
    opening = owner.events[0][0]
    assert found == [opening, opening, owner.events[1][0]], "the epoch record, its base and the first event"


def test_a_partition_that_holds_nothing_reads_as_nothing(log: LocalLog, tmp_path: Path) -> None:
    log.open(PARTITION).recover()
    with FolderReader(tmp_path) as reader:
        assert reader.partitions() == []
        assert list(reader.read(PARTITION).records) == []


def test_a_folder_that_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptLog, match="no log"):
        FolderReader(tmp_path / "nothing")
    (tmp_path / "meta").write_text("paramstream log, format 1\n")
    with pytest.raises(BindFailed):
        FolderReader(tmp_path)


@pytest.mark.parametrize("partition_id", [PARTITION, META])
def test_what_was_durable_and_is_not_there_is_said_and_topics_are_never_missed_K03(
    tmp_path: Path, partition_id: PartitionId, caplog: pytest.LogCaptureFixture
) -> None:
    log, owner = LocalLog(tmp_path), Owner(partition_id)
    try:
        partition = log.open(partition_id)
        partition.recover()
        append_all(partition, [*owner.opening(), owner.put(), owner.put()])
    finally:
        log.close()
    path = max(partition_folder(tmp_path, partition_id).glob("*.segment"))
    data = path.read_bytes()
    path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    with FolderReader(tmp_path) as reader:
        if partition_id == META:
            with pytest.raises(CorruptLog, match="it was durable to"):
                reader.read(META)
            return
        read = reader.read(PARTITION)
        assert as_pairs(read.records) == owner.events[:-1] and str(path) in read.torn
    assert "lost what was durable" in caplog.text and str(path) in caplog.text
