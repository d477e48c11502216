"""The local log against a list: whatever fails and in whatever order, it keeps what it said, in order, and no more than was given."""

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramstream.errors import ParamstreamError
from paramstream.eventlog.local import LocalLog
from paramstream.eventlog.partition import LocalPartition
from paramstream.eventlog.reading import FolderReader
from records.disk import FaultyDisk
from records.frames import PARTITION, Owner, as_pairs, read_all

LIMIT = 16 * 4000
"""Segments of 4,000 bytes, so that a few events fill one."""

STEPS = ["append"] * 8 + ["sync"] * 4 + ["base", "cut", "kill", "power", "clean", "fail_write", "fail_sync", "read"]


class Run:
    """One log through tenures, failures and recoveries."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.disk = FaultyDisk(folder)
        self.owner = Owner()
        self.durable = 0
        """The last position that `sync` returned: all up to it must stay."""
        self.boot = 1
        self.failed = 0
        self.log: LocalLog
        self.partition: LocalPartition
        self.open()

    def open(self) -> None:
        self.log = LocalLog(self.folder, LIMIT, boot=str(self.boot), disk=self.disk)
        self.partition = self.log.open(PARTITION)
        recovered = self.partition.recover()
        given, base = self.owner.events, recovered.base
        behind = as_pairs(recovered.records)
        if base is not None:
            kept = [pair for pair in given if pair[0] <= base.position] + behind
        else:
            kept = behind
        assert kept == given[: len(kept)], "what is kept is a prefix of what was given"
        assert not kept or kept[-1][0] >= self.durable
        assert kept or not self.durable
        self.lost = len(given) - len(kept)
        assert self.log.failed_writes == self.failed
        self.owner.continue_from(kept, max(recovered.last_claim, self.owner.epoch))
        assert read_all(self.partition) == [pair for pair in kept if pair[0] > self.partition.start]
        for frame in self.owner.opening():
            self.partition.append(frame)
        self.sync()

    def sync(self) -> None:
        self.durable = self.partition.sync()
        assert self.durable == self.owner.at

    def step(self, step: str) -> None:
        match step:
            case "append":
                self.partition.append(self.owner.put(self.chance.randbytes(self.chance.choice((10, 300, 1500)))))
            case "base":
                self.partition.append(self.owner.base(self.chance.randbytes(700)))
            case "sync":
                self.sync()
            case "cut":
                self.partition.cut(self.chance.choice([at for at, _ in self.owner.events]))
            case "read":
                held = [pair for pair in self.owner.events if pair[0] > self.partition.start]
                assert read_all(self.partition, max_bytes=2000) == held
                self.read_beside()
            case "kill":
                self.disk.kill()
                self.open()
                assert not self.lost, "a killed process loses nothing that was appended"
            case "power":
                self.disk.power_failure(self.chance)
                self.boot += 1
                self.read_after()
                self.open()
            case "clean":
                self.log.close()
                self.read_after()
                self.open()
                assert not self.lost
            case "fail_write":
                self.disk.fail("write", partly=self.chance.randrange(100))
                self.failed += 1
                self.step("append")
                assert self.log.failed_writes == self.failed
            case _:
                self.disk.fail("sync")
                self.failed += 1
                self.step("append")
                self.sync()
                assert self.log.failed_writes == self.failed

    def read_beside(self) -> None:
        """A reading command while the owner lives sees all that `sync` said, and nothing that was not given."""
        with FolderReader(self.folder) as reader:
            assert reader.owner_lives
            read = reader.read(PARTITION)
            self.check_read(read.start, as_pairs(read.records))
            assert read.start == self.partition.start

    def read_after(self) -> None:
        """A reading command where no owner lives sees all that is durable, and nothing that was not given."""
        with FolderReader(self.folder) as reader:
            assert not reader.owner_lives
            read = reader.read(PARTITION)
            try:
                found = as_pairs(read.records)
            except ParamstreamError:
                return  # Holes that a power failure left in the tail: only an owner may judge and cut them.
            self.check_read(read.start, found)

    def check_read(self, start: int, found: list[tuple[int, bytes]]) -> None:
        held = [pair for pair in self.owner.events if pair[0] > start]
        assert found == held[: len(found)]
        assert (found[-1][0] if found else start) >= self.durable


@pytest.mark.parametrize("seed", range(30))
def test_a_log_keeps_what_it_said_through_kills_power_failures_and_failed_writes(seed: int, tmp_path: Path) -> None:
    run = Run(tmp_path, seed)
    for _ in range(60):
        run.step(run.chance.choice(STEPS))
    run.step("power")
    run.log.close()


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(sorted(set(STEPS))), max_size=20))
def test_no_short_history_breaks_it(seed: int, steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), seed)
        for step in steps:
            run.step(step)
        run.step("power")
        run.log.close()
