"""A replica that stands still while versions go by costs the broker bounded memory and nobody else anything."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from paramstream.brokers.fanout import RING_BYTES
from paramstream.consumers.subscription_core import BUDGET_BYTES
from processes.child import Child

MIB = 1024 * 1024
START_S = 120.0
OVERHEAD_BYTES = 4096
"""Of a version in the log, beside its values: frames of chunk, part and commit, epoch records and bases."""

SLACK_BYTES = 96 * MIB
"""What a broker's memory may grow by beside the ring and one follower's credit: frames under way, and the allocator's rest."""


@dataclass(frozen=True)
class Load:
    """Versions of so many bytes each, at a steady rate."""

    versions: int
    version_bytes: int
    seconds: float

    @property
    def nbytes(self) -> int:
        return self.versions * (self.version_bytes + OVERHEAD_BYTES)


CAP_BYTES = 256 * MIB
"""What each process may grow by while one that takes a version a second is sent twenty."""

SHORT = Load(110, MIB, 2.5)
FULL = Load(500, MIB // 2, 10.0)


class Trial:
    """A broker over a local log, two replicas that keep up, and one that may be stopped; each in a process of its own."""

    def __init__(self, folder: Path, stack: ExitStack, log_limit: int, catch_up: str) -> None:
        folder.mkdir()
        start: Callable[..., Child] = lambda *call: stack.enter_context(Child(*call, errors=folder / "errors"))
        self.broker = start("broker", folder / "log", f"ipc://{folder}/b", "boot", log_limit)
        endpoint = self.broker.read(START_S)["endpoint"]
        self.client = stack.enter_context(ps.connect(endpoint))
        self.client.create_topic("model")
        self.publisher = self.client.publisher("model", producer="trainer")
        self.others = [start("slow_replica", endpoint, "model", f"other-{n}", "latest") for n in range(2)]
        self.slow = start("slow_replica", endpoint, "model", "slow", catch_up)
        for replica in (*self.others, self.slow):
            assert replica.read(START_S)["up"]
        self.version = 0
        self.peak_rss_bytes = 0
        self.last = ""
        """The vector of the last version published."""

    def publish(self, load: Load) -> tuple[int, int]:
        """The first and the last version, all of them accepted."""
        first = self.version + 1
        values = np.zeros(load.version_bytes // 4, np.float32)
        receipts: list[ps.Receipt] = []
        began = time.monotonic()
        for number in range(load.versions):
            time.sleep(max(0.0, began + number * load.seconds / load.versions - time.monotonic()))
            self.version += 1
            values[...] = self.version
            receipts.append(self.publisher.publish_weights({"w": values}, version=self.version))
            self.publisher.put("step", str(self.version).encode())
            self.peak_rss_bytes = max(self.peak_rss_bytes, self.broker.rss_bytes)
        self.publisher.flush(60)
        self.last = str(receipts[-1].accepted.result(60))
        return first, self.version

    def publish_while_stopped(self, load: Load) -> tuple[int, int]:
        self.slow.pause()
        try:
            return self.publish(load)
        finally:
            self.slow.resume()

    def reached(self, replica: Child, within: float = 60.0) -> str:
        return str(replica.ask("wait", within + 30, version=self.version, vector=self.last, within=within)["error"])

    def digest(self, replica: Child) -> str:
        return str(replica.ask("state", 60)["digest"])

    def assert_others_saw_all(self, first: int, last: int) -> list[float]:
        """Their median staleness, in seconds."""
        medians: list[float] = []
        for other in self.others:
            assert self.reached(other) == ""
            seen = other.ask("between", 30, first=first, last=last)
            assert (seen["count"], seen["only_up"]) == (last - first + 1, True)
            medians.append(seen["median_s"])
        return medians


def assert_memory_is_bounded(trial: Trial, before: int) -> None:
    assert trial.peak_rss_bytes - before < RING_BYTES + BUDGET_BYTES + SLACK_BYTES


def catches_up(folder: Path, load: Load, catch_up: str) -> None:
    with ExitStack() as stack:
        trial = Trial(folder, stack, 2 * load.nbytes, catch_up)
        trial.publish(Load(3, load.version_bytes, 0.1))
        before = trial.broker.rss_bytes
        first, last = trial.publish_while_stopped(load)
        began = time.monotonic()
        assert trial.reached(trial.slow) == ""
        took = time.monotonic() - began
        trial.assert_others_saw_all(first, last)
        assert {trial.digest(replica) for replica in (*trial.others, trial.slow)} == {trial.digest(trial.slow)}
        assert_memory_is_bounded(trial, before)
        seen = trial.slow.ask("between", 30, first=first, last=last)
        assert seen["only_up"]
        assert seen["count"] == load.versions if catch_up == "all" else seen["count"] < load.versions
        print(f"{catch_up}: caught up after {took:.2f} s by {seen['count']} of {load.versions} versions; ")
        print(f"  broker grew by {(trial.peak_rss_bytes - before) / MIB:.0f} MiB, {load.nbytes / MIB:.0f} MiB went by")


def is_told_what_is_gone(folder: Path, load: Load) -> None:
    with ExitStack() as stack:
        trial = Trial(folder, stack, load.nbytes // 2, "all")
        trial.publish(Load(3, load.version_bytes, 0.1))
        first, last = trial.publish_while_stopped(load)
        error = trial.reached(trial.slow)
        assert error.startswith("LogTruncated: ") and "the log begins behind" in error
        state = trial.slow.ask("state", 30)
        assert (state["stopped"], state["stale"], state["version"] < last) == ({"model/1": "LogTruncated"}, True, True)
        trial.assert_others_saw_all(first, last)
        assert len({trial.digest(other) for other in trial.others}) == 1


@pytest.mark.parametrize("catch_up", ["latest", "all"])
def test_a_replica_that_stood_still_catches_up_and_costs_bounded_memory_F04(tmp_path: Path, catch_up: str) -> None:
    catches_up(tmp_path / "trial", SHORT, catch_up)


def test_a_replica_that_wants_every_version_is_told_what_the_log_has_no_more(tmp_path: Path) -> None:
    is_told_what_is_gone(tmp_path / "trial", SHORT)


def is_too_slow(folder: Path, load: Load, catch_up: str) -> None:
    """A replica that takes about one version a second; what it costs, and what is left of that when it has caught up."""
    with ExitStack() as stack:
        trial = Trial(folder, stack, 4 * load.nbytes, "latest")
        endpoint = f"ipc://{folder}/b"
        lazy = stack.enter_context(
            Child("slow_replica", endpoint, "model", "lazy", catch_up, 1.0, errors=folder / "errors")
        )
        assert lazy.read(START_S)["up"]
        trial.publish(Load(3, load.version_bytes, 0.1))
        for replica in (*trial.others, lazy):
            assert trial.reached(replica) == ""
        processes = {"broker": trial.broker, "lazy": lazy, "other": trial.others[0]}
        before = {name: child.rss_bytes for name, child in processes.items()}
        first, last = trial.publish(load)
        grown = {name: child.rss_bytes - before[name] for name, child in processes.items()}
        grown["broker"] = trial.peak_rss_bytes - before["broker"]
        lazy.send("hurry")
        assert trial.reached(lazy) == ""
        trial.assert_others_saw_all(first, last)
        assert trial.digest(lazy) == trial.digest(trial.others[0])
        seen = lazy.ask("between", 30, first=first, last=last)
        print(f"{catch_up}: {seen['count']} of {load.versions} versions; grown by (MiB):")
        print({name: nbytes // MIB for name, nbytes in grown.items()})
        assert max(grown.values()) < CAP_BYTES
        assert seen["only_up"]


@pytest.mark.parametrize("catch_up", ["latest", "all"])
def test_a_replica_that_takes_a_version_a_second_costs_bounded_memory_F04(tmp_path: Path, catch_up: str) -> None:
    is_too_slow(tmp_path / "trial", Load(40, 4 * MIB, 2.0), catch_up)


@pytest.mark.slow
@pytest.mark.parametrize("catch_up", ["latest", "all"])
def test_20_versions_of_10_mib_a_second_and_a_replica_that_takes_one_F04(tmp_path: Path, catch_up: str) -> None:
    is_too_slow(tmp_path / "trial", Load(400, 10 * MIB, 20.0), catch_up)


@pytest.mark.slow
@pytest.mark.parametrize("catch_up", ["latest", "all"])
def test_a_replica_stopped_for_ten_seconds_and_500_versions_catches_up(tmp_path: Path, catch_up: str) -> None:
    catches_up(tmp_path / "trial", FULL, catch_up)


@pytest.mark.slow
def test_500_versions_past_a_small_log_are_told_to_the_stopped_replica_alone(tmp_path: Path) -> None:
    is_told_what_is_gone(tmp_path / "trial", FULL)


@pytest.mark.slow
def test_a_stopped_replica_makes_nobody_else_stale(tmp_path: Path) -> None:
    """Best of three interleaved pairs of runs: one with all replicas at work, one with one of them stopped."""
    ratios: list[str] = []
    close = False
    with ExitStack() as stack:
        trial = Trial(tmp_path / "trial", stack, 8 * FULL.nbytes, "latest")
        for _ in range(3):
            without = trial.assert_others_saw_all(*trial.publish(FULL))
            stopped = trial.assert_others_saw_all(*trial.publish_while_stopped(FULL))
            assert trial.reached(trial.slow) == ""
            ratios.append(f"{max(without) * 1000:.2f} ms, {max(stopped) * 1000:.2f} ms with one stopped")
            pairs = zip(without, stopped, strict=True)
            close = close or all(late <= max(1.2 * usual, usual + 0.002) for usual, late in pairs)
    print("\n".join(ratios))
    assert close, ratios
