"""The session core by itself: calls and answers in, sends and outcomes out."""

from __future__ import annotations

import pytest

from fakes.session_world import World, put_draft, put_values
from paramstream.consistency.position import position
from paramstream.consistency.vector import VersionVector
from paramstream.errors import EventLost, Fenced, OutcomeUnknown, StorageFull, UnknownTopic
from paramstream.events.codec import decode_vector
from paramstream.producers.calls import Call
from paramstream.producers.effects import Send
from paramstream.producers.session_core import PUTS_BEFORE_JOINING
from paramstream.transport.calls import Join

P, Q, R = (7, 0), (7, 1), (7, 2)


@pytest.fixture
def world() -> World:
    return World([P, Q, R])


def test_events_of_one_partition_are_pipelined(world: World) -> None:
    for _ in range(3):
        world.put(P)
    assert world.on_wire() == [(0, 1), (0, 2), (0, 3)]
    assert [event.head.previous for event in world.sent] == [0, 1, 2]


def test_a_call_to_another_partition_waits_for_the_acks_and_later_calls_wait_behind_it(world: World) -> None:
    world.put(P)
    world.put(Q)
    world.put(P)
    assert world.on_wire() == [(0, 1)]
    world.arrive()
    world.answer()
    assert world.on_wire() == [(0, 1), (1, 1)]
    assert decode_vector(world.sent[1].head.own) == VersionVector({P: position(1, 1)})
    world.settle()
    assert world.on_wire() == [(0, 1), (1, 1), (0, 2)]


def test_parts_of_one_call_go_side_by_side_but_only_when_nothing_else_is_unacknowledged(world: World) -> None:
    world.put(P)
    world.call([put_draft(P), put_draft(Q), put_draft(R)])
    assert world.on_wire() == [(0, 1)]
    world.arrive()
    world.answer()
    assert world.on_wire() == [(0, 1), (0, 2), (1, 1), (2, 1)]


def test_a_later_call_waits_for_the_other_parts_of_a_call_that_went_side_by_side(world: World) -> None:
    world.call([put_draft(P), put_draft(Q)])
    world.put(P)
    assert world.on_wire() == [(0, 1), (1, 1)]
    world.arrive(1)
    world.answer()
    assert len(world.sent) == 2
    world.arrive(1)
    world.answer()
    assert world.on_wire()[-1] == (0, 2)


def test_past_sixteen_events_in_flight_queued_puts_share_an_event(world: World) -> None:
    values = [b"%d" % n for n in range(PUTS_BEFORE_JOINING + 10)]
    calls = [world.put(P, value) for value in values]
    assert len(world.sent) == PUTS_BEFORE_JOINING
    world.arrive(1)
    world.answer()
    assert put_values(world.sent[-1]) == values[PUTS_BEFORE_JOINING:]
    world.settle()
    assert {call.positions[P] for call in calls[PUTS_BEFORE_JOINING:]} == {position(1, PUTS_BEFORE_JOINING + 1)}


def test_queued_puts_are_not_joined_over_a_put_to_another_partition(world: World) -> None:
    for where in (P, Q, P):
        world.put(where)
    world.settle()
    assert [len(put_values(event)) for event in world.sent] == [1, 1, 1]


def test_what_waits_in_the_queue_is_copied_N08(world: World) -> None:
    world.put(P)
    value = bytearray(b"before")
    draft = put_draft(Q, bytes(value))
    draft.bulk = (value,)
    world.call([draft])
    value[:] = b"after!"
    world.settle()
    assert put_values(world.sent[-1]) == [b"before"]


def test_a_refused_event_is_turned_down_and_what_was_behind_it_goes_again(world: World) -> None:
    world.owner.refuse_next = StorageFull("full")
    first, second, third = world.put(P, b"1"), world.put(P, b"2"), world.put(P, b"3")
    world.settle()
    assert isinstance(first.error, StorageFull) and first.outcome() == "refused"
    assert [call.outcome() for call in (second, third)] == ["accepted", "accepted"]
    assert [put_values(event) for _, event in world.owner.partitions[P].events] == [[b"2"], [b"3"]]
    assert [event.head.sequence for _, event in world.owner.partitions[P].events] == [2, 3]


def test_what_is_left_of_a_publish_that_was_refused_one_event_is_not_sent(world: World) -> None:
    world.owner.refuse_next = StorageFull("full")
    call = world.call([put_draft(P, b"%d" % n) for n in range(5)], whole=True)
    after = world.put(P, b"after")
    world.settle()
    assert isinstance(call.error, StorageFull)
    assert [put_values(event) for _, event in world.owner.partitions[P].events] == [[b"after"]]
    assert after.accepted


def test_a_heartbeat_makes_accepted_events_durable(world: World) -> None:
    call = world.put(P)
    world.settle()
    assert call.outcome() == "accepted"
    world.sync()
    assert call.outcome() == "durable"
    assert world.history[call.serial] == ["accepted", "durable"]


@pytest.mark.parametrize(("persistence", "outcome"), [("none", "accepted"), ("write_through", "durable")])
def test_other_persistence_needs_no_heartbeat(world: World, persistence: str, outcome: str) -> None:
    call = world.put(P, persistence=persistence)
    world.settle()
    assert call.final and call.outcome() == outcome


def test_after_a_loss_of_the_connection_what_stands_is_accepted_and_the_rest_goes_again(world: World) -> None:
    calls = [world.put(P, b"%d" % n) for n in range(4)]
    world.disconnect(arrived=2)
    assert [call.outcome() for call in calls] == ["unknown"] * 4
    world.connect()
    assert [call.outcome() for call in calls[:2]] == ["accepted"] * 2
    world.settle()
    assert [call.outcome() for call in calls] == ["accepted"] * 4
    events = world.owner.partitions[P].events
    assert [event.head.sequence for _, event in events] == [1, 2, 3, 4]


def test_what_was_seen_of_another_epoch_is_lost_and_what_never_went_is_sent(world: World) -> None:
    seen = world.put(P, b"seen")
    world.disconnect(arrived=0)
    unsent = world.put(P, b"unsent")
    world.owner.takeover(P)
    world.connect()
    world.settle()
    assert isinstance(seen.error, EventLost) and seen.outcome() == "lost"
    assert unsent.accepted
    [(_, event)] = world.owner.partitions[P].events
    assert (put_values(event), event.head.sequence, event.head.joined_epoch) == ([b"unsent"], 2, 2)


def test_what_the_log_lacks_goes_again_where_nobody_can_have_seen_it(world: World) -> None:
    call = world.put(P)
    world.disconnect(arrived=1)
    world.owner.takeover(P, lose=1, resend=True)
    world.connect()
    world.settle()
    assert call.accepted
    assert [event.head.sequence for _, event in world.owner.partitions[P].events] == [1]


def test_accepted_events_above_the_end_of_their_epoch_are_lost_and_the_others_durable(world: World) -> None:
    calls = [world.put(P, b"%d" % n) for n in range(3)]
    world.settle()
    world.disconnect()
    world.owner.takeover(P, lose=1)
    world.connect()
    assert [call.outcome() for call in calls] == ["durable", "durable", "lost"]
    assert world.history[calls[2].serial] == ["accepted", "lost"]


def test_nothing_depends_on_a_lost_event(world: World) -> None:
    world.put(P)
    world.put(P)
    world.settle()
    world.disconnect()
    world.owner.takeover(P, lose=1)
    world.connect()
    world.put(Q)
    assert decode_vector(world.sent[-1].head.own) == VersionVector({P: position(1, 1)})


def test_what_goes_again_depends_on_nothing_that_the_same_answer_says_is_lost(world: World) -> None:
    world.put(R)
    world.settle()
    world.disconnect()
    world.put(P)
    world.owner.takeover(R, lose=1)
    world.connect()
    assert decode_vector(world.sent[-1].head.own) == VersionVector({R: position(1, 0)})


def test_a_new_incarnation_depends_on_nothing_that_was_lost(world: World) -> None:
    world.put(P)
    world.settle()
    world.put(Q)
    world.settle()
    world.owner.takeover(P, lose=1)
    second = World([])
    second.owner = world.owner
    second.core.incarnation = world.owner.open("p")
    second.connect()
    second.put(R)
    expected = VersionVector({P: position(1, 0), Q: position(1, 1)})
    assert decode_vector(second.sent[-1].head.own) == expected


def test_a_publish_that_lost_an_accepted_event_is_lost_from_there_on(world: World) -> None:
    call = Call((P,), "write_back", whole=True)
    world.do(world.core.begin(call))
    world.do(world.core.add(call, put_draft(P, b"1"))[1])
    world.settle()
    world.disconnect()
    world.do(world.core.add(call, put_draft(P, b"2"))[1])
    world.owner.takeover(P, lose=1)
    world.connect()
    world.settle()
    assert isinstance(call.error, EventLost)
    assert world.core.add(call, put_draft(P, b"3"))[0] == 0
    world.do(world.core.finish(call))
    assert world.owner.partitions[P].events == []
    assert world.put(P, b"next").outcome() == "pending"


def test_a_heartbeat_of_a_later_epoch_makes_the_session_join_again(world: World) -> None:
    call = world.put(P)
    world.settle()
    world.owner.takeover(P, lose=0)
    world.do(world.core.heads(world.owner.heartbeat()))
    assert world.join_wanted
    world.answer()
    assert call.outcome() == "durable"


def test_what_was_refused_once_for_its_epoch_goes_again_over_the_same_connection(world: World) -> None:
    world.owner.takeover(P)
    calls = [world.put(P, b"%d" % n) for n in range(3)]
    world.arrive()
    world.answer(2)
    assert not world.join_wanted, "one event on the wire still has no answer"
    world.answer()
    world.settle()
    assert [call.outcome() for call in calls] == ["accepted"] * 3
    assert [event.head.sequence for _, event in world.owner.partitions[P].events] == [1, 2, 3]


def test_a_new_incarnation_starts_from_the_past_of_the_name(world: World) -> None:
    world.put(P)
    world.put(Q)
    world.settle()
    second = World([])
    second.owner = world.owner
    second.core.incarnation = world.owner.open("p")
    second.connect()
    second.put(R)
    expected = VersionVector({P: position(1, 1), Q: position(1, 1)})
    assert decode_vector(second.sent[-1].head.own) == expected


def test_an_older_session_is_fenced_and_everything_without_an_answer_fails(world: World) -> None:
    world.owner.open("p")
    call, queued = world.put(P), world.put(Q)
    world.settle()
    assert world.fenced
    assert isinstance(call.error, Fenced) and isinstance(queued.error, Fenced)


def test_what_a_fenced_session_has_on_the_wire_gets_its_own_answer(world: World) -> None:
    stands, refused, queued = world.put(P), world.put(P), world.put(Q)
    world.arrive(1)
    world.owner.open("p")
    world.arrive()
    # The refusal overtakes the ack, as it does under write_through.
    world.down.reverse()
    world.settle()
    assert world.fenced and isinstance(refused.error, Fenced) and isinstance(queued.error, Fenced)
    assert stands.accepted and stands.error is None
    assert world.core.answered
    world.sync()
    assert stands.durable


def test_what_nobody_can_tell_a_fenced_session_is_unknown(world: World) -> None:
    call = world.put(P)
    world.owner.open("p")
    world.disconnect(arrived=0)
    world.do(world.core.fence(Fenced("a newer one is served"), fresh=True))
    assert isinstance(call.error, OutcomeUnknown) and call.outcome() == "unknown"
    assert world.core.answered


def test_a_call_that_a_fenced_session_had_sent_in_part_ends_too(world: World) -> None:
    call = Call((P, Q), "write_back")
    effects = world.core.submit(call, [put_draft(P, b"1"), put_draft(Q, b"1")])
    [_, unsent] = [effect for effect in effects if isinstance(effect, Send)]
    world.do(world.core.unsent(unsent.event))
    world.disconnect(arrived=0)
    world.do(world.core.fence(Fenced("a newer one is served"), fresh=True))
    assert isinstance(call.error, Fenced) and call.final
    assert world.core.answered


def test_a_frame_that_found_no_room_goes_with_the_next_try_in_its_order(world: World) -> None:
    call = Call((P,), "write_back")
    [send] = [e for e in world.core.submit(call, [put_draft(P, b"1")]) if hasattr(e, "frame")]
    world.do(world.core.unsent(send.event))  # type: ignore[union-attr]
    world.put(P, b"2")
    assert world.sent == []
    world.do(world.core.retry())
    world.settle()
    assert [put_values(event) for event in world.sent] == [[b"1"], [b"2"]]


def test_a_frame_that_found_no_room_after_a_loss_goes_though_an_older_copy_was_sent(world: World) -> None:
    call = world.put(P, b"1")
    world.disconnect(arrived=0)
    answer = world.owner.join(Join("p", world.core.incarnation, world.core.unconfirmed()))
    [send] = [effect for effect in world.core.joined(answer, fresh=True) if isinstance(effect, Send)]
    world.do(world.core.unsent(send.event))
    assert not world.up
    world.do(world.core.retry())
    world.settle()
    assert call.accepted


def test_events_of_a_deleted_topic_fail_and_others_go_on(world: World) -> None:
    gone = world.put(P)
    kept = world.put(Q)
    world.disconnect()
    del world.owner.partitions[P]
    world.connect()
    world.settle()
    assert isinstance(gone.error, UnknownTopic)
    assert kept.accepted


def test_what_may_stand_in_a_stopped_partition_is_settled_once_it_is_back(world: World) -> None:
    safe, shaky = world.put(P, b"safe"), world.put(P, b"shaky")
    world.settle()
    unanswered = world.put(P, b"unanswered")
    world.disconnect(arrived=1)
    unsent = world.put(P, b"unsent")
    world.owner.stopped[P] = StorageFull("no space")
    world.connect()
    assert [call.outcome() for call in (safe, shaky, unanswered)] == ["accepted", "accepted", "unknown"]
    assert isinstance(unsent.error, StorageFull)
    world.put(Q)
    assert world.on_wire()[-1] == (0, 3), "order: it may not go before what it follows on is known"
    world.disconnect()
    world.owner.stopped.clear()
    world.owner.takeover(P, lose=2)
    world.connect()
    world.settle()
    assert [call.outcome() for call in (safe, shaky, unanswered)] == ["durable", "lost", "lost"]


def test_what_stands_in_a_stopped_partition_is_what_later_events_depend_on(world: World) -> None:
    world.put(P)
    world.settle()
    world.disconnect()
    world.owner.stopped[P] = StorageFull("no space")
    world.connect()
    world.put(Q)
    assert decode_vector(world.sent[-1].head.own) == VersionVector({P: position(1, 1)})
    world.owner.takeover(P)
    world.sync()
    assert not world.join_wanted, "a join would tell nothing new"


def test_every_event_says_up_to_where_the_session_has_answers(world: World) -> None:
    world.put(P)
    world.put(P)
    world.settle()
    world.put(P)
    assert [event.head.confirmed for event in world.sent] == [0, 0, 2]


def test_the_window_bounds_what_is_on_the_wire_but_for_one_event() -> None:
    world = World([P], window_bytes=2000)
    call = Call((P,), "write_back")
    world.do(world.core.begin(call))
    large = put_draft(P, bytes(5000))
    assert world.core.its_turn(call, large.nbytes)
    world.do(world.core.add(call, large)[1])
    small = put_draft(P, b"x")
    assert not world.core.its_turn(call, small.nbytes)
    world.settle()
    assert world.core.its_turn(call, small.nbytes)


def test_calls_behind_an_open_call_do_not_take_its_window() -> None:
    world = World([P, Q], window_bytes=3000)
    call = Call((P,), "write_back", whole=True)
    world.do(world.core.begin(call))
    world.do(world.core.add(call, put_draft(P, bytes(1000)))[1])
    while world.core.has_room(put_draft(Q, bytes(100)).nbytes):
        world.put(Q, bytes(100))
    world.settle()
    assert world.core.its_turn(call, put_draft(P, bytes(1000)).nbytes)
