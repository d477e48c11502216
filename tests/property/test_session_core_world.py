"""Random calls over four partitions, with random delays, losses and takeovers: the session core keeps its rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.session_world import World, put_draft, put_values
from paramstream.consistency.history import Line, Lost, Write
from paramstream.consistency.vector import PartitionId
from paramstream.errors import StorageFull
from paramstream.events.codec import EventFrame, decode_vector
from paramstream.events.recording import HistoryFile, item_key, topic_label
from paramstream.producers.calls import Call
from paramstream.producers.effects import Dropped, Effect, Send
from paramstream.producers.recording import SessionRecorder
from paramstream.transport.calls import Joined
from paramstream.transport.messages import Ack, Heartbeat, Refused

PARTITIONS: list[PartitionId] = [(7, 0), (7, 1), (7, 2), (8, 0)]

numbers = st.integers(0, len(PARTITIONS) - 1)
actions = st.one_of(
    st.tuples(st.just("put"), numbers),
    st.tuples(st.just("many"), st.lists(numbers, min_size=2, max_size=5).map(tuple)),
    st.tuples(st.just("whole"), st.tuples(numbers, st.integers(2, 4))),
    st.tuples(st.just("arrive"), st.integers(1, 4)),
    st.tuples(st.just("answer"), st.integers(1, 4)),
    st.tuples(st.just("refuse"), st.none()),
    st.tuples(st.just("drop"), st.tuples(st.integers(0, 3), numbers, st.integers(0, 2), st.booleans())),
    st.tuples(st.just("takeover"), st.tuples(numbers, st.integers(0, 2))),
    st.tuples(st.just("sync"), st.none()),
)


class Recorded(World):
    """As a session that records what it does; `lines` is its history."""

    def __init__(self, *, again: bool) -> None:
        self.lines: list[Line] = []
        self.recorder = SessionRecorder(cast("HistoryFile", self), "p", 1, str)
        super().__init__(PARTITIONS, again=again)

    def append(self, lines: Iterable[Line]) -> bool:
        self.lines.extend(lines)
        return True

    def flush(self) -> bool:
        return True

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                assert self.recorder.sends(effect.event)
            elif isinstance(effect, Dropped):
                self.recorder.dropped(effect.event)
            super().do([effect])

    def take(self, message: Ack | Refused) -> None:
        if isinstance(message, Ack):
            self.recorder.accepted((message.topic, message.partition), message.answers)
        super().take(message)

    def take_joined(self, answer: Joined, *, fresh: bool) -> None:
        self.recorder.stand(answer.partitions)
        super().take_joined(answer, fresh=fresh)

    def take_heads(self, message: Heartbeat) -> None:
        self.recorder.durable(message.heads)
        super().take_heads(message)


class Run:
    """A world, and the calls made in it with the values each of them wrote."""

    def __init__(self, *, again: bool = False) -> None:
        self.world = Recorded(again=again)
        self.calls: list[tuple[Call, dict[bytes, PartitionId]]] = []
        self._count = 0

    def make(self, where: list[int], *, whole: bool = False) -> None:
        values: dict[bytes, PartitionId] = {}
        for number in where:
            self._count += 1
            values[b"%d" % self._count] = PARTITIONS[number]
        # A key has one partition.
        drafts = [put_draft(partition, value, b"%d" % partition[1]) for value, partition in values.items()]
        self.calls.append((self.world.call(drafts, whole=whole), values))

    def step(self, action: tuple[str, object]) -> None:
        world = self.world
        match action:
            case ("put", int(number)):
                self.make([number])
            case ("many", where):
                self.make(list(cast(tuple[int, ...], where)))
            case ("whole", (int(number), int(count))):
                self.make([number] * count, whole=True)
            case ("arrive", int(count)):
                world.arrive(count)
            case ("answer", int(count)):
                world.answer(count)
            case ("refuse", _):
                world.owner.refuse_next = StorageFull("full")
            case ("drop", (int(arrived), int(number), int(lose), bool(resend))):
                world.disconnect(arrived)
                if lose:
                    # A log that has all that was fanned out loses nothing accepted.
                    world.owner.takeover(PARTITIONS[number], 0 if resend else lose, resend)
                world.connect()
            case ("takeover", (int(number), int(lose))):
                world.owner.takeover(PARTITIONS[number], lose)
                world.take_heads(world.owner.heartbeat())
            case _:
                world.sync()

    def finish(self) -> None:
        self.world.owner.refuse_next = None
        for _ in range(3):
            self.world.settle()
            self.world.sync()
            self.world.answer()


@settings(max_examples=200, deadline=None)
@given(st.lists(actions, max_size=60))
def test_random_worlds_keep_the_rules_of_the_session(script: list[tuple[str, object]]) -> None:
    run = Run()
    for action in script:
        run.step(action)
    run.finish()
    standing = {
        value: (position, event)
        for owned in run.world.owner.partitions.values()
        for position, event in owned.events
        for value in put_values(event)
    }
    assert_every_call_has_one_outcome(run, standing)
    assert_no_sequence_names_two_events(run.world)
    assert_each_write_is_recorded_once_and_what_stands_is_not_called_lost(run.world)
    assert_each_call_depends_on_the_calls_before_it(run, standing)
    assert_partitions_keep_the_order_of_the_calls(run)


@settings(max_examples=200, deadline=None)
@given(st.lists(actions.filter(lambda action: action[0] != "refuse"), max_size=60))
def test_whatever_is_lost_goes_again_once_and_in_the_order_of_the_calls(script: list[tuple[str, object]]) -> None:
    run = Run(again=True)
    for action in script:
        run.step(action)
    run.finish()
    assert [call.outcome() for call, _ in run.calls] == ["durable"] * len(run.calls)
    standing = sorted(
        value
        for owned in run.world.owner.partitions.values()
        for _, event in owned.events
        for value in put_values(event)
    )
    assert standing == sorted(value for _, values in run.calls for value in values), "each once"
    for call, _ in run.calls:
        for partition, at in call.positions.items():
            assert at in {position for position, _ in run.world.owner.partitions[partition].events}
    assert_no_sequence_names_two_events(run.world)
    assert_each_write_is_recorded_once_and_what_stands_is_not_called_lost(run.world)
    assert_partitions_keep_the_order_of_the_calls(run)
    assert run.world.core.has_room(1 << 20), "nothing of the window is taken"


def assert_every_call_has_one_outcome(run: Run, standing: dict[bytes, tuple[int, EventFrame]]) -> None:
    for call, values in run.calls:
        assert call.final, call.outcome()
        history = run.world.history[call.serial]
        finals = [outcome for outcome in history if outcome != "accepted"]
        assert len(set(finals)) == 1, history
        if finals[0] == "durable":
            assert all(value in standing for value in values)
        elif len(values) == 1:
            assert not any(value in standing for value in values)


def assert_no_sequence_names_two_events(world: World) -> None:
    written: dict[tuple[PartitionId, int], list[bytes]] = {}
    for event in world.sent:
        values = put_values(event)
        assert written.setdefault((event.partition_id, event.head.sequence), values) == values


def assert_each_write_is_recorded_once_and_what_stands_is_not_called_lost(world: Recorded) -> None:
    """A refused event's sequence is given to no other event, so a value names one write."""
    written = [(line.key, line.value) for line in world.lines if isinstance(line, Write) and "/kv/" in line.key]
    assert len(set(written)) == len(written)
    lost = {(line.key, line.value) for line in world.lines if isinstance(line, Lost)}
    for partition, owned in world.owner.partitions.items():
        for _, event in owned.events:
            key = item_key(topic_label(str, partition[0]), b"%d" % partition[1])
            entry = key, f"p/1/{event.head.sequence}"
            assert entry in written and entry not in lost


def assert_each_call_depends_on_the_calls_before_it(run: Run, standing: dict[bytes, tuple[int, EventFrame]]) -> None:
    """Rule 1: what stands of earlier calls in other partitions is in the own vector of what stands of a later one."""
    earlier: dict[PartitionId, int] = {}
    for _, values in run.calls:
        mine = [standing[value] for value in values if value in standing]
        for position, event in mine:
            own = decode_vector(event.head.own)
            for partition, at in earlier.items():
                assert partition == event.partition_id or own.get(partition, 0) >= at, (position, partition)
        for position, event in mine:
            earlier[event.partition_id] = max(position, earlier.get(event.partition_id, 0))


def assert_partitions_keep_the_order_of_the_calls(run: Run) -> None:
    for owned in run.world.owner.partitions.values():
        order = [int(value) for _, event in owned.events for value in put_values(event)]
        assert order == sorted(order)
