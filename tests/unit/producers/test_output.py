"""The outputs of a processor's task: sent after the step, marked with their input, and none twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fakes.loopback_link import FakeDirectory, LoopbackLink
from fakes.partition_owner import PartitionOwner
from paramstream.consistency.vector import VersionVector
from paramstream.errors import BackpressureTimeout, EventLost, Fenced, InvalidEvent, OutcomeUnknown, StorageFull
from paramstream.events.kinds import Commit, Put, Table
from paramstream.producers.output import Output
from paramstream.producers.session import Session
from paramstream.transport.calls import AwaitDurable, TopicRecord

SINK = TopicRecord("out", 7, 2, "write_back", 8)
WINDOW_BYTES = 1 << 24
SEEN = VersionVector({("out", 1): 1 << 28})
"""What the inputs depend on."""


class Sink:
    """The broker's side of a sink with two state partitions, and lives of a task that writes to it."""

    def __init__(self) -> None:
        self.owner = PartitionOwner((7, 0), (7, 1), (7, 2))
        for number in range(2):
            self.owner.partitions[7, number].tables = (Table("t", 1, "float32"),)
        self.link = LoopbackLink(self.owner)

    def open(self) -> Output:
        """A life begins, and learns what stands."""
        directory = FakeDirectory(SINK)
        session = Session("task/0", self.link, directory, WINDOW_BYTES, halts=True)
        self.link.sessions = [session]
        session.open(1.0)
        self.owner.sync()
        output = Output(session, SINK, directory)
        output.await_marks(1.0)
        return output

    def sources(self, number: int) -> list[tuple[int, int] | None]:
        return [event.head.source for _, event in self.owner.partitions[7, number].events]

    def keys(self) -> list[bytes]:
        events = (event for number in range(2) for _, event in self.owner.partitions[7, number].events)
        return sorted(item.key for event in events if isinstance(event.payload, Put) for item in event.payload.items)

    def commits(self) -> list[int]:
        events = (event.payload for _, event in self.owner.partitions[7, 2].events)
        return [payload.version for payload in events if isinstance(payload, Commit)]


@pytest.fixture
def sink() -> Sink:
    return Sink()


def step(output: Output, position: int, write: Callable[[Output], Any]) -> None:
    output.begin()
    write(output)
    output.deliver(position, SEEN, lambda: True)


def puts(*keys: str) -> Callable[[Output], None]:
    def write(output: Output) -> None:
        for key in keys:
            output.put(key, b"v")

    return write


KEYS = ("a", "b", "c", "d", "e", "f")
WEIGHTS = {"w": np.arange(600_000, dtype=np.float32)}


def test_nothing_is_sent_before_the_step_has_returned(sink: Sink) -> None:
    output = sink.open()
    output.begin()
    puts(*KEYS)(output)
    assert not sink.keys()
    output.deliver(5, SEEN, lambda: True)
    assert sink.keys() == sorted(key.encode() for key in KEYS)
    output.begin()
    puts("never")(output)
    output.begin()
    output.deliver(6, SEEN, lambda: True)
    assert output.given == len(KEYS)


def test_every_event_says_its_input_and_its_place_and_rests_on_what_the_input_has_seen(sink: Sink) -> None:
    output = sink.open()
    for position in (5, 9):
        step(output, position, puts(*KEYS))
    for number in range(2):
        count = len(sink.sources(number)) // 2
        assert count and sink.sources(number) == [(at, index) for at in (5, 9) for index in range(count)]
    event = sink.owner.partitions[7, 0].events[0][1]
    assert event.stamp().observed == VersionVector({(7, 1): 1 << 28})


def test_a_life_that_repeats_its_inputs_writes_only_what_is_missing(sink: Sink) -> None:
    first = sink.open()
    step(first, 5, puts(*KEYS))
    sink.link.auto = False
    first.begin()
    puts(*KEYS)(first)
    first.deliver(6, SEEN, lambda: True)
    # What goes to the other partition waits for answers, which the crash takes.
    sink.link.deliver(1)
    sink.link.auto = True
    second = sink.open()
    before = len(sink.keys())
    assert len(KEYS) < before < 2 * len(KEYS)
    for position in (5, 6, 7):
        step(second, position, puts(*KEYS))
    assert sink.keys() == sorted(3 * [key.encode() for key in KEYS])


def test_dense_gradients_are_cut_the_same_way_in_every_life_and_written_once(sink: Sink) -> None:
    def write(output: Output) -> None:
        output.publish_dense_gradients(WEIGHTS, step=3)

    for _ in range(2):
        step(sink.open(), 5, write)
    assert sink.sources(0) == [(5, 0), (5, 1), (5, 2)]
    with pytest.raises(InvalidEvent, match="NaN"):
        step(sink.open(), 6, lambda output: output.publish_dense_gradients({"w": np.array([np.nan])}, step=4))


def test_values_are_copied_when_the_step_gives_them(sink: Sink) -> None:
    output = sink.open()
    value, weights = bytearray(b"before"), np.ones(4, np.float32)
    output.begin()
    output.put("key", value)
    output.publish_weights({"w": weights}, version=1)
    value[:] = b"after!"
    weights[:] = 7
    output.deliver(5, SEEN, lambda: True)
    bulks = [bytes(event.bulk) for number in range(3) for _, event in sink.owner.partitions[7, number].events]
    assert b"before" in bulks and np.ones(4, np.float32).tobytes() in bulks


def test_calls_count_as_durable_in_their_order(sink: Sink) -> None:
    output = sink.open()
    step(output, 5, puts("a", "b"))
    output.settle()
    assert (output.given, output.durable) == (2, 0)
    sink.link.heartbeat()
    output.settle()
    assert (output.given, output.durable) == (2, 2)


@pytest.mark.parametrize("standing", range(6))
def test_a_version_that_stands_in_part_is_published_whole_and_one_that_stands_is_not(sink: Sink, standing: int) -> None:
    """3 chunks, a part and a commit: `standing` of them are there when the task begins again."""

    def write(output: Output) -> None:
        output.publish_weights(WEIGHTS, version=1)
        output.publish_weights({"w": WEIGHTS["w"] + 1}, version=2)

    first = sink.open()
    sink.link.auto = False
    first.begin()
    write(first)
    first.deliver(5, SEEN, lambda: True)
    sink.link.deliver(standing)
    sink.link.wire.clear()
    sink.link.auto = True
    second = sink.open()
    step(second, 5, write)
    step(second, 6, lambda output: output.publish_weights(WEIGHTS, version=3))
    assert sink.commits() == [1, 2, 3]
    sources = sink.sources(2)
    assert sources[standing:] == [(5, n) for n in range(5 if standing == 5 else 0, 10)] + [(6, n) for n in range(5)]


def test_what_the_sink_holds_must_be_durable_before_it_is_passed_over(sink: Sink) -> None:
    step(sink.open(), 5, puts("a"))
    number = next(n for n in range(2) if sink.sources(n))
    [(at, _)] = sink.owner.partitions[7, number].events
    sink.owner.sync()
    sink.open()
    assert sink.link.asked[-1] == AwaitDurable(((7, number, at),))


def test_what_the_sink_held_and_lost_is_said(sink: Sink) -> None:
    output = sink.open()
    step(output, 5, puts("a"))
    number = next(n for n in range(2) if sink.sources(n))
    directory = FakeDirectory(SINK)
    session = Session("task/0", sink.link, directory, WINDOW_BYTES, halts=True)
    session.open(1.0)
    sink.owner.takeover((7, number), lose=1)
    with pytest.raises(EventLost):
        Output(session, SINK, directory).await_marks(1.0)


def test_nothing_is_passed_over_by_guess_where_a_partition_stands_still(sink: Sink) -> None:
    del sink.owner.partitions[7, 1]
    with pytest.raises(OutcomeUnknown, match="stands still"):
        sink.open()


def test_after_a_refusal_nothing_more_is_written(sink: Sink) -> None:
    output = sink.open()
    sink.owner.refuse_next = StorageFull("full")
    with pytest.raises(StorageFull):
        step(output, 5, puts(*KEYS))
    with pytest.raises(StorageFull):
        output.settle()
    assert not sink.keys()


def test_an_older_task_finds_out_that_it_is_fenced(sink: Sink) -> None:
    first = sink.open()
    first.check_owner(1.0)
    sink.open()
    with pytest.raises(Fenced):
        first.check_owner(1.0)


def test_bad_outputs_are_refused_at_once(sink: Sink) -> None:
    output = sink.open()
    with pytest.raises(InvalidEvent, match="inside of step"):
        output.put("a", b"")
    output.begin()
    bad: list[Callable[[], object]] = [
        lambda: output.put("", b""),
        lambda: output.put("a", 7),
        lambda: output.put("a", b"", ttl=float("nan")),
        lambda: output.publish_rows("t", [1], np.ones((1, 2), np.float32)),
        lambda: output.publish_weights({}, version=1),
        lambda: output.publish_weights(WEIGHTS, version=-1),
        lambda: output.publish_weights(WEIGHTS, version=1, schema="new"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ]
    for call in bad:
        with pytest.raises(InvalidEvent):
            call()
    output.deliver(5, SEEN, lambda: True)
    assert output.given == 0


def test_a_full_window_is_waited_for_until_the_task_is_to_stop(sink: Sink) -> None:
    output = sink.open()
    sink.link.auto = False
    looks = 0

    def stopping() -> bool:
        nonlocal looks
        looks += 1
        return looks == 2

    output.begin()
    for _ in range(30):
        output.put("key", bytes(700_000))
    with pytest.raises(BackpressureTimeout):
        output.deliver(5, SEEN, stopping)
    assert 0 < output.given < 30 and looks == 2
