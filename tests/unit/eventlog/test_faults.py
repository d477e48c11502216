"""Writes and syncs that fail while the owner lives."""

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paramstream.consistency.position import START, position
from paramstream.errors import CorruptLog, LogTruncated, StorageFull
from paramstream.eventlog.local import LocalLog, partition_folder
from paramstream.eventlog.log import Recovered
from paramstream.eventlog.partition import LocalPartition
from paramstream.events.codec import read_prefix
from records.disk import FaultyDisk
from records.frames import PARTITION, Owner, append_all, as_pairs, read_all
from simulation.files import Fault, Killed, SimFiles

LIMIT = 1 << 20


class Broker:
    """A log on a disk that fails when it is told to, with one open tenure whose first records are synced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = FaultyDisk(folder)
        self.owner = Owner()
        self.log, self.partition = self.open()
        append_all(self.partition, [*self.owner.opening(), self.owner.put()])
        self.partition.sync()

    def open(self, boot: str = "1") -> tuple[LocalLog, LocalPartition]:
        log = LocalLog(self.folder, LIMIT, boot=boot, disk=self.disk)
        partition = log.open(PARTITION)
        self.recovered = partition.recover()
        return log, partition

    def restart(self, boot: str = "1") -> list[tuple[int, bytes]]:
        """After a kill: what the next owner finds."""
        self.disk.kill()
        self.log, self.partition = self.open(boot)
        return read_all(self.partition)

    def segments(self) -> list[Path]:
        return sorted(partition_folder(self.folder, PARTITION).glob("*.segment"))


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


def test_after_a_failed_sync_the_file_ends_at_the_last_one_and_the_rest_goes_to_a_new_one(broker: Broker) -> None:
    before = broker.segments()
    synced_nbytes = before[-1].stat().st_size
    append_all(broker.partition, [broker.owner.put(), broker.owner.put()])
    broker.disk.fail("sync")
    assert broker.partition.sync() == broker.owner.at
    assert broker.log.failed_writes == 1
    assert before[-1].stat().st_size == synced_nbytes
    assert len(broker.segments()) == len(before) + 1
    assert read_all(broker.partition) == broker.owner.events
    append_all(broker.partition, [broker.owner.put()])
    assert broker.partition.sync() == broker.owner.at
    assert broker.restart() == broker.owner.events
    assert broker.log.failed_writes == 1, "the count is kept"
    assert as_pairs(broker.recovered.records) == broker.owner.events[1:]


@pytest.mark.parametrize("partly", [0, 1, 63, 64, 100])
def test_a_failed_write_is_repeated_in_a_new_file(broker: Broker, partly: int) -> None:
    append_all(broker.partition, [broker.owner.put()])
    broker.disk.fail("write", partly=partly)
    append_all(broker.partition, [broker.owner.put(), broker.owner.put()])
    assert broker.log.failed_writes == 1
    assert read_all(broker.partition) == broker.owner.events
    assert broker.partition.nbytes == sum(path.stat().st_size - 64 for path in broker.segments())
    assert broker.restart() == broker.owner.events


@pytest.mark.parametrize("operation", ["create", "write", "sync", "sync_folder"])
def test_a_base_whose_file_cannot_be_made_is_repeated_in_another(broker: Broker, operation: str) -> None:
    append_all(broker.partition, [broker.owner.put()])
    broker.disk.fail(operation, name="-0" if operation == "sync_folder" else ".segment")
    append_all(broker.partition, [broker.owner.base(b"new"), broker.owner.put()])
    assert broker.log.failed_writes == 1
    assert read_all(broker.partition) == broker.owner.events
    assert broker.restart() == broker.owner.events
    assert broker.recovered.base is not None and bytes(broker.recovered.base.bulk) == b"new"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_told_as_such_and_stops_the_partition_with_all_that_was_synced(
    broker: Broker, number: int
) -> None:
    synced = list(broker.owner.events)
    append_all(broker.partition, [broker.owner.put()])
    broker.disk.fail("write", number, times=3)
    for _ in range(2):
        with pytest.raises(StorageFull, match=f"no space is left .* {os.strerror(number)}"):
            broker.partition.append(broker.owner.put())
    with pytest.raises(StorageFull):
        broker.partition.sync()
    found = broker.restart()
    assert found[: len(synced)] == synced
    assert found == broker.owner.events[: len(found)]
    assert broker.partition.sync() == found[-1][0]


def test_a_partition_that_a_full_disk_stopped_is_opened_anew_once_there_is_room(broker: Broker) -> None:
    synced = list(broker.owner.events)
    broker.disk.fail("write", errno.ENOSPC, times=2)
    broker.disk.fail("write", errno.ENOSPC, name="room", times=2)
    with pytest.raises(StorageFull):
        broker.partition.append(broker.owner.put())
    tally = broker.log.nbytes
    for _ in range(2):
        with pytest.raises(StorageFull, match="no space is left to go on"):
            broker.log.open(PARTITION)
        assert read_all(broker.partition) == synced, "readers read on"
    anew = broker.log.open(PARTITION)
    assert anew is not broker.partition and broker.log.open(PARTITION) is anew
    assert as_pairs(anew.recover().records) == synced[1:] and broker.log.nbytes == tally
    assert broker.partition.read(0, 1 << 20).frames == [], "the old one finds nothing, and fails nobody"
    assert {path.name for path in broker.folder.iterdir()}.isdisjoint({"room"})


def test_a_disk_that_fails_twice_stops_the_partition(broker: Broker) -> None:
    synced = list(broker.owner.events)
    append_all(broker.partition, [broker.owner.put()])
    broker.disk.fail("sync", times=2)
    with pytest.raises(CorruptLog, match="Input/output error"):
        broker.partition.sync()
    with pytest.raises(CorruptLog):
        broker.partition.append(broker.owner.put())
    assert broker.log.failed_writes == 2
    assert broker.restart() == synced, "what no successful sync covers does not count in this boot"
    assert "no successful sync" in broker.recovered.cut


def test_nothing_is_cut_where_the_failure_cannot_be_counted_first(broker: Broker) -> None:
    append_all(broker.partition, [broker.owner.put()])
    sizes = [path.stat().st_size for path in broker.segments()]
    broker.disk.fail("sync")
    broker.disk.fail("sync", name="failures")
    with pytest.raises(CorruptLog, match="failures"):
        broker.partition.sync()
    with pytest.raises(CorruptLog, match="failures"):
        broker.partition.append(broker.owner.put())
    assert [path.stat().st_size for path in broker.segments()] == sizes


def test_a_failure_that_a_kill_followed_at_once_leaves_only_what_was_synced(broker: Broker) -> None:
    synced = list(broker.owner.events)
    append_all(broker.partition, [broker.owner.put()])
    broker.disk.fail("sync")
    broker.disk.fail("truncate")
    with pytest.raises(CorruptLog):
        broker.partition.sync()
    assert broker.restart() == synced


def test_a_failed_write_of_one_partition_costs_another_nothing(broker: Broker) -> None:
    other, owner = broker.log.open((5, 1)), Owner((5, 1))
    other.recover()
    append_all(other, owner.opening())
    other.sync()
    append_all(other, [owner.put()])
    append_all(broker.partition, [broker.owner.put()])
    broker.disk.fail("sync")
    broker.partition.sync()
    broker.restart()
    other = broker.log.open((5, 1))
    other.recover()
    assert read_all(other) == owner.events


def test_one_sync_serves_all_that_was_appended_before_it(broker: Broker) -> None:
    append_all(broker.partition, [broker.owner.put() for _ in range(50)])
    before = broker.disk.syncs
    broker.partition.sync()
    broker.partition.sync()
    assert broker.disk.syncs == before + 1


def test_what_was_not_synced_is_gone_after_a_power_failure_and_no_more(broker: Broker) -> None:
    synced = list(broker.owner.events)
    append_all(broker.partition, [broker.owner.put(bytes(5000)) for _ in range(5)])
    given = list(broker.owner.events)
    broker.disk.power_failure(random.Random(3))
    found = broker.restart(boot="2")
    assert found[: len(synced)] == synced
    assert found == given[: len(found)]


def test_appending_syncing_reading_and_cutting_go_on_side_by_side(tmp_path: Path) -> None:
    log = LocalLog(tmp_path, 16 * 40_000)
    partition, owner = log.open(PARTITION), Owner()
    partition.recover()
    append_all(partition, owner.opening())
    done = threading.Event()
    failures: list[BaseException] = []
    durable = 0

    def sync() -> None:
        nonlocal durable
        try:
            while not done.is_set():
                durable = partition.sync()
                partition.cut(durable - 100)
        except BaseException as error:  # noqa: BLE001 — handed to the test's own thread
            failures.append(error)

    def read() -> None:
        try:
            at = START
            while not done.is_set() or at < owner.at:
                try:
                    batch = partition.read(at, 20_000)
                except LogTruncated:
                    at = partition.start
                    continue
                found = [read_prefix(frame).position for frame in batch.frames]
                assert found == list(range(max(at + 1, position(1, 0)), batch.end + 1))[: len(found)]
                assert batch.end == (found[-1] if found else at)
                at = batch.end
        except BaseException as error:  # noqa: BLE001 — handed to the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=target) for target in (sync, read)]
    for thread in threads:
        thread.start()
    try:
        for number in range(3000):
            partition.append(owner.put(bytes(number % 2000)))
            if partition.wants_base:
                partition.append(owner.base())
    finally:
        done.set()
        for thread in threads:
            thread.join(30)
    assert partition.sync() == owner.at
    held = [pair for pair in owner.events if pair[0] > partition.start]
    assert read_all(partition) == held
    assert partition.start > 0
    log.close()
    assert failures == []


def test_what_recovery_kept_outlives_a_power_failure(broker: Broker) -> None:
    append_all(broker.partition, [broker.owner.put(bytes(5000)) for _ in range(5)])
    assert broker.restart() == broker.owner.events
    for seed in range(5):
        broker.disk.power_failure(random.Random(seed))
        assert broker.restart(boot=str(2 + seed)) == broker.owner.events
        assert broker.recovered.cut == ""


@pytest.mark.parametrize("seed", range(10))
def test_what_a_failed_sync_of_a_recovery_did_not_store_is_written_again_by_the_next_one(seed: int) -> None:
    """Else the next sync would succeed, and store nothing: the system takes for stored what it failed to store."""
    files, chance, owner = SimFiles(), random.Random(seed), Owner()

    def recovered(boot: str = "1") -> tuple[LocalPartition, Recovered]:
        partition = LocalLog(Path("/log"), LIMIT, boot=boot, disk=files).open(PARTITION)
        return partition, partition.recover()

    partition, _ = recovered()
    append_all(partition, [*owner.opening(), owner.put()])
    partition.sync()
    append_all(partition, [owner.put(bytes(600)) for _ in range(3)])
    files.kill()
    files.faults.append(Fault("sync", errno.EIO, 0, 1, chance))
    with pytest.raises(CorruptLog, match="cannot recover"):
        recovered()
    files.kill()
    partition, found = recovered()
    assert owner.events[:1] + as_pairs(found.records) == owner.events
    owner.continue_from(owner.events, found.last_claim)
    append_all(partition, [*owner.opening(), owner.put()])
    partition.sync()
    files.fail_power(chance)
    partition, _ = recovered("2")
    assert read_all(partition) == owner.events


@pytest.mark.parametrize("seed", range(10))
def test_what_recovery_kept_is_stored_though_whoever_met_a_failed_sync_was_killed_at_once(seed: int) -> None:
    files, chance, owner = SimFiles(), random.Random(seed), Owner()
    partition = LocalLog(Path("/log"), LIMIT, boot="1", disk=files).open(PARTITION)
    partition.recover()
    append_all(partition, [*owner.opening(), owner.put()])
    partition.sync()
    append_all(partition, [owner.put(bytes(600)) for _ in range(3)])
    files.faults.append(Fault("sync", errno.EIO, 0, 1, chance))
    files.kill_in(2, chance)
    with pytest.raises(Killed):
        partition.sync()
    files.kill()
    if chance.random() < 0.3:
        files.forget_pages()
    partition = LocalLog(Path("/log"), LIMIT, boot="1", disk=files).open(PARTITION)
    try:
        kept = as_pairs(partition.recover().records)
    except CorruptLog as error:
        assert "a whole record stands behind it" in str(error), "memory was short, and the hole is seen"
        return
    files.fail_power(chance)
    partition = LocalLog(Path("/log"), LIMIT, boot="2", disk=files).open(PARTITION)
    assert as_pairs(partition.recover().records) == kept


@pytest.mark.parametrize("seed", range(30))
def test_a_file_that_no_sync_covered_when_a_second_one_failed_is_removed_though_its_header_is_not_there(
    seed: int,
) -> None:
    files, chance, owner = SimFiles(), random.Random(seed), Owner()
    partition = LocalLog(Path("/log"), LIMIT, boot="1", disk=files).open(PARTITION)
    partition.recover()
    append_all(partition, [*owner.opening(), owner.put()])
    partition.sync()
    stands = list(owner.events)
    append_all(partition, [owner.put() for _ in range(40)])
    # Of the file that ends, and, past that of the count of failures, of the file to which the rest goes.
    files.faults += [Fault("sync", errno.EIO, 0, 1, chance), Fault("sync", errno.EIO, 1, 1, chance)]
    with pytest.raises(CorruptLog, match="cannot write"):
        partition.sync()
    files.kill()
    files.forget_pages()
    log = LocalLog(Path("/log"), LIMIT, boot="1", disk=files)
    before = log.failed_writes
    partition = log.open(PARTITION)
    partition.recover()
    assert read_all(partition) == stands
    assert log.failed_writes > before, "what was accepted and is cut is counted"


@pytest.mark.parametrize("seed", range(30))
def test_a_file_whose_first_sync_failed_is_removed_though_its_header_is_not_there(seed: int) -> None:
    files, chance, owner = SimFiles(), random.Random(seed), Owner()
    partition = LocalLog(Path("/log"), LIMIT, boot="1", disk=files).open(PARTITION)
    partition.recover()
    append_all(partition, [*owner.opening(), owner.put()])
    partition.sync()
    stands = list(owner.events)
    append_all(partition, [owner.base(), *(owner.put() for _ in range(40))])
    files.faults.append(Fault("sync", errno.EIO, 0, 1, chance))
    files.kill_in(5, chance)  # The sync, the end, the count and its sync; then the file would be removed.
    with pytest.raises(Killed):
        partition.sync()
    files.kill()
    files.forget_pages()
    partition = LocalLog(Path("/log"), LIMIT, boot="1", disk=files).open(PARTITION)
    partition.recover()
    assert read_all(partition) == stands


@pytest.mark.parametrize("seed", range(12))
def test_what_the_log_refused_does_not_stand_after_a_power_failure(seed: int) -> None:
    files, chance, owner = SimFiles(), random.Random(seed), Owner()
    partition = LocalLog(Path("/log"), LIMIT, boot="1", disk=files).open(PARTITION)
    partition.recover()
    append_all(partition, [*owner.opening(), owner.put()])
    partition.sync()
    append_all(partition, [owner.put()])
    # The first sync is of the count of failures, the second one of what goes to a new file.
    files.faults += [Fault("write", errno.EIO, 0, 1, chance), Fault("sync", errno.EIO, 1, 1, chance)]
    refused = owner.put()
    with pytest.raises(CorruptLog, match="cannot write"):
        partition.append(refused)
    files.fail_power(chance)
    partition = LocalLog(Path("/log"), LIMIT, boot="2", disk=files).open(PARTITION)
    assert read_prefix(refused).position not in [at for at, _ in as_pairs(partition.recover().records)]


def test_a_count_that_could_not_be_raised_is_raised_before_anything_is_cut(broker: Broker) -> None:
    stands = list(broker.owner.events)
    append_all(broker.partition, [broker.owner.put()])
    broker.disk.fail("sync")
    broker.disk.fail("write", name="failures")
    with pytest.raises(CorruptLog, match="failures"):
        broker.partition.sync()
    assert broker.restart() == stands
    assert broker.log.failed_writes == 1, "else what was seen would be sent again"


def test_a_log_is_not_cut_before_a_base_that_is_not_durable(broker: Broker) -> None:
    append_all(broker.partition, [broker.owner.put()])
    opening = broker.partition.cut(broker.owner.at)
    append_all(broker.partition, [broker.owner.base(), broker.owner.put()])
    assert broker.partition.cut(broker.owner.at) == opening
    broker.partition.sync()
    assert broker.partition.cut(broker.owner.at) == broker.owner.at - 1


def test_what_was_cut_is_removed_in_order_also_where_a_removal_fails_at_first(broker: Broker) -> None:
    def begin_segment() -> Path:
        append_all(broker.partition, [broker.owner.base(), broker.owner.put()])
        broker.partition.sync()
        return broker.segments()[-1]

    first, second = broker.segments()[-1], begin_segment()
    broker.disk.fail("unlink")
    begin_segment()
    second_start = broker.owner.at
    with pytest.raises(CorruptLog, match="cannot remove"):
        broker.partition.cut(second_start)
    assert broker.partition.start == second_start - 1 and first.exists()
    last = begin_segment()
    broker.disk.fail("unlink")
    with pytest.raises(CorruptLog, match="cannot remove"):
        broker.partition.cut(broker.owner.at)
    assert first.exists() and second.exists(), "else what is left would not hang together"
    assert broker.partition.cut(broker.owner.at) == broker.owner.at - 1
    assert broker.segments() == [last]
    assert broker.partition.nbytes == last.stat().st_size - 64
    assert broker.restart() == broker.owner.events[-1:]


class MeanwhileDisk(FaultyDisk):
    """Does something just before a file is opened for reading."""

    meanwhile: Callable[[], object] | None = None

    def open(self, path: Path, *, write: bool = False) -> int:
        if self.meanwhile is not None and not write:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return super().open(path, write=write)


@pytest.fixture
def interrupted(tmp_path: Path) -> Iterator[tuple[MeanwhileDisk, LocalPartition, Owner]]:
    disk, owner = MeanwhileDisk(tmp_path), Owner()
    log = LocalLog(tmp_path, LIMIT, disk=disk)
    partition = log.open(PARTITION)
    partition.recover()
    append_all(partition, [*owner.opening(), owner.put(), owner.base(), owner.put()])
    partition.sync()
    yield disk, partition, owner
    log.close()


def test_a_read_that_meets_a_cut_says_that_the_log_begins_later(
    interrupted: tuple[MeanwhileDisk, LocalPartition, Owner],
) -> None:
    disk, partition, owner = interrupted
    disk.meanwhile = lambda: partition.cut(owner.at)
    with pytest.raises(LogTruncated):
        partition.read(START, LIMIT)


def test_a_read_that_meets_a_failed_sync_reads_again(
    interrupted: tuple[MeanwhileDisk, LocalPartition, Owner],
) -> None:
    disk, partition, owner = interrupted
    append_all(partition, [owner.put(), owner.put()])
    disk.fail("sync")
    disk.meanwhile = partition.sync
    assert read_all(partition, after=owner.at - 2) == owner.events[-2:]


def test_a_file_that_somebody_removed_is_named(
    interrupted: tuple[MeanwhileDisk, LocalPartition, Owner], tmp_path: Path
) -> None:
    _, partition, _ = interrupted
    gone = min(partition_folder(tmp_path, PARTITION).glob("*.segment"))
    gone.unlink()
    with pytest.raises(CorruptLog, match=gone.name):
        partition.read(START, LIMIT)


def test_recovered_records_are_those_of_the_recovery_even_if_they_are_read_later(broker: Broker) -> None:
    given = list(broker.owner.events)
    broker.disk.kill()
    log, partition = broker.open()
    append_all(partition, [broker.owner.claim(), broker.owner.open_epoch()])
    assert as_pairs(broker.recovered.records) == given[1:]
    log.close()
