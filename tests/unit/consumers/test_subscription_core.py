"""The subscription core alone: what happened in, what is to be done out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from feeding.writer import Writer
from paramstream.consistency.delivery import check_deliveries
from paramstream.consistency.gate import Gate, Ordering
from paramstream.consistency.position import epoch_of
from paramstream.consistency.stamp import Delivery
from paramstream.consistency.vector import PartitionId
from paramstream.consumers.effects import (
    Deliver,
    Durable,
    Effect,
    EpochBegan,
    SendCredit,
    SendFetch,
    SendFollow,
    Step,
    Stopped,
    Undo,
)
from paramstream.consumers.subscription_core import SubscriptionCore
from paramstream.errors import CorruptLog, EventLost
from paramstream.events.codec import Head, encode_event, stamp_frame
from paramstream.events.digest import checksum
from paramstream.events.kinds import Delete, Put
from paramstream.transport.messages import Demoted, Fetched, Following, Heads, Heartbeat

TOPIC = 7


def writers(count: int) -> list[Writer]:
    return [Writer((TOPIC, number)) for number in range(count)]


def core_of(
    writers: Iterable[Writer], ordering: Ordering = Ordering.CAUSAL, budget_bytes: int = 1 << 20
) -> SubscriptionCore:
    """Connected, following everything from the start, and live."""
    core = SubscriptionCore(ordering, {writer.partition: 0 for writer in writers}, budget_bytes=budget_bytes)
    core.connected()
    run(core)
    for writer in writers:
        core.following(Following(*writer.partition, 0, 0, 0, (), 0))
    return core


def run(core: SubscriptionCore) -> list[Effect]:
    effects: list[Effect] = []
    for effect in core.steps():
        effects.append(effect)
        if isinstance(effect, Step):
            core.confirm(effect)
    return effects


def give(core: SubscriptionCore, *frames: bytearray) -> list[Effect]:
    effects: list[Effect] = []
    for frame in frames:
        core.event(memoryview(frame))
        effects += run(core)
    return effects


def answer(core: SubscriptionCore, writer: Writer, effects: list[Effect], count: int = 1 << 30) -> list[Effect]:
    """Answer the last fetch in `effects` from the writer's log."""
    fetch = [effect for effect in effects if isinstance(effect, SendFetch)][-1]
    frames = writer.after(fetch.after, count)
    end = fetch.after if not frames else writer.position
    core.fetched(Fetched(fetch.id, *writer.partition, len(frames), end, writer.position, None), frames)
    return run(core)


def keys(effects: list[Effect]) -> list[bytes]:
    payloads = [effect.frame.payload for effect in effects if isinstance(effect, Deliver)]
    return [payload.items[0].key for payload in payloads if isinstance(payload, Put)]


def never_blocked(*_: object) -> None:
    return None


def fetches(effects: list[Effect]) -> list[int]:
    return [effect.after for effect in effects if isinstance(effect, SendFetch)]


def test_events_that_come_in_order_are_delivered_in_order() -> None:
    (writer,) = writers(1)
    core = core_of([writer])
    effects = give(core, *writer.log.values(), writer.put(b"a", b""), writer.put(b"b", b""))
    assert [type(effect) for effect in effects] == [EpochBegan, Deliver, Deliver]
    assert core.position(writer.partition) == writer.position


def test_a_repeat_is_dropped_by_its_position() -> None:
    (writer,) = writers(1)
    core = core_of([writer])
    event = writer.put(b"a", b"")
    give(core, *writer.log.values())
    assert give(core, event, *writer.log.values()) == []
    assert core.repeated_events == 3


def test_a_gap_is_fetched_and_what_came_ahead_of_it_is_kept() -> None:
    (writer,) = writers(1)
    core = core_of([writer])
    give(core, *writer.log.values())
    before = writer.position
    writer.put(b"a", b"")
    effects = give(core, writer.put(b"b", b""), writer.put(b"c", b""))
    assert fetches(effects) == [before]
    assert keys(answer(core, writer, effects, count=1)) == [b"a", b"b", b"c"]
    assert core.buffered_bytes == 0


def test_a_consumer_that_is_ahead_of_the_log_stops() -> None:
    (writer,) = writers(1)
    core = core_of([writer])
    give(core, *writer.log.values())
    core.demoted(Demoted(*writer.partition, writer.position, writer.position - 1))
    (stopped,) = (effect for effect in run(core) if isinstance(effect, Stopped))
    assert isinstance(stopped.error, EventLost) and stopped.error.position == writer.position
    core.tick(100.0)
    assert run(core) == []


def test_a_heartbeat_that_has_sent_more_than_came_leads_to_a_fetch() -> None:
    (writer,) = writers(1)
    core = core_of([writer])
    give(core, *writer.log.values())
    received = writer.position
    writer.put(b"a", b"")
    core.heartbeat(Heartbeat((Heads(*writer.partition, writer.position, 0, received, 0),)))
    assert run(core) == []
    core.heartbeat(Heartbeat((Heads(*writer.partition, writer.position, 0, writer.position, 0),)))
    assert fetches(run(core)) == [received]


def test_a_demoted_consumer_fetches_up_to_the_head_and_follows_again() -> None:
    (writer,) = writers(1)
    core = core_of([writer])
    give(core, *writer.log.values())
    after = writer.position
    for key in (b"a", b"b", b"c"):
        writer.put(key, b"")
    core.demoted(Demoted(*writer.partition, after, writer.position))
    effects = run(core)
    assert fetches(effects) == [after]
    effects = answer(core, writer, effects, count=2)
    assert keys(effects) == [b"a", b"b"] and fetches(effects) == [writer.position - 1]
    effects = answer(core, writer, effects)
    assert keys(effects) == [b"c"]
    assert [effect.after for effect in effects if isinstance(effect, SendFollow)] == [writer.position]


def test_a_lost_connection_leads_to_a_follow_from_where_we_are() -> None:
    (writer,) = writers(1)
    core = core_of([writer])
    give(core, *writer.log.values(), writer.put(b"a", b""))
    core.disconnected()
    assert give(core, writer.put(b"b", b"")) == []
    core.connected()
    assert run(core) == [SendFollow(writer.partition, writer.position - 1, 1 << 20)]


def test_heads_of_the_connection_before_are_not_taken_for_known() -> None:
    first, second, third = writers(3)
    core = core_of((first, second, third))
    assert core.heads_are_known
    core.disconnected()
    assert not core.heads_are_known
    core.connected()
    run(core)
    core.following(Following(*first.partition, 0, 0, 0, (), 0))
    assert not core.heads_are_known
    core.heartbeat(Heartbeat((Heads(*second.partition, 0, 0, 0, 0),)))
    assert not core.heads_are_known
    core.demoted(Demoted(*third.partition, 0, 0, None))
    assert core.heads_are_known


def test_an_epoch_that_ended_below_what_was_applied_is_undone() -> None:
    (writer,) = writers(1)
    core = core_of([writer])
    give(core, *writer.log.values(), writer.put(b"a", b""))
    end = writer.position
    give(core, writer.put(b"b", b""))
    lost = writer.position
    record = writer.open_epoch(end=end)
    effects = give(core, record, writer.put(b"c", b""))
    assert effects[0] == Undo(writer.partition, end)
    assert isinstance(effects[1], EpochBegan) and effects[1].end == end
    assert keys(effects) == [b"c"]
    assert core.is_lost(writer.partition, lost) and not core.is_lost(writer.partition, end)


def test_what_is_buffered_above_an_epochs_end_is_dropped_without_an_undo() -> None:
    state, other = writers(2)
    core = core_of([state, other])
    give(core, *state.log.values(), *other.log.values())
    end = state.position
    blocked = state.put(b"x", b"", own={other.partition: other.position + 1})
    assert give(core, blocked) == []
    effects = give(core, state.open_epoch(end=end))
    assert [type(effect) for effect in effects] == [EpochBegan]
    assert core.buffered_bytes == 0


def test_the_gap_before_an_epoch_record_is_fetched() -> None:
    (writer,) = writers(1)
    core = core_of([writer])
    give(core, *writer.log.values())
    writer.put(b"a", b"")
    effects = give(core, writer.open_epoch())
    assert keys(answer(core, writer, effects)) == [b"a"]
    assert core.position(writer.partition) == writer.position


def test_a_durable_head_of_a_later_epoch_says_nothing_of_what_is_applied() -> None:
    (writer,) = writers(1)
    core = core_of([writer])
    give(core, *writer.log.values(), writer.put(b"a", b""))
    end = writer.position
    record = writer.open_epoch()
    later = writer.position
    core.heartbeat(Heartbeat((Heads(*writer.partition, later, later, end, 0),)))
    assert run(core) == []
    assert Durable(writer.partition, later) in give(core, record)


def test_what_stands_in_an_epoch_whose_end_is_known_is_durable_while_it_is_applied() -> None:
    (writer,) = writers(1)
    core = core_of([writer])
    opening = next(iter(writer.log.values()))
    first, second = writer.put(b"a", b""), writer.put(b"b", b"")
    end = writer.position
    record = writer.open_epoch()
    later = writer.position
    told = Following(*writer.partition, 0, later, later, ((epoch_of(end), end),), 0)
    core.following(told)
    assert Durable(writer.partition, end) in give(core, opening, first)
    assert not any(isinstance(effect, Durable) for effect in give(core, second))
    assert Durable(writer.partition, later) in give(core, record)


def test_what_waits_until_it_is_durable_is_offered_then_and_holds_up_its_partition_alone() -> None:
    first, second = writers(2)
    core = core_of([first, second])
    give(core, *first.log.values(), *second.log.values())
    for name in (b"1", b"2"):
        core.event(memoryview(first.put(name, b"")))
    core.event(memoryview(second.put(b"other", b"")))
    seen: list[bytes] = []
    for effect in core.steps():
        assert isinstance(effect, Deliver)
        (name,) = keys([effect])
        seen.append(name)
        if name != b"1":
            core.confirm(effect)
        else:
            assert core.wait_until_durable(first.partition)
    assert seen == [b"1", b"other"]
    heads = Heads(*first.partition, first.position, first.position - 1, first.position, 0)
    core.heartbeat(Heartbeat((heads,)))
    effects = core.steps()
    again = next(effect for effect in effects if isinstance(effect, Deliver))
    assert keys([again]) == [b"1"] and not core.wait_until_durable(first.partition)
    core.confirm(again)
    assert keys(run(core)) == [b"2"]


@pytest.mark.parametrize("batch", [False, True], ids=["one_at_a_time", "as_one_batch"])
def test_a_chain_over_partitions_drains_in_every_order_of_arrival_H01(batch: bool) -> None:
    chain = writers(5)
    openings = [next(iter(writer.log.values())) for writer in chain]
    events: list[bytearray] = []
    for index, writer in enumerate(chain):
        needs = {} if index == 0 else {chain[index - 1].partition: chain[index - 1].position}
        if index == 4:
            needs[chain[0].partition] = chain[0].position
        events.append(writer.put(b"%d" % (index + 1), b"", own=needs))
    for order in itertools.permutations(events):
        core = core_of(chain)
        give(core, *openings)
        if batch:
            for frame in order:
                core.event(memoryview(frame))
            effects = run(core)
        else:
            effects = give(core, *order)
        assert keys(effects) == [b"1", b"2", b"3", b"4", b"5"]
        assert core.buffered_bytes == 0


def test_a_chain_in_one_partition_drains_in_every_order_of_arrival_H01() -> None:
    (writer,) = writers(1)
    opening = writer.log[writer.position]
    events = [writer.put(b"%d" % index, b"") for index in range(5)]
    for order in itertools.permutations(events):
        core = core_of([writer])
        effects = give(core, opening, *order)
        assert keys(effects) == [b"%d" % index for index in range(5)]
        assert core.buffered_bytes == 0


def test_without_the_gate_the_order_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def deliveries() -> list[Delivery]:
        first, second = writers(2)
        cause = first.put(b"cause", b"")
        effect = second.put(b"effect", b"", observed={first.partition: first.position})
        core = core_of([first, second])
        opened = give(core, first.log[cause_before(first)], second.log[cause_before(second)])
        assert len(opened) == 2
        effects = give(core, effect, cause)
        return [Delivery(e.partition, e.stamp) for e in effects if isinstance(e, Deliver)]

    follows = {(TOPIC, 0), (TOPIC, 1)}
    assert check_deliveries(deliveries(), Ordering.CAUSAL, follows) == []
    monkeypatch.setattr(Gate, "blocked_by", never_blocked)
    assert check_deliveries(deliveries(), Ordering.CAUSAL, follows) != []


def cause_before(writer: Writer) -> int:
    return min(writer.log)


def test_pram_does_not_wait_for_what_was_only_observed() -> None:
    first, second = writers(2)
    core = core_of([first, second], Ordering.PRAM)
    give(core, *first.log.values(), *second.log.values())
    assert keys(give(core, second.put(b"x", b"", observed={first.partition: first.position + 1}))) == [b"x"]


def test_a_dependency_that_was_lost_is_counted_and_waited_for_no_more() -> None:
    first, second = writers(2)
    core = core_of([first, second])
    give(core, *first.log.values(), *second.log.values())
    end = first.position
    first.put(b"lost", b"")
    needs = {first.partition: first.position}
    assert give(core, second.put(b"x", b"", own=needs)) == []
    assert keys(give(core, first.open_epoch(end=end))) == [b"x"]
    assert core.lost_dependencies == 1


def test_a_blocked_partition_stays_within_its_budget_and_catches_up_later() -> None:
    first, second = writers(2)
    core = core_of([first, second], budget_bytes=1)  # raised to one event at least
    give(core, *first.log.values(), *second.log.values())
    needs = {first.partition: first.position + 1}
    value = bytes(100_000)
    for index in range(40):
        give(core, second.put(b"%d" % index, value, own=needs))
    assert core.buffered_bytes < 2 * 1024 * 1024
    effects = give(core, first.put(b"cause", b""))
    delivered = keys(effects)
    while fetches(effects):
        effects = answer(core, second, effects)
        delivered += keys(effects)
    assert delivered == [b"cause", *(b"%d" % index for index in range(40))]


def test_a_finished_epoch_that_is_larger_than_the_budget_is_read_where_only_what_is_durable_counts() -> None:
    (writer,) = writers(1)
    for index in range(40):
        writer.put(b"%d" % index, bytes(100_000))
    end = writer.position
    writer.open_epoch()
    core = SubscriptionCore(Ordering.CAUSAL, {writer.partition: 0}, durable_only=True, budget_bytes=1)
    core.connected()
    run(core)
    core.demoted(Demoted(*writer.partition, 0, writer.position, ends=((epoch_of(end), end),)))
    core.heartbeat(Heartbeat((Heads(*writer.partition, writer.position, writer.position, 0, 0),)))
    effects, delivered = run(core), list[bytes]()
    while fetches(effects):
        effects = answer(core, writer, effects, count=5)
        delivered += keys(effects)
        assert core.buffered_bytes < 2 * 1024 * 1024
    assert delivered == [b"%d" % index for index in range(40)]


def test_what_lies_above_the_known_end_of_a_finished_epoch_is_not_durable() -> None:
    (writer,) = writers(1)
    opening, kept, lost = next(iter(writer.log.values())), writer.put(b"kept", b""), writer.put(b"lost", b"")
    end = writer.position - 1
    record = writer.open_epoch(end=end)
    core = SubscriptionCore(Ordering.CAUSAL, {writer.partition: 0}, durable_only=True)
    core.connected()
    core.following(Following(*writer.partition, 0, writer.position, writer.position, ((epoch_of(end), end),), 0))
    assert keys(give(core, opening, kept, lost)) == [b"kept"]
    assert keys(give(core, record)) == []
    assert core.position(writer.partition) == writer.position


def test_credit_goes_back_for_what_was_delivered() -> None:
    (writer,) = writers(1)
    core = core_of([writer])
    give(core, *writer.log.values())
    effects = [effect for _ in range(10) for effect in give(core, writer.put(b"k", bytes(100_000)))]
    credits = [effect.consumed_bytes for effect in effects if isinstance(effect, SendCredit)]
    assert credits and credits == sorted(credits)


def test_an_event_that_cannot_be_decoded_is_fetched_once_more_and_then_stops_its_partition_O04() -> None:
    writer, other = writers(2)
    core = core_of([writer, other])
    give(core, *writer.log.values(), *other.log.values())
    before = [writer.put(b"%d" % index, b"") for index in range(1, 5)]
    poison = writer.place(poison_of(writer.partition, writer.position + 1))
    behind = [writer.put(b"%d" % index, b"") for index in range(6, 11)]
    effects = give(core, *before, poison, *behind)
    assert keys(effects) == [b"1", b"2", b"3", b"4"]
    effects = answer(core, writer, effects)
    assert len(fetches(effects)) == 1
    effects = answer(core, writer, effects)
    (stopped,) = [effect for effect in effects if isinstance(effect, Stopped)]
    assert isinstance(stopped.error, CorruptLog) and stopped.error.position == writer.position - 5
    assert core.position(writer.partition) == writer.position - 6
    core.tick(100.0)
    assert fetches(run(core)) == [] and keys(give(core, *behind)) == []
    assert keys(give(core, other.put(b"others go on", b""))) == [b"others go on"]


def poison_of(partition: PartitionId, position: int) -> bytearray:
    """Its checksums are right; its payload is an array of another shape."""
    frame = encode_event(partition, Head("p", 1, 5), Delete((b"k",)))
    frame[-3] = 0xC1  # a byte that MessagePack never uses
    frame[48:56] = checksum(memoryview(frame)[64:]).to_bytes(8, "little")
    stamp_frame(frame, position=position, time=1, nonce=1)
    return frame


def test_an_answer_that_never_comes_is_asked_for_again() -> None:
    (writer,) = writers(1)
    core = core_of([writer])
    give(core, *writer.log.values())
    writer.put(b"a", b"")
    effects = give(core, writer.put(b"b", b""))
    assert len(fetches(effects)) == 1
    core.tick(1.0)
    assert fetches(run(core)) == []
    core.tick(60.0)
    assert len(fetches(run(core))) == 1
