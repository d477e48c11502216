"""A jump: what is passed counts for the gate at once, and for users when its target is applied."""

from __future__ import annotations

import pytest

from feeding.writer import Writer
from paramstream.consistency.gate import Ordering
from paramstream.consistency.vector import EMPTY, PartitionId, VersionVector
from paramstream.consumers.effects import Deliver, Effect, EpochBegan, Jump, SendFetch, SendFollow, Step, Undo
from paramstream.consumers.subscription_core import SubscriptionCore
from paramstream.transport.messages import Demoted, Fetched, Following

STATE: PartitionId = (7, 0)
WEIGHTS: PartitionId = (7, 1)


class Consumer:
    """A core that follows a state partition and a weight partition (here of puts, which are as good), over their logs."""

    def __init__(self, ordering: Ordering = Ordering.CAUSAL) -> None:
        self.state, self.weights = Writer(STATE), Writer(WEIGHTS)
        self.core = SubscriptionCore(ordering, {STATE: 0, WEIGHTS: 0})
        self.core.connected()
        self.run()
        for partition in (STATE, WEIGHTS):
            self.core.following(Following(*partition, 0, 0, 0, (), 0))
        self.take(self.state)
        self.take(self.weights)

    def run(self) -> list[Effect]:
        effects: list[Effect] = []
        for effect in self.core.steps():
            effects.append(effect)
            if isinstance(effect, Step):
                self.core.confirm(effect)
        return effects

    def take(self, writer: Writer, count: int = 1 << 30) -> list[Effect]:
        """The next events of the partition arrive."""
        effects: list[Effect] = []
        for frame in writer.after(self.core.received(writer.partition), count):
            self.core.event(frame)
            effects += self.run()
        return effects

    def jump(self, start: int, target: int, context: VersionVector[int] = EMPTY) -> list[Effect]:
        self.core.jump(WEIGHTS, start, target, context)
        effects = self.run()
        follow = next(effect for effect in effects if isinstance(effect, SendFollow))
        self.core.following(Following(*WEIGHTS, follow.after, self.weights.position, 0, (), 0))
        return effects + self.run()

    def shown(self) -> int:
        return self.core.positions()[WEIGHTS]


def write(writer: Writer, count: int) -> list[int]:
    """The positions of so many events."""
    return [(writer.put(b"k", b""), writer.position)[1] for _ in range(count)]


def delivered(effects: list[Effect], partition: PartitionId) -> list[tuple[int, bool]]:
    return [
        (effect.frame.position, effect.passed)
        for effect in effects
        if isinstance(effect, Deliver) and effect.partition == partition
    ]


@pytest.fixture
def consumer() -> Consumer:
    return Consumer()


def test_what_is_passed_counts_for_the_gate_at_once(consumer: Consumer) -> None:
    passed = write(consumer.weights, 3)
    target = write(consumer.weights, 1)[0]
    consumer.state.put(b"a", b"", own={WEIGHTS: passed[2]})
    consumer.state.put(b"b", b"", own={WEIGHTS: target})
    assert delivered(consumer.take(consumer.state), STATE) == []
    effects = consumer.jump(passed[2], target)
    assert delivered(effects, STATE) == [(consumer.state.position - 1, False)]
    assert delivered(consumer.take(consumer.weights), STATE) == [(consumer.state.position, False)]


def test_users_see_what_is_passed_when_the_target_is_applied(consumer: Consumer) -> None:
    before = consumer.shown()
    passed = write(consumer.weights, 4)
    target = write(consumer.weights, 1)[0]
    consumer.jump(passed[1], target)
    assert delivered(consumer.take(consumer.weights, 2), WEIGHTS) == [(passed[2], True), (passed[3], True)]
    assert (consumer.shown(), consumer.core.vector()[WEIGHTS], consumer.core.position(WEIGHTS)) == (before,) * 3
    assert (consumer.core.jumping_to(WEIGHTS), consumer.core.lag_events()) == (target, 5)
    assert delivered(consumer.take(consumer.weights), WEIGHTS) == [(target, False)]
    assert (consumer.shown(), consumer.core.vector()[WEIGHTS]) == (target, target)
    assert (consumer.core.jumping_to(WEIGHTS), consumer.core.lag_events()) == (None, 0)


@pytest.mark.parametrize("ordering", list(Ordering))
def test_the_target_waits_for_all_that_was_passed_rests_on(ordering: Ordering) -> None:
    consumer = Consumer(ordering)
    needed = write(consumer.state, 2)
    unseen = write(consumer.weights, 1)[0]
    consumer.weights.put(b"passed", b"", own={STATE: needed[0]})
    target = write(consumer.weights, 1)[0]
    consumer.jump(unseen, target, VersionVector({STATE: needed[1]}))
    assert delivered(consumer.take(consumer.weights), WEIGHTS) == [(target - 1, True)]
    assert delivered(consumer.take(consumer.state, 1), WEIGHTS) == []
    landed = [effect for effect in consumer.take(consumer.state) if isinstance(effect, Deliver)]
    assert [effect.frame.position for effect in landed] == [needed[1], target]
    assert landed[1].stamp.own[STATE] == needed[1]
    assert consumer.core.vector()[STATE] == needed[1]


def test_what_a_passed_event_rests_on_elsewhere_is_in_the_vector_from_the_target_on(consumer: Consumer) -> None:
    elsewhere = (9, 0)
    consumer.weights.put(b"passed", b"", observed={elsewhere: 77})
    target = write(consumer.weights, 1)[0]
    consumer.jump(target - 2, target)
    consumer.take(consumer.weights, 1)
    assert elsewhere not in consumer.core.vector()
    consumer.take(consumer.weights)
    assert consumer.core.vector()[elsewhere] == 77


def test_epochs_on_the_way_to_the_target_are_passed(consumer: Consumer) -> None:
    before = consumer.shown()
    start = write(consumer.weights, 2)[1]
    write(consumer.weights, 1)
    consumer.weights.open_epoch()
    target = write(consumer.weights, 1)[0]
    consumer.jump(start, target)
    effects = consumer.take(consumer.weights, 2)
    assert [type(effect) for effect in effects] == [Deliver, EpochBegan]
    assert consumer.shown() == before
    consumer.take(consumer.weights)
    assert consumer.shown() == target


def test_what_was_applied_and_is_lost_is_undone_before_the_jump(consumer: Consumer) -> None:
    kept = write(consumer.weights, 1)[0]
    lost = write(consumer.weights, 2)[1]
    consumer.take(consumer.weights)
    assert consumer.shown() == lost
    consumer.core.disconnected()
    consumer.weights.open_epoch(end=kept)
    start = write(consumer.weights, 1)[0]
    target = write(consumer.weights, 1)[0]
    consumer.core.connected()
    consumer.run()
    consumer.core.jump(WEIGHTS, start, target, ends=[(kept >> 28, kept)])
    effects = [effect for effect in consumer.run() if isinstance(effect, Step)]
    assert effects == [Undo(WEIGHTS, kept), Jump(WEIGHTS, start, target)]
    assert consumer.shown() == kept and consumer.core.is_lost(WEIGHTS, lost)
    consumer.core.following(Following(*WEIGHTS, start, target, 0, (), 0))
    consumer.take(consumer.weights)
    assert consumer.shown() == target


def test_an_epoch_that_ends_below_the_target_ends_the_jump(consumer: Consumer) -> None:
    """Under persistence "none" nothing outlives the epoch, not even what its owner called durable."""
    before = consumer.shown()
    passed = write(consumer.weights, 4)
    consumer.jump(passed[0], passed[3])
    consumer.take(consumer.weights, 1)
    consumer.weights.open_epoch(end=before)
    effects = [effect for effect in consumer.take(consumer.weights) if isinstance(effect, Step)]
    assert [type(effect) for effect in effects] == [Undo, EpochBegan]
    assert consumer.core.jumping_to(WEIGHTS) is None
    assert consumer.shown() == consumer.weights.position
    write(consumer.weights, 1)
    assert delivered(consumer.take(consumer.weights), WEIGHTS) == [(consumer.weights.position, False)]


def test_a_jump_forgets_what_was_received_and_asked_for(consumer: Consumer) -> None:
    needed = consumer.state.position + 1
    held = consumer.weights.put(b"held", b"", own={STATE: needed})
    consumer.core.event(memoryview(held))
    consumer.core.demoted(Demoted(*WEIGHTS, consumer.weights.position, consumer.weights.position + 9))
    fetch = next(effect for effect in consumer.run() if isinstance(effect, SendFetch))
    late = consumer.weights.after(fetch.after)
    start = write(consumer.weights, 3)[2]
    target = write(consumer.weights, 1)[0]
    consumer.jump(start, target)
    assert consumer.core.buffered_bytes == 0
    consumer.core.fetched(Fetched(fetch.id, *WEIGHTS, len(late), 0, target, None), late)
    assert consumer.run() == [] and consumer.core.received(WEIGHTS) == start
    assert delivered(consumer.take(consumer.weights), WEIGHTS) == [(target, False)]


def test_a_jump_that_was_called_before_the_connection_begins_with_it() -> None:
    weights = Writer(WEIGHTS)
    start = write(weights, 3)[2]
    target = write(weights, 1)[0]
    core = SubscriptionCore(Ordering.CAUSAL, {WEIGHTS: 0})
    core.jump(WEIGHTS, start, target)
    core.connected()
    effects: list[Effect] = []
    for effect in core.steps():
        effects.append(effect)
        if isinstance(effect, Step):
            core.confirm(effect)
    assert [effect.after for effect in effects if isinstance(effect, SendFollow)] == [start]
    assert core.position(WEIGHTS) == 0


def test_a_jump_that_is_cut_off_goes_on_over_the_next_connection(consumer: Consumer) -> None:
    passed = write(consumer.weights, 4)
    consumer.jump(passed[0], passed[3])
    consumer.take(consumer.weights, 1)
    consumer.core.disconnected()
    consumer.core.connected()
    follows = [effect for effect in consumer.run() if isinstance(effect, SendFollow)]
    assert [follow.after for follow in follows if follow.partition == WEIGHTS] == [passed[1]]
    consumer.core.following(Following(*WEIGHTS, passed[1], passed[3], 0, (), 0))
    assert delivered(consumer.take(consumer.weights), WEIGHTS) == [(passed[2], True), (passed[3], False)]


def test_a_jump_on_its_way_may_be_led_on(consumer: Consumer) -> None:
    """The log was cut past it."""
    before = consumer.shown()
    passed = write(consumer.weights, 9)
    consumer.jump(passed[0], passed[3])
    consumer.take(consumer.weights, 1)
    consumer.jump(passed[6], passed[8])
    consumer.take(consumer.weights, 1)
    assert consumer.shown() == before
    consumer.take(consumer.weights)
    assert consumer.shown() == passed[8]
