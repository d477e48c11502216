"""A recovery that could not sync what it kept, and the next one, in the same boot, after memory was short."""

import errno
import random
from pathlib import Path

import pytest

from paramstream.errors import CorruptLog
from paramstream.eventlog.local import LocalLog, partition_folder
from paramstream.eventlog.segment import HEADER_NBYTES
from records.frames import PARTITION, Owner, append_all, read_all
from simulation.files import Fault, SimFiles

LOG = Path("/log")
LIMIT = 1 << 20


def opened(files: SimFiles, boot: str = "1") -> LocalLog:
    return LocalLog(LOG, LIMIT, boot=boot, disk=files)


def failed_recovery(files: SimFiles, chance: random.Random, *, new_file: bool, failures: int) -> tuple[Owner, int]:
    """A log that was killed with records under no sync, and whose next owner failed to sync them. Returns how many are durable."""
    owner = Owner()
    partition = opened(files).open(PARTITION)
    partition.recover()
    append_all(partition, [*owner.opening(), owner.put()])
    partition.sync()
    durable = len(owner.events)
    append_all(partition, [*([owner.base()] if new_file else []), *(owner.put(bytes(600)) for _ in range(4))])
    files.kill()
    files.faults.append(Fault("sync", errno.EIO, 0, failures, chance))
    with pytest.raises(CorruptLog):
        opened(files).open(PARTITION).recover()
    files.kill()
    files.forget_pages()
    return owner, durable


@pytest.mark.parametrize("failures", [1, 2], ids=["counted", "the count failed too"])
@pytest.mark.parametrize("new_file", [False, True], ids=["same file", "new file"])
@pytest.mark.parametrize("seed", range(15))
def test_holes_that_a_failed_recovery_left_are_cut_and_counted_and_what_stands_before_them_is_kept(
    seed: int, new_file: bool, failures: int
) -> None:
    files, chance = SimFiles(), random.Random(seed)
    owner, durable = failed_recovery(files, chance, new_file=new_file, failures=failures)
    log = opened(files)
    before, partition = log.failed_writes, log.open(PARTITION)
    partition.recover()
    kept = read_all(partition)
    assert durable <= len(kept) and kept == owner.events[: len(kept)]
    assert len(kept) == len(owner.events) or log.failed_writes > before, "else what was seen would be sent again"
    files.fail_power(chance)
    partition = opened(files, "2").open(PARTITION)
    partition.recover()
    assert read_all(partition) == kept


def test_damage_before_the_end_is_damage_after_a_failed_recovery_too() -> None:
    files = SimFiles()
    failed_recovery(files, random.Random(1), new_file=False, failures=1)
    folder = partition_folder(LOG, PARTITION)
    newest = max(name for name in files.names(folder) if name.endswith(".segment"))
    handle = files.open(folder / newest, write=True)
    files.write(handle, memoryview(b"\xff"), HEADER_NBYTES + 20)
    files.close(handle)
    with pytest.raises(CorruptLog, match="a whole record stands behind it"):
        opened(files).open(PARTITION).recover()
