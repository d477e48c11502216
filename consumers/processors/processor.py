"""Processors: events in, events out, exactly once.

    @ps.processor(source="grads", sink="weights")
    def step(event, state, out):
        state["count"] = state.get("count", 0) + 1
        out.put("count", str(state["count"]).encode())

    run = client.run(step, name="counter", state="state-of-counter")

One task for each partition of the source, each with its own state; the weight partition is one, unless `weights=False`. A task sees durable events
only, one after the other in the order of its partition, and its outputs are events of the producer `NAME/PARTITION`. After a
crash of anything it goes back to its last snapshot, repeats what it did since, and sends what the sink does not have. For that
`step` must be *deterministic*: what it writes and what it leaves in `state` rest on `event` and `state` alone. It asks no clock
(`event.time` is there), no random source, no set for its order, and nothing outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from ...consistency.vector import VersionVector
from ...errors import InvalidEvent
from ...events.limits import check_name
from ..events import Event

State = dict[Any, Any]
"""Keys are str, bytes or int; values plain data or numpy arrays (`processor_state.py`)."""


class Out(Protocol):
    """What a task uses of the publisher that it is handed, `producers.output.Output`; `step` uses the rest."""

    @property
    def given(self) -> int: ...
    @property
    def durable(self) -> int: ...
    def await_marks(self, timeout: float) -> bool: ...
    def check_owner(self, timeout: float) -> None: ...
    def begin(self) -> None: ...
    def deliver(self, position: int, vector: VersionVector[str], stopping: Callable[[], bool]) -> None: ...
    def settle(self) -> None: ...
    def close(self) -> None: ...


MakeOut = Callable[[str, float], Out]
"""(producer name, timeout) → the outputs of a task, over a session that has just been opened."""

Step = Callable[[Event, State, Any], None]


@dataclass(frozen=True, slots=True)
class Processor:
    """A step with its source and sink, made by `ps.processor` and run by `client.run`. Called, it is the plain function."""

    function: Step
    source: str
    sink: str
    weights: bool = True
    """The source's weight partition has a task too."""
    partitions: int | None = None
    """How many state partitions the source must have; None: any number."""

    def __call__(self, event: Event, state: State, out: Any) -> None:
        self.function(event, state, out)


def processor(source: str, sink: str, *, weights: bool = True) -> Callable[[Step], Processor]:
    """Makes a function `step(event, state, out)` a processor from topic `source` to topic `sink`.

    There is one task for each state partition of the source and, unless `weights=False`, one for its weight partition, whose
    chunks, parts and commits are seen by kind, name and digest. The log lets go of old versions, and a task of the weight
    partition that was away for long may find that out as `LogTruncated`: leave it out where weights do not matter.

    `event`: an `Event` of any kind but "lost". `state`: a dict that is kept with the input position, empty at first; keys are
    str, bytes or int, values plain data or numpy arrays. `out`: a publisher into the sink: put, put_many, delete,
    publish_weights, publish_rows, publish_gradients, delete_rows. What a step writes is sent once it has returned.
    """
    check_name("topic", source)
    check_name("topic", sink)

    def make(function: Step) -> Processor:
        if not callable(cast(object, function)):
            raise InvalidEvent(f"a function can be a processor, not {type(function).__name__}")
        return Processor(function, source, sink, weights)

    return make


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A moment of one task."""

    partition: int
    """Of the source."""
    producer: str
    running: bool
    """False before it has begun, while it goes back, and once it has ended."""
    position: int
    """Of the last input that is in its state."""
    snapshot: int
    """Of the last input in its newest snapshot: a crash repeats what came after. 0 before it has begun."""
    setbacks: int
    """How often it went back to its snapshot, because outputs were lost or the broker did not answer."""
    last_error: str
    """Why it went back last, or what keeps it from writing snapshots; empty where nothing does."""
    error: Exception | None
    """Why it has ended, if it has by itself."""


@dataclass(frozen=True, slots=True)
class ProcessorStatus:
    """A moment of a processor that runs."""

    name: str
    source: str
    sink: str
    tasks: Mapping[int, TaskStatus]
    """By source partition."""

    @property
    def failed(self) -> tuple[TaskStatus, ...]:
        """The tasks that have ended by themselves."""
        return tuple(task for task in self.tasks.values() if task.error is not None)
