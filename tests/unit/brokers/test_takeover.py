"""A start is a takeover: what stands is what the log holds, what may go again is what nobody can have seen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cores.partitions import Log, Machine, Session, Weights, put, start
from paramstream.brokers.partition import PartitionCore, PartitionSettings, Persistence
from paramstream.brokers.state import PartitionState
from paramstream.consistency.position import epoch_of, position
from paramstream.errors import CorruptLog
from paramstream.events.codec import Head, decode_event, encode_event, stamp_frame
from paramstream.events.kinds import Base, Epoch, Kind, Note


def session_over(log: Log, **settings: object) -> Session:
    session = Session(start(log, **settings), log=log)  # type: ignore[arg-type]
    session.join()
    return session


def test_an_epochs_opening_is_its_record_which_names_the_end_before_it_and_then_a_base() -> None:
    log = Log()
    session = session_over(log)
    session.write(*put())
    end = session.core.sequenced
    before = len(log.frames)
    core = start(log, machine=Machine(boot="boot-9", failed_writes=4))
    claim, record, base = log.frames[before:]
    assert [frame.kind for frame in (claim, record, base)] == [Kind.CLAIM, Kind.EPOCH, Kind.BASE]
    assert record.payload == Epoch(previous_end=end, boot="boot-9", failed_writes=4)
    assert record.position == base.position == position(core.epoch, 0)
    assert (claim.nonce, record.nonce, base.nonce) == (5, 5, 5)
    assert core.ends == ((epoch_of(end), end),)


def test_a_killed_broker_goes_on_with_all_that_the_log_has() -> None:
    log = Log()
    session = session_over(log)
    for _ in range(3):
        session.write(*put())
    last = session.core.sequenced
    session.core = start(log)
    joined = session.join([2, 3, 4], sent_in=epoch_of(last))
    assert joined.last_sequence == 3
    assert joined.positions == ((2, last - 1), (3, last))
    assert joined.resend
    assert joined.last is not None and joined.last.position == last


def test_a_lost_tail_is_named_by_the_next_epochs_record_and_does_not_come_back() -> None:
    log = Log()
    session = session_over(log)
    for _ in range(4):
        session.write(*put())
    epoch, stands = session.epoch, session.core.sequenced - 2
    del log.frames[-2:]
    session.core = start(log, machine=Machine(boot="after the power failure"))
    joined = session.join([1, 2, 3, 4], sent_in=epoch)
    assert joined.ends == ((epoch, stands),)
    assert [sequence for sequence, _ in joined.positions] == [1, 2]
    assert not joined.resend
    session.sequence = 4
    assert session.write(*put()) == 5


@pytest.mark.parametrize(
    ("persistence", "boot", "failed_writes", "resend"),
    [
        ("write_back", "boot-0", 0, True),
        ("write_back", "boot-1", 0, False),
        ("write_back", "boot-0", 1, False),
        ("write_through", "boot-1", 1, True),
        ("none", "boot-0", 0, False),
    ],
)
def test_a_session_sends_again_by_itself_only_what_nobody_can_have_seen(
    persistence: Persistence, boot: str, failed_writes: int, resend: bool
) -> None:
    log = Log()
    session = session_over(log, persistence=persistence)
    epoch = session.epoch
    session.core = start(log, persistence=persistence, machine=Machine(boot, failed_writes))
    assert session.join([1], sent_in=epoch).resend is resend


def test_it_is_the_joined_epochs_own_record_that_decides_not_the_last_ones() -> None:
    log = Log()
    session = session_over(log, machine=Machine(boot="before"))
    epoch = session.epoch
    start(log, machine=Machine(boot="after"))
    session.core = start(log, machine=Machine(boot="after"))
    assert not session.join([1], sent_in=epoch).resend


@pytest.mark.parametrize(
    ("persistence", "written_behind", "resend"),
    [("write_back", False, True), ("write_back", True, False), ("none", False, False)],
)
def test_what_an_owner_left_by_a_last_note_lets_all_go_again_that_does_not_stand(
    persistence: Persistence, written_behind: bool, resend: bool
) -> None:
    log, machine = Log(), Machine(boot="")
    session = session_over(log, machine=machine, persistence=persistence)
    session.write(*put())
    epoch = session.epoch
    log.do(session.core.write(Note(leaves=True), (), 10**12))
    if written_behind:
        # It went on after all, and what it fanned out behind this may have been lost.
        log.do(session.core.write(Note(), (), 10**12))
    start(log, machine=machine, persistence=persistence)
    session.core = start(log, machine=machine, persistence=persistence)
    assert session.join([1, 2], sent_in=epoch).resend is resend


def test_a_log_without_a_boot_id_lets_nothing_go_again() -> None:
    log = Log()
    session = session_over(log, machine=Machine(boot=""))
    epoch = session.epoch
    session.core = start(log, machine=Machine(boot=""))
    assert not session.join([1], sent_in=epoch).resend


def test_within_an_epoch_everything_goes_again_over_a_new_connection() -> None:
    for persistence in ("none", "write_back", "write_through"):
        session = session_over(Log(), persistence=persistence)
        assert session.join([1]).resend


def test_under_none_a_takeover_ends_the_epoch_before_at_its_record() -> None:
    log = Log()
    session = session_over(log, persistence="none")
    session.write(*put())
    epoch = session.epoch
    assert [frame.kind for frame in log.frames] == [Kind.CLAIM, Kind.EPOCH]
    session.core = start(log, persistence="none")
    joined = session.join([1], sent_in=epoch)
    assert joined.ends == ((epoch, position(epoch, 0)),)
    assert (joined.last, joined.positions) == (None, ())


def test_a_base_that_cannot_be_decoded_stops_the_partition() -> None:
    frame = encode_event((77, 3), Head("", 0, 0), Base(1), [b"\xc1"])
    stamp_frame(frame, position=position(1, 0), time=1, nonce=1)
    with pytest.raises(CorruptLog, match="1:0"):
        PartitionCore((77, 3), PartitionSettings("state", "write_back")).recover(decode_event(frame), [])


def test_a_base_that_stands_elsewhere_than_its_state_stops_the_partition() -> None:
    frame = encode_event((77, 3), Head("", 0, 0), Base(1), [PartitionState(position=position(1, 4)).encode()])
    stamp_frame(frame, position=position(1, 5), time=1, nonce=1)
    with pytest.raises(CorruptLog, match="1:5"):
        PartitionCore((77, 3), PartitionSettings("state", "write_back")).recover(decode_event(frame), [])


steps = st.lists(
    st.tuples(
        st.sampled_from(["chunk", "publish", "rewind", "restart", "other"]), st.integers(0, 2), st.integers(0, 3)
    ),
    min_size=1,
    max_size=25,
)


@given(steps=steps)
def test_a_base_and_what_follows_it_end_in_the_same_state_as_all_records(steps: list[tuple[str, int, int]]) -> None:
    log = Log()
    core = start(log, role="weights")
    version, incarnation = 0, 1
    weights = Weights(Session(core, log=log))
    weights.session.join()
    for what, who, size in steps:
        if what == "restart":
            weights.session.core = core = start(log, role="weights")
            weights.session.join()
        elif what == "other":
            incarnation += 1
            weights = Weights(Session(core, f"trainer-{who}", incarnation, log=log))
            weights.session.join()
        elif what == "chunk":
            weights.stage(version + 1 + who, {"w": bytes(4 * size)})
        else:
            version = max(0, version - who) if what == "rewind" else version + 1
            data = {"w": bytes([who] * 4 * size), "b": bytes(4)}
            weights.publish(version, data, schema="replace", rewind=what == "rewind")
    state = PartitionState()
    for record in log.records():
        state.apply(record)
    assert state == core.state
    assert PartitionState.decode(state.encode(), state.position) == state
    again = PartitionCore(core.partition, core.settings)
    log.recover_into(again)
    assert again.state == state
