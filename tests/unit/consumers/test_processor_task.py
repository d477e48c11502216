"""A task of a processor by itself: what it reads, when it keeps its state, what it holds of the log, and how it goes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feeding.fakes import FakeBroker
from paramstream.consistency.vector import VersionVector
from paramstream.consumers.events import Event
from paramstream.consumers.processors import core as processor_core
from paramstream.consumers.processors.files import Origin, SnapshotFolder
from paramstream.consumers.processors.processor import Processor, TaskStatus
from paramstream.consumers.processors.run import ProcessorRun
from paramstream.consumers.processors.task import Surroundings
from paramstream.errors import EventLost, LogTruncated
from paramstream.transport.messages import Report
from reference.waiting import eventually


class FakeOut:
    """Keeps what it was given; durable when the test says so."""

    def __init__(self) -> None:
        self.written: list[int] = []
        """The inputs that were delivered, by position."""
        self.given = 0
        self.durable = 0
        self.has_written = False
        self.lost: EventLost | None = None
        self.closed = 0

    def await_marks(self, timeout: float) -> bool:
        return self.has_written

    def check_owner(self, timeout: float) -> None:
        """Nobody else has the name."""

    def begin(self) -> None:
        """Every input has one output."""

    def deliver(self, position: int, vector: VersionVector[str], stopping: Callable[[], bool]) -> None:
        self.written.append(position)
        self.given += 1

    def settle(self) -> None:
        if self.lost is not None:
            lost, self.lost = self.lost, None
            raise lost

    def close(self) -> None:
        self.closed += 1


def step(event: Event, state: dict[Any, Any], out: Any) -> None:
    state.setdefault("seen", []).append(event.position)


class Stage:
    """A broker without a network, and tasks of one partition that write to `out`."""

    def __init__(self, folder: Path) -> None:
        self.broker = FakeBroker()
        self.out = FakeOut()
        self.folder = folder

    def run(self, partition: int = 0) -> ProcessorRun:
        def make_out(producer: str, timeout: float) -> FakeOut:
            self.out.given = self.out.durable = 0
            return self.out

        around = Surroundings(
            Processor(step, "model", "sink"), "adder", self.broker.topic, self.folder,
            self.broker.directory, self.broker.make_link, make_out,
        )  # fmt: skip
        return ProcessorRun(around, [partition], timeout=10.0)

    def put(self, count: int) -> None:
        """So many inputs, durable at once."""
        for _ in range(count):
            self.broker.state.put(b"key", b"")
        self.broker.durable[self.broker.state.partition] = self.broker.state.position
        self.broker.beat()

    def has_read(self, count: int) -> bool:
        """So many inputs were delivered, once everything on the way has come."""
        self.broker.settle()
        return len(self.out.written) == count

    def needed(self, now: float) -> int:
        """What the last report says that the task still needs behind."""
        self.broker.beat(now)
        report = next(message for message in reversed(self.broker.sent) if isinstance(message, Report))
        assert report.name == "processor adder/0" and report.served == ()
        [(*_, position)] = report.needs
        return position


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(processor_core, "EVERY_S", 0.0)
    return Stage(tmp_path)


def status(run: ProcessorRun) -> TaskStatus:
    (task,) = run.status().tasks.values()
    return task


def test_an_input_is_read_once_it_is_durable(stage: Stage) -> None:
    with stage.run() as run:
        stage.broker.state.put(b"key", b"")
        stage.broker.beat()
        stage.out.durable = 9
        stage.put(1)
        eventually(lambda: len(stage.out.written) == 2)
        eventually(lambda: status(run).snapshot == stage.broker.state.position)


def test_a_snapshot_waits_for_the_outputs_before_it_and_the_log_is_held_until_then(stage: Stage) -> None:
    with stage.run() as run:
        start = stage.needed(1.0)
        stage.put(3)
        eventually(lambda: len(stage.out.written) == 3)
        stage.out.durable = 2
        first = stage.out.written[0]
        eventually(lambda: status(run).position == stage.broker.state.position)
        assert status(run).snapshot in (start, first, stage.out.written[1])
        stage.out.durable = 3
        eventually(lambda: status(run).snapshot == stage.broker.state.position)
        kept = SnapshotFolder(stage.folder, _origin(stage)).oldest
        assert kept is not None and stage.needed(2.0) == kept


def test_nothing_is_kept_of_outputs_that_never_become_durable(stage: Stage) -> None:
    run = stage.run()
    stage.put(3)
    eventually(lambda: len(stage.out.written) == 3)
    with pytest.raises(TimeoutError, match="was not durable"):
        run.close(timeout=0.2)
    loaded = SnapshotFolder(stage.folder, _origin(stage)).load()
    assert loaded is None
    with stage.run():
        eventually(lambda: len(stage.out.written) == 6)
        stage.out.durable = 3


def test_what_was_lost_takes_the_task_back_to_its_snapshot(stage: Stage) -> None:
    with stage.run() as run:
        stage.put(2)
        stage.out.durable = 2
        eventually(lambda: status(run).snapshot == stage.broker.state.position)
        saved = stage.out.written.copy()
        stage.put(3)
        eventually(lambda: len(stage.out.written) == 5)
        stage.out.lost = EventLost("a power failure")
        eventually(lambda: status(run).setbacks == 1)
        eventually(lambda: stage.has_read(8))
        assert stage.out.written[5:] == stage.out.written[2:5]
        assert "power failure" in status(run).last_error
        stage.out.durable = 3
        eventually(lambda: status(run).snapshot == stage.broker.state.position)
        loaded = SnapshotFolder(stage.folder, _origin(stage)).load()
        assert loaded is not None and loaded.state["seen"] == saved + stage.out.written[5:]


def test_a_snapshot_that_cannot_be_written_is_said_and_tried_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "no space left on device")

    with stage.run() as run:
        with monkeypatch.context() as patched:
            patched.setattr(SnapshotFolder, "save", full)
            stage.out.durable = 9
            stage.put(1)
            eventually(lambda: "no space left" in status(run).last_error)
            assert status(run).running and status(run).setbacks == 0
        eventually(lambda: status(run).snapshot == stage.broker.state.position)


def test_a_task_without_a_snapshot_begins_with_the_first_event_or_says_that_it_is_gone(stage: Stage) -> None:
    state, weights = stage.broker.state.partition, stage.broker.weights.partition
    stage.broker.weights.version(3, {"w": np.ones(4, np.float32)})
    retained = stage.broker.durable[weights] = stage.broker.weights.position
    stage.broker.starts = {state: 7, weights: retained}
    with pytest.raises(LogTruncated, match="adder/0") as refused:
        stage.run()
    assert (refused.value.topic, refused.value.partition, refused.value.position) == ("model", 0, 7)
    # Of weights the log never has all: one that has written nothing yet begins with what is retained.
    with stage.run(partition=1) as run:
        assert status(run).position == retained
    stage.out.has_written = True
    with pytest.raises(LogTruncated, match="adder/1"):
        stage.run(partition=1)


def test_where_the_inputs_behind_its_snapshot_are_gone_a_task_does_not_begin(stage: Stage) -> None:
    with stage.run() as run:
        stage.put(2)
        stage.out.durable = 2
        eventually(lambda: status(run).snapshot == stage.broker.state.position)
    stage.broker.connected = False
    stage.broker.follows.clear()
    stage.broker.starts = {stage.broker.state.partition: stage.broker.state.position + 5}
    with pytest.raises(LogTruncated):
        stage.run()
    assert stage.out.closed == 2


def _origin(stage: Stage) -> Origin:
    return Origin("adder/0", stage.broker.topic.id, "model", 0)
