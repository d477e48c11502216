"""The window between accepted and durable: how much, and how old, what is not synced may be."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import cast

import pytest

from paramstream.brokers import syncing
from paramstream.brokers.syncing import Syncer
from paramstream.consistency.vector import PartitionId
from paramstream.errors import ParamstreamError, StorageFull
from paramstream.eventlog.log import PartitionLog


class Log:
    """A log whose sync takes as long as the test wants."""

    def __init__(self, number: int = 0) -> None:
        self.partition = (7, number)
        self.goes_on = threading.Event()
        self.begun = threading.Event()
        self.always = False
        self.fails: ParamstreamError | None = None
        self.at = 5
        self.comes_to: int | None = None
        """Where that is not all of it."""

    def sync(self) -> int:
        self.begun.set()
        assert self.goes_on.wait(10.0), "nobody let the sync go on"
        if not self.always:
            self.goes_on.clear()
        if self.fails is not None:
            raise self.fails
        return self.at if self.comes_to is None else self.comes_to


class Told:
    """What a broker is told, and what it would find then."""

    def __init__(self) -> None:
        self.heads: list[tuple[PartitionId, int]] = []
        self.failed: list[PartitionId] = []
        self.was_behind: list[bool] = []
        self.any = threading.Event()
        self.syncer = Syncer(self._synced, self._failed)

    def _synced(self, heads: list[tuple[PartitionId, int]]) -> None:
        self.heads += heads
        self.was_behind.append(self.syncer.is_behind())
        self.any.set()

    def _failed(self, log: PartitionLog, error: ParamstreamError) -> None:
        self.failed.append(log.partition)
        self.any.set()

    def appended(self, log: Log, nbytes: int) -> None:
        self.syncer.appended([(cast(PartitionLog, log), log.at)], nbytes)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def told(log: Log, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    monkeypatch.setattr(syncing, "MAX_UNSYNCED_BYTES", 100)
    told = Told()
    told.syncer.start()
    yield told
    log.always = True
    log.goes_on.set()
    assert told.syncer.close(10.0)


def test_a_window_is_used_up_by_bytes_and_handing_over_never_waits(told: Told, log: Log) -> None:
    told.appended(log, 60)
    assert log.begun.wait(10.0)
    assert not told.syncer.is_behind() and told.syncer.is_behind(41)
    told.appended(log, 1000)  # of one event that reaches past it
    assert told.syncer.is_behind()
    log.goes_on.set()
    assert told.any.wait(10.0)
    assert told.heads == [((7, 0), 5)] and told.was_behind == [True], "the rest is still to be synced"


def test_whoever_is_told_of_a_sync_finds_the_window_as_it_is(told: Told, log: Log) -> None:
    told.appended(log, 101)
    assert told.syncer.is_behind()
    log.goes_on.set()
    assert told.any.wait(10.0)
    assert told.was_behind == [False]


def test_a_window_is_used_up_by_age(told: Told, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncing, "MAX_UNSYNCED_S", 0.05)
    began = time.monotonic()
    told.appended(log, 1)
    deadline = began + 10.0
    while not told.syncer.is_behind():
        assert time.monotonic() < deadline, "a byte that is never synced uses the window up"
        time.sleep(0.005)
    assert time.monotonic() - began > 0.05
    log.goes_on.set()
    assert told.any.wait(10.0)
    assert told.was_behind == [False]


def test_what_could_not_be_synced_leaves_the_window(told: Told, log: Log) -> None:
    log.fails = StorageFull("no")
    told.appended(log, 1000)
    log.goes_on.set()
    assert told.any.wait(10.0)
    assert told.failed == [(7, 0)]
    deadline = time.monotonic() + 10.0
    while told.syncer.is_behind():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_sync_that_comes_back_early_is_asked_again_and_the_window_stays_as_it_is(
    told: Told, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncing, "MAX_UNSYNCED_S", 0.05)
    log.comes_to = 3
    told.appended(log, 101)
    for _ in range(3):
        assert log.begun.wait(10.0)
        log.begun.clear()
        told.any.clear()
        log.goes_on.set()
        assert told.any.wait(10.0)
        assert told.syncer.is_behind(), "by its bytes, and soon by its age"
    log.comes_to = None
    log.goes_on.set()
    deadline = time.monotonic() + 10.0
    while told.syncer.is_behind():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert told.heads[:3] == [((7, 0), 3)] * 3 and told.heads[-1] == ((7, 0), 5)
