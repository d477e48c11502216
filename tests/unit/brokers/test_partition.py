"""The partition core: state in, effects out."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from cores.partitions import (
    CLOCK_S,
    PARTITION,
    PEER,
    Log,
    Machine,
    Session,
    acked,
    fanned_out,
    put,
    refused,
    start,
)
from paramstream.brokers.checks import Role
from paramstream.brokers.effects import Answer, Append, FanOut, Origin
from paramstream.brokers.partition import Persistence
from paramstream.consistency.position import MAX_OFFSET, epoch_of, next_epoch, offset_of, position
from paramstream.errors import EventLost, Fenced, InvalidEvent, OutcomeUnknown, StorageFull, UnknownTopic
from paramstream.events.codec import decode_event
from paramstream.events.kinds import (
    Chunk,
    Claim,
    Delete,
    DeleteRows,
    Epoch,
    Gradients,
    Kind,
    Note,
    Optimizer,
    Payload,
    Put,
    PutItem,
    Rows,
    Segment,
    Table,
)
from paramstream.transport.messages import Ack, Refused


def session_of(core: Any, name: str = "trainer-0", incarnation: int = 1) -> Session:
    session = Session(core, name, incarnation)
    session.join()
    return session


def test_an_event_is_appended_answered_and_fanned_out_at_once_under_write_back() -> None:
    core = start()
    session = session_of(core)
    frame = session.frame(*put())
    at = position(core.epoch, 1)
    assert session.send(frame) == [
        Append(frame.buffer, at),
        Answer(PEER, Ack(*PARTITION, 1, ((1, at),))),
        FanOut(frame.buffer, at),
    ]
    assert (core.accepted, core.durable) == (at, position(core.epoch, 0))
    core.synced(at)
    assert core.durable == at


def test_the_frame_is_stamped_in_place_with_position_time_and_nonce() -> None:
    core = start()
    session = session_of(core)
    frame = session.frame(*put())
    session.send(frame)
    stamped = decode_event(frame.buffer)
    assert (stamped.position, stamped.nonce, stamped.time) == (position(core.epoch, 1), 5, int(CLOCK_S * 1e9) + 1_000)
    assert (stamped.head, stamped.payload) == (frame.head, frame.payload)


def test_under_write_through_answers_and_fan_out_come_in_order_once_the_log_has_them() -> None:
    core = start(persistence="write_through")
    session = session_of(core)
    first, second = session.frame(*put()), session.frame(*put(), sequence=2, previous=1)
    one, two = position(core.epoch, 1), position(core.epoch, 2)
    assert session.send(first) == [Append(first.buffer, one)]
    assert session.send(second) == [Append(second.buffer, two)]
    assert core.accepted == core.durable == position(core.epoch, 0)
    assert core.answers_wait_for == two
    assert core.synced(one) == [Answer(PEER, Ack(*PARTITION, 1, ((1, one),))), FanOut(first.buffer, one)]
    assert core.accepted == core.durable == one
    assert core.synced(two) == [Answer(PEER, Ack(*PARTITION, 1, ((2, two),))), FanOut(second.buffer, two)]


def test_a_repeat_under_write_through_is_answered_only_when_its_event_is_durable() -> None:
    core = start(persistence="write_through")
    session = session_of(core)
    session.write(*put())
    assert session.send(session.frame(*put(), sequence=1, previous=0)) == []
    assert acked(core.synced(core.sequenced)) == [(1, core.sequenced), (1, core.sequenced)]


def test_under_none_events_stay_in_memory_and_accepted_stands_for_durable() -> None:
    core = start(persistence="none")
    session = session_of(core)
    effects = session.send(session.frame(*put()))
    assert [effect.lasting for effect in effects if isinstance(effect, Append)] == [False]
    assert core.durable == core.accepted == position(core.epoch, 1)


def test_a_repeat_is_answered_with_its_position_until_it_is_confirmed() -> None:
    core = start()
    session = session_of(core)
    for _ in range(3):
        session.write(*put())
    repeat = session.frame(*put(), sequence=2, previous=1)
    assert acked(session.send(repeat)) == [(2, position(core.epoch, 2))]
    session.send(session.frame(*put(), confirmed=2))
    assert refused(session.send(repeat)).error.code == EventLost.__name__
    assert acked(session.send(session.frame(*put(), sequence=3, previous=2))) == [(3, position(core.epoch, 3))]


def test_an_event_that_does_not_follow_on_the_last_one_is_refused_as_a_gap_and_uses_up_nothing() -> None:
    core = start()
    session = session_of(core)
    session.write(*put())
    answer = refused(session.send(session.frame(*put(), sequence=3, previous=2)))
    assert (answer.gap, answer.rejoin, answer.sequence, answer.last_sequence) == (True, False, 3, 1)
    assert core.sequenced == position(core.epoch, 1)
    # Naming the right one it is taken, with a jump over the sequence that was given away.
    assert acked(session.send(session.frame(*put(), sequence=3, previous=1))) == [(3, position(core.epoch, 2))]


def test_an_event_that_names_another_epoch_is_told_to_join_again() -> None:
    core = start()
    session = session_of(core)
    session.epoch -= 1
    answer = refused(session.send(session.frame(*put())))
    assert (answer.rejoin, answer.gap, answer.error.code) == (True, False, OutcomeUnknown.__name__)


def test_an_older_incarnation_is_fenced_when_a_newer_one_joins() -> None:
    core = start()
    older = session_of(core)
    older.write(*put())
    session_of(core, incarnation=2)
    assert isinstance(older.refusal(*put()), Fenced)
    with pytest.raises(Fenced, match="incarnation 2 after 1"):
        older.join()


def test_an_older_incarnation_is_fenced_whatever_epoch_it_names() -> None:
    core = start()
    older = session_of(core)
    session_of(core, incarnation=2)
    older.epoch -= 1
    assert isinstance(older.refusal(*put()), Fenced)


def test_a_join_holds_for_one_epoch_only() -> None:
    core = start()
    session = session_of(core)
    core.state.position = position(core.epoch, MAX_OFFSET)
    core.write(Note(), (), 10**12)
    assert not core.has_joined("trainer-0", 1)
    session.epoch = core.epoch
    assert isinstance(session.refusal(*put()), Fenced)


def test_an_older_incarnation_stays_fenced_after_a_restart() -> None:
    log = Log()
    core = start(log)
    newer = Session(core, incarnation=2, log=log)
    newer.join()
    newer.write(*put())
    with pytest.raises(Fenced):
        Session(start(log), incarnation=1).join()


def test_an_incarnation_that_did_not_join_is_fenced() -> None:
    core = start()
    stranger = Session(core, "other", 9, epoch=core.epoch)
    assert isinstance(stranger.refusal(*put()), Fenced)
    session = session_of(core)
    core.leave("trainer-0", 1)
    assert isinstance(session.refusal(*put()), Fenced)


def test_a_new_incarnation_begins_its_own_sequences_and_is_told_the_last_event_of_its_name() -> None:
    core = start()
    session_of(core).write(*put())
    newer = Session(core, incarnation=2)
    joined = newer.join()
    assert joined.last is not None and (joined.last.incarnation, joined.last.sequence) == (1, 1)
    assert (joined.last_sequence, joined.positions) == (0, ())
    assert newer.write(*put()) == 1


def test_joining_again_in_an_epoch_changes_nothing() -> None:
    core = start()
    session = session_of(core)
    session.write(*put())
    before = core.base()
    joined = session.join([1])
    assert (joined.last_sequence, joined.positions) == (1, ((1, core.sequenced),))
    assert core.base() == before
    assert session.write(*put()) == 2


def test_the_source_of_an_output_is_answered_to_later_incarnations() -> None:
    core = start()
    session = session_of(core)
    session.send(session.frame(*put(), source=(900, 3)))
    session.write(*put())
    newer = Session(core, incarnation=2)
    joined = newer.join()
    assert joined.last is not None and joined.last.source == (900, 3)


@pytest.mark.parametrize(
    ("role", "payload", "bulk"),
    [
        ("state", Chunk(1, (Segment("w", 0, 4),)), [bytes(4)]),
        ("weights", *put()),
        ("meta", *put()),
        ("state", Table("t", 4, "float32"), []),
        ("state", Note(), []),
        ("state", Epoch(0), []),
        ("state", Claim(1, 2, "x"), []),
    ],
)
def test_a_kind_that_does_not_belong_there_is_refused(role: Role, payload: Payload, bulk: list[bytes]) -> None:
    core = start(role=role)
    assert isinstance(session_of(core).refusal(payload, bulk), InvalidEvent)
    assert core.sequenced == position(core.epoch, 0)


@pytest.mark.parametrize(
    ("payload", "bulk"),
    [
        (Put(items=(PutItem(b"k", 3),)), [b"v"]),
        (Delete(keys=(b"",)), []),
        (Put(items=(PutItem(b"k", 1, ttl_ns=-1),)), [b"v"]),
    ],
)
def test_a_payload_that_is_not_whole_is_refused(payload: Payload, bulk: list[bytes]) -> None:
    assert isinstance(session_of(start()).refusal(payload, bulk), InvalidEvent)


def test_rows_must_match_a_table_that_the_partition_has() -> None:
    core = start()
    session = session_of(core)
    rows = Rows("users", 1, 2, "float32")
    assert isinstance(session.refusal(rows, [bytes(16)]), UnknownTopic)
    assert isinstance(session.refusal(DeleteRows("users", 1), [bytes(8)]), UnknownTopic)
    table = Table("users", 2, "float32")
    core.write(table, (), 10**12)
    assert core.table("users") == table
    session.write(rows, [bytes(16)])
    session.write(DeleteRows("users", 1), [bytes(8)])
    assert isinstance(session.refusal(Gradients("users", 1, 3, "float32"), [bytes(20)]), InvalidEvent)
    gradients = Gradients("users", 1, 2, "float32"), [bytes(16)]
    error = session.refusal(*gradients)
    assert isinstance(error, InvalidEvent) and "no optimizer" in error.problem
    core.write(msgspec.structs.replace(table, optimizer=Optimizer("sgd", {"lr": 1.0})), (), 10**12)
    session.write(*gradients)
    error = session.refusal(Rows("users", 1, 2, "float64"), [bytes(24)])
    assert isinstance(error, InvalidEvent) and "float64" in error.problem and "float32" in error.problem


def test_a_full_log_refuses_and_the_same_event_is_taken_once_there_is_room() -> None:
    core = start()
    session = session_of(core)
    frame = session.frame(*put())
    answer = refused(session.send(frame, log_has_room=False))
    assert answer.error.code == StorageFull.__name__ and answer.last_sequence == 0
    assert answer.error.fields["topic"] == "models" and answer.error.fields["partition"] == PARTITION[1]
    assert acked(session.send(frame)) == [(1, position(core.epoch, 1))]


@pytest.mark.parametrize("confirmed", [-1, 1, 9])
def test_an_event_cannot_confirm_itself_or_what_comes_after_it(confirmed: int) -> None:
    session = session_of(start())
    answer = refused(session.send(session.frame(*put(), confirmed=confirmed)))
    assert answer.error.code == InvalidEvent.__name__


def test_an_event_without_a_producer_is_refused() -> None:
    core = start()
    session = Session(core, "", 0, epoch=core.epoch)
    assert isinstance(session.refusal(*put()), InvalidEvent)


def test_a_vector_that_cannot_be_decoded_is_refused() -> None:
    from paramstream.events.codec import Head, encode_event

    core = start()
    session = session_of(core)
    head = Head("trainer-0", 1, 1, 0, session.epoch, own=b"torn")
    payload, bulk = put()
    answer = refused(session.send(decode_event(encode_event(PARTITION, head, payload, bulk))))
    assert answer.error.code == InvalidEvent.__name__ and "own" in answer.error.problem


def test_a_full_offset_opens_the_next_epoch_and_sessions_join_again() -> None:
    log = Log()
    core = start(log)
    session = Session(core, log=log)
    session.join()
    old_epoch = core.epoch
    core.state.position = position(old_epoch, MAX_OFFSET - 1)
    session.write(*put())
    full = core.sequenced
    assert offset_of(full) == MAX_OFFSET
    effects = session.send(session.frame(*put()))
    kinds = [decode_event(effect.frame).kind for effect in effects if isinstance(effect, Append)]
    assert kinds == [Kind.CLAIM, Kind.EPOCH, Kind.BASE]
    assert isinstance(effects[-1], Answer)
    assert refused([effects[-1]]).rejoin
    assert core.epoch > old_epoch
    assert core.answers_wait_for == position(core.epoch, 0) > core.durable
    core.synced(core.answers_wait_for)
    assert core.ends[-1] == (old_epoch, full)
    joined = session.join([1, 2], sent_in=old_epoch)
    assert joined.positions == ((1, full),)
    session.sequence = 1
    assert acked(session.send(session.frame(*put()))) == [(2, position(core.epoch, 1))]


def test_under_none_too_a_join_waits_until_the_beginning_of_its_epoch_is_durable() -> None:
    core = start(persistence="none")
    session = session_of(core)
    core.state.position = position(core.epoch, MAX_OFFSET - 1)
    session.write(*put())
    full = core.sequenced
    assert core.durable == full
    session.send(session.frame(*put()))
    assert core.durable == core.accepted == full < core.answers_wait_for
    core.synced(core.answers_wait_for)
    assert core.durable == core.accepted == position(core.epoch, 0)


def test_the_owners_own_event_opens_the_next_epoch_where_offsets_are_used_up() -> None:
    core = start()
    core.state.position = position(core.epoch, MAX_OFFSET)
    old_epoch = core.epoch
    effects = core.write(Note(), (), 10**12)
    kinds = [decode_event(effect.frame).kind for effect in effects if isinstance(effect, Append)]
    assert kinds == [Kind.CLAIM, Kind.EPOCH, Kind.BASE, Kind.NOTE]
    assert core.epoch > old_epoch


@pytest.mark.parametrize("persistence", ["none", "write_back", "write_through"])
def test_nothing_of_an_epoch_is_shown_before_its_record_is_durable(persistence: Persistence) -> None:
    """A power failure would take it back, and an epoch below it may come next where the clock was set back."""
    core = start(persistence=persistence)
    full = core.state.position = position(core.epoch, MAX_OFFSET)
    core.synced(full)
    effects, record = core.write(Note(), (), 10**12), position(core.epoch, 0)
    assert fanned_out(effects) == [] and list(core.ends) == []
    assert core.accepted == core.durable == full
    released = core.synced(record)
    assert core.accepted == fanned_out(released)[-1] and fanned_out(released)[0] == record
    assert core.ends == ((epoch_of(full), full),)


def test_partition_time_goes_on_from_the_last_stamp_where_the_clock_went_back_an_hour() -> None:
    log = Log()
    ahead = Machine(clock_s=CLOCK_S + 3600)
    session = Session(start(log, machine=ahead), log=log)
    session.join()
    session.write(*put())
    last = log.frames[-1].time
    core = start(log, machine=Machine(clock_s=CLOCK_S, monotonic_ns=50))
    assert core.time(50) == last and core.time(1_050) == last + 1_000
    assert core.heads(50).time == last
    record = next(frame for frame in reversed(log.frames) if frame.kind is Kind.EPOCH)
    assert record.time == last


def test_time_never_runs_back_where_the_monotonic_clock_seems_to() -> None:
    core = start()
    session = session_of(core)
    session.write(*put())
    stamp = core.state.time
    assert core.time(0) == stamp


def test_an_epoch_is_above_every_claim_and_above_all_that_stands() -> None:
    log = Log()
    core = start(log, machine=Machine(clock_s=0))
    assert core.epoch == next_epoch(0, 0) == 1
    other = start(log, machine=Machine(clock_s=0))
    assert other.epoch == 2
    assert epoch_of(other.sequenced) == 2


def test_what_the_owner_writes_belongs_to_no_session() -> None:
    core = start()
    core.write(Note(), (), 10**12)
    assert core.state.sessions == {} and core.sequenced == position(core.epoch, 1)


def test_names_are_forgotten_below_the_logs_start_but_not_those_with_a_source() -> None:
    core = start()
    for name, source in (("plain", None), ("task/0", (900, 1)), ("late", None)):
        session = session_of(core, name)
        session.send(session.frame(*put(), source=source))
        core.leave(name, 1)
    core.trimmed(position(core.epoch, 2))
    assert sorted(core.state.sessions) == ["late", "task/0"]


def test_a_live_session_goes_on_from_its_last_event_however_old_that_is() -> None:
    core = start()
    session = session_of(core)
    session.write(*put())
    core.trimmed(core.sequenced)
    assert acked(session.send(session.frame(*put(), sequence=1, previous=0))) == [(1, position(core.epoch, 1))]
    assert session.write(*put()) == 2


def test_the_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        start().settings.retain_versions = 3  # type: ignore[misc]
    assert replace(start().settings, retain_versions=3).retain_versions == 3


def test_what_comes_over_a_connection_that_the_session_has_left_has_no_effect() -> None:
    session = session_of(start())
    late = session.frame(*put())
    session.serial = 2
    session.join()
    assert session.core.sequence(late, Origin(b"old", 1), 10**12, True) == []
    assert session.core.sequence(late, Origin(b"new", 2), 10**12, True) != []


def test_a_late_join_over_an_older_connection_does_not_win() -> None:
    session = session_of(start())
    session.serial = 2
    session.join()
    with pytest.raises(OutcomeUnknown):
        session.core.join(session.name, session.incarnation, None, 1)


def test_where_all_were_parted_a_session_joins_again_before_it_writes() -> None:
    session = session_of(start())
    session.write(*put())
    session.core.part_all()
    (answer,) = session.send(session.frame(*put()))
    assert isinstance(answer, Answer) and isinstance(answer.message, Refused)
    session.join()
    assert session.write(*put()) == 2
