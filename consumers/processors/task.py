"""One task of a processor: the thread that reads one source partition, runs the step, and keeps snapshots.

A task lives again and again: a life begins with the newest snapshot and ends with the task, or with a loss, after which the
next one begins. What is sent, and what is skipped, is decided by its outputs (`Out`); when a snapshot is due, by
`processor_core.py`.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ...consistency.position import show
from ...consistency.vector import PartitionId, VersionVector
from ...errors import EventLost, LogTruncated, OutcomeUnknown, ParamstreamError, ParamstreamTimeout, UnknownTopic
from ...events.codec import encode_vector
from ...transport.calls import DescribePartitions, OpenReplica, PartitionRecord, TopicRecord
from ...transport.directory import Directory
from ...transport.messages import Report
from ..events import Event
from ..links import MakeLink
from ..subscriber import Subscription
from .core import SnapshotPlan
from .files import Origin, SnapshotFolder
from .processor import MakeOut, Out, Processor, State, TaskStatus
from .state import EncodedState, encode_state

OPEN_S = 30.0
"""How long a life may take to begin before it is tried again."""

LOOK_S, LOOK_SOON_S = 0.25, 0.02
"""How long a task waits for an input before it looks whether a snapshot is due, or whether the one on its way is ready."""

FIRST_WAIT_S, MOST_WAIT_S = 0.1, 5.0
"""Between a setback and the next life; doubled while nothing is read between."""

_writers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the tasks of one processor share."""

    processor: Processor
    name: str
    source: TopicRecord
    folder: Path
    directory: Directory
    make_link: MakeLink
    make_out: MakeOut


class Task:
    """Runs in a thread of its own from `start` to `stop`, or to its first error that going back does not mend."""

    def __init__(self, around: Surroundings, partition: int, changed: threading.Event) -> None:
        """`changed` is set when the task has ended."""
        self._around = around
        self._partition: PartitionId = around.source.id, partition
        self.producer = f"{around.name}/{partition}"
        self._stopping = threading.Event()
        self._given_up = threading.Event()
        self._changed = changed
        self.begun = threading.Event()
        """Set when the task follows its partition for the first time, or has ended."""
        self._running = False
        self._position = 0
        self._saved = 0
        self._needed = 0
        """What lies after this position of the source is still needed."""
        self._setbacks = 0
        self._last_error = ""
        self._error: Exception | None = None
        self._out: Out | None = None
        self._wait_s = FIRST_WAIT_S
        self._thread = threading.Thread(target=self._run, name=f"paramstream-processor-{self.producer}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take no more inputs; what is in the state is kept once its outputs are durable."""
        self._stopping.set()

    def give_up(self) -> None:
        """Wait for outputs no longer: what is not durable by now is not kept."""
        self._given_up.set()

    def join(self, timeout: float) -> bool:
        """Wait for the thread; True if it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def error(self) -> Exception | None:
        return self._error

    def status(self) -> TaskStatus:
        return TaskStatus(
            partition=self._partition[1],
            producer=self.producer,
            running=self._running,
            position=self._position,
            snapshot=self._saved,
            setbacks=self._setbacks,
            last_error=self._last_error,
            error=self._error,
        )

    # --- lives ------------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    self._live()
                except ParamstreamError as error:
                    if not (isinstance(error, EventLost) or error.retriable):
                        raise
                    self._setbacks += 1
                    self._last_error = f"{error.code}: {error}"
                    self._stopping.wait(self._wait_s)
                    self._wait_s = min(2 * self._wait_s, MOST_WAIT_S)
        except (ParamstreamError, OSError) as error:
            self._error = error
        finally:
            if self._out is not None:
                self._out.close()
            if self._error is None and not self._stopping.is_set():
                self._error = ParamstreamError(
                    f"the thread of task {self.producer!r} ended", remedy="Look at its traceback"
                )
            self.begun.set()
            self._changed.set()

    def _live(self) -> None:
        """From the newest snapshot to the end of the task, or to what makes it go back."""
        around = self._around
        if self._out is not None:
            self._out.check_owner(OPEN_S)
            self._out.close()
            self._out = None
        # The outputs come first: from then on an older task of the name writes nothing, and what it has kept is all there.
        self._out = out = around.make_out(self.producer, OPEN_S)
        has_written = out.await_marks(OPEN_S)
        origin = Origin(self.producer, around.source.id, around.source.name, self._partition[1])
        files = SnapshotFolder(around.folder, origin)
        loaded = files.load()
        position = loaded.position if loaded is not None else self._beginning(has_written)
        state = loaded.state if loaded is not None else {}
        life = Life(around.processor, out, files, state, SnapshotPlan(position, time.monotonic()))
        self._note(life)
        with self._follow(position) as inputs:
            self._running = True
            self.begun.set()
            try:
                self._work(life, inputs)
            finally:
                self._running = False
        while not life.plan.is_saved and not self._given_up.is_set():
            life.keep(ending=True)
            self._note(life)
            self._given_up.wait(LOOK_SOON_S)

    def _work(self, life: Life, inputs: Subscription) -> None:
        while not self._stopping.is_set():
            life.keep()
            self._note(life)
            try:
                event = inputs.next(LOOK_SOON_S if life.plan.is_pending else LOOK_S)
            except ParamstreamTimeout:
                continue
            life.step(event, self._stopping.is_set)
            self._wait_s = FIRST_WAIT_S

    def _note(self, life: Life) -> None:
        """For other threads to see."""
        self._position, self._saved = life.plan.position, life.plan.saved
        self._needed = life.needed
        if life.error:
            self._last_error = life.error

    # --- the source -------------------------------------------------------------------------------------------------------

    def _beginning(self, has_written: bool) -> int:
        """Where a task without a snapshot begins: before the first event of the source.

        Raises `LogTruncated` where the log no longer has that. Of weights it never has all: a task that has written nothing
        begins with those that are retained.
        """
        source, number = self._around.source, self._partition[1]
        found: list[PartitionRecord] = self._around.directory.request(
            DescribePartitions(source.id, (number,)), list[PartitionRecord], OPEN_S
        )
        start = next((at.start for at in found if at.partition == number), None)
        if start is None:
            raise OutcomeUnknown(
                "nobody serves the partition", topic=source.name, partition=number, remedy="It is asked again"
            )
        if start and (has_written or number < source.partitions):
            raise LogTruncated(
                f"task {self.producer!r} has no snapshot, and the log of its source begins behind {show(start)}",
                topic=source.name,
                partition=number,
                position=start,
                remedy="Give it the folder that has its state, or begin anew under another name from a topic that is whole",
            )
        return start

    def _follow(self, position: int) -> Subscription:
        """The durable inputs behind `position`."""
        around, number = self._around, self._partition[1]
        if around.directory.topic(around.source.name).id != around.source.id:
            raise UnknownTopic(
                "the source was deleted, and made again as another topic",
                topic=around.source.name,
                remedy="Run the processor under another name and in another folder",
            )
        name = f"processor {self.producer}"
        incarnation: int = around.directory.request(OpenReplica(name), int, OPEN_S)
        return Subscription(
            around.source.name,
            directory=around.directory,
            make_link=around.make_link,
            start=VersionVector({(around.source.name, number): position}),
            partitions=(number,),
            visibility="durable",
            follower=Follower(name, incarnation, self._report),
            timeout=OPEN_S,
        )

    def _report(self, lag_events: int) -> Report:
        topic, number = self._partition
        return Report(
            name=f"processor {self.producer}",
            topics=(topic,),
            served=(),
            applied=encode_vector(VersionVector({self._partition: self._position})),
            lag_events=lag_events,
            needs=((topic, number, self._needed),),
            error=self._last_error,
            taken=((topic, number, self._saved),),
        )


@dataclass(slots=True)
class Life:
    """The state of a task from a snapshot on, and what goes with it."""

    processor: Processor
    out: Out
    files: SnapshotFolder
    state: State
    plan: SnapshotPlan[EncodedState]
    error: str = ""
    """Why the last snapshot could not be written."""
    needed: int = field(init=False)
    """What lies after this position of the source is still needed."""
    _writer: str = field(init=False)

    def __post_init__(self) -> None:
        oldest = self.files.oldest
        self.needed = oldest if oldest is not None else self.plan.position
        self._writer = f"{os.getpid()}-{next(_writers)}"

    def step(self, event: Event, stopping: Callable[[], bool]) -> None:
        """Put one input into the state, and send what that gives."""
        self.out.begin()
        try:
            self.processor(event, self.state, self.out)
        except ParamstreamError:
            raise
        except Exception as error:  # a user's function may raise anything: its task stops, and says so
            raise ParamstreamError(
                f"the step raised {type(error).__name__}: {error}",
                topic=event.topic,
                partition=event.partition,
                position=event.position,
                remedy="Nothing was sent of this input; mend the step and run it again",
            ) from error
        self.out.deliver(event.position, event.vector, stopping)
        self.plan.took(event.position)

    def keep(self, *, ending: bool = False) -> None:
        """Capture the state where a snapshot is due, and write the one on its way where its outputs are durable.

        Raises what an output has ended with, `InvalidEvent` for a state that cannot be kept; at the end of the task `OSError`
        too, else a snapshot that cannot be written is tried again later.
        """
        self.out.settle()
        plan, began = self.plan, time.monotonic()
        if plan.is_due(began, ending=ending):
            state = encode_state(self.state)
            plan.captured(state, self.out.given, time.monotonic() - began)
        ready = plan.ready(self.out.durable)
        if ready is not None:
            began = time.monotonic()
            try:
                self.files.save(ready.position, ready.state, self._writer)
            except OSError as error:
                if ending:
                    raise
                self.error = f"the snapshot could not be written: {error}"
                plan.failed(time.monotonic())
                return
            self.error = ""
            plan.written(time.monotonic(), time.monotonic() - began)
            oldest = self.files.oldest
            self.needed = oldest if oldest is not None else self.needed


@dataclass(frozen=True, slots=True)
class Follower:
    """A task as its source's broker knows it."""

    name: str
    incarnation: int
    report: Callable[[int], Report]
