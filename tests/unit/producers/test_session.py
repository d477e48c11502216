"""The session as threads use it: waiting, blocking, losing the connection, closing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from fakes.publisher_stage import FAST, Stage, open_stage
from paramstream.consistency.position import position
from paramstream.consistency.vector import VersionVector
from paramstream.errors import (
    BackpressureTimeout,
    EventLost,
    Fenced,
    InvalidEvent,
    NotDurable,
    OutcomeUnknown,
    ParamstreamError,
    ParamstreamTimeout,
    StorageFull,
)
from paramstream.events.digest import partition_of
from paramstream.producers.publisher import Publisher
from paramstream.producers.receipt import Receipt
from paramstream.producers.session import Session
from paramstream.transport.calls import Join


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = open_stage(window_bytes=64 * 1024)
    yield stage
    stage.link.auto = True
    stage.link.deliver()


def key_of(number: int) -> bytes:
    """A key that goes to that one of two partitions."""
    return next(key for n in range(64) if partition_of(key := b"%d" % n, 2) == number)


def test_a_receipt_gives_closed_vectors_of_topic_names(stage: Stage) -> None:
    first = stage.publisher.put(key_of(0), b"1")
    second = stage.publisher.put(key_of(1), b"2")
    assert first.accepted.result(1) == VersionVector({("m", 0): position(1, 1)})
    assert second.accepted.result(1) == VersionVector({("m", 0): position(1, 1), ("m", 1): position(1, 1)})
    durable = second.durable
    assert not durable.done()
    stage.link.heartbeat()
    assert durable.result(1) == second.vector
    assert second.outcome == "durable"


def test_a_receipt_can_be_awaited_in_an_event_loop(stage: Stage) -> None:
    stage.link.auto = False
    receipt = stage.publisher.put(b"a", b"1")
    answering = threading.Timer(0.05, stage.link.deliver)

    async def wait() -> VersionVector[str]:
        answering.start()
        return await receipt.accepted

    assert asyncio.run(wait()) == receipt.vector
    answering.join()


def test_a_wait_for_a_receipt_ends_in_time_and_says_what_was_awaited(stage: Stage) -> None:
    stage.link.auto = False
    receipt = stage.publisher.put(b"a", b"1")
    with pytest.raises(ParamstreamTimeout, match="acceptance"):
        receipt.accepted.result(0.05)
    stage.link.deliver()
    assert receipt.accepted.result(1)


def test_nothing_becomes_durable_under_persistence_none_and_the_receipt_says_so_at_once(stage: Stage) -> None:
    publisher = Publisher(stage.session, FAST, stage.directory)
    receipt = publisher.put(b"a", b"1")
    with pytest.raises(NotDurable):
        _ = receipt.durable
    publisher.flush(1)


def test_a_receipt_travels_as_text(stage: Stage) -> None:
    receipt = stage.publisher.put(b"a", b"1")
    parsed = Receipt.parse(str(receipt))
    assert (parsed.vector, parsed.positions, parsed.version) == (receipt.vector, receipt.positions, None)
    assert parsed.accepted.result(0) == receipt.vector
    assert str(parsed) == str(receipt)
    with pytest.raises(OutcomeUnknown):
        _ = parsed.durable


@pytest.mark.parametrize("text", ["", "receipt:1;a", "receipt:2;a;1;;;", "receipt:1;a;x;;;", "receipt:1;a;1;;m/0=1;"])
def test_text_that_is_no_receipt_is_refused(text: str) -> None:
    with pytest.raises(InvalidEvent):
        Receipt.parse(text)


def test_a_full_window_blocks_and_then_raises_and_nothing_of_the_call_was_sent(stage: Stage) -> None:
    stage.link.auto = False
    for _ in range(3):
        stage.publisher.put(b"a", bytes(20 * 1024))
    sent = len(stage.link.sent)
    with pytest.raises(BackpressureTimeout, match="trainer"):
        stage.publisher.put(b"a", bytes(20 * 1024), timeout=0.05)
    stage.link.deliver()
    assert len(stage.link.sent) == sent


def test_a_blocked_call_goes_on_when_answers_make_room(stage: Stage) -> None:
    stage.link.auto = False
    for _ in range(3):
        stage.publisher.put(b"a", bytes(20 * 1024))
    answering = threading.Timer(0.05, stage.link.deliver)
    answering.start()
    receipt = stage.publisher.put(b"a", bytes(20 * 1024), timeout=5)
    answering.join()
    stage.link.deliver()
    assert receipt.outcome == "accepted"


def test_flush_waits_until_all_is_durable(stage: Stage) -> None:
    stage.publisher.put(b"a", b"1")
    with pytest.raises(ParamstreamTimeout, match="1 accepted and not durable"):
        stage.publisher.flush(0.05)
    syncing = threading.Timer(0.05, stage.link.heartbeat)
    syncing.start()
    stage.publisher.flush(5)
    syncing.join()


def test_flush_raises_once_what_was_refused(stage: Stage) -> None:
    stage.owner.refuse_next = StorageFull("full")
    receipt = stage.publisher.put(b"a", b"1")
    with pytest.raises(StorageFull):
        stage.publisher.flush(1)
    with pytest.raises(StorageFull):
        receipt.accepted.result(1)
    stage.publisher.flush(1)


def test_durable_and_flush_raise_that_an_event_was_lost(stage: Stage) -> None:
    receipt = stage.publisher.put(key_of(0), b"1")
    durable = receipt.durable
    stage.link.drop()
    stage.owner.takeover((7, 0), lose=1)
    stage.link.connect()
    with pytest.raises(EventLost) as caught:
        durable.result(1)
    assert (caught.value.topic, caught.value.partition) == ("m", 0)
    with pytest.raises(EventLost) as flushed:
        stage.publisher.flush(1)
    assert flushed.value.topic == "m"
    assert receipt.outcome == "lost"


def test_an_outcome_is_unknown_until_the_session_has_joined_again(stage: Stage) -> None:
    stage.link.auto = False
    receipt = stage.publisher.put(b"a", b"1")
    stage.link.drop(arrived=1)
    assert receipt.outcome == "unknown"
    stage.link.connect()
    assert receipt.outcome == "accepted"


def test_a_join_that_failed_is_asked_for_again(stage: Stage) -> None:
    stage.link.drop()
    receipt = stage.publisher.put(b"a", b"1")
    stage.session.connected(stage.link.welcome())
    assert receipt.outcome == "pending"
    stage.link.connected = True
    stage.session.tick(time.monotonic() + 10)
    assert receipt.outcome == "accepted"


def test_what_a_congested_connection_did_not_take_goes_with_the_next_tick(stage: Stage) -> None:
    stage.link.connected = False
    receipt = stage.publisher.put(b"a", b"1")
    stage.link.connected = True
    stage.publisher.put(b"a", b"2")
    stage.session.tick(time.monotonic())
    assert receipt.outcome == "accepted"
    number = partition_of(b"a", 2)
    assert [bytes(event.bulk) for event in stage.events(number)] == [b"1", b"2"]


def test_nothing_is_tried_behind_a_frame_that_was_not_taken() -> None:
    stage = open_stage(window_bytes=2 * 1024 * 1024)
    stage.link.refuse_sends = 1
    receipt = stage.publisher.put_many([(b"a", bytes(500 * 1024)), (b"a", bytes(500 * 1024))])
    assert stage.link.sent == []
    stage.session.tick(time.monotonic())
    assert receipt.outcome == "accepted"
    assert len(stage.link.sent) == 2


def test_close_against_a_broker_that_is_down_returns_in_time_and_names_what_was_not_sent_G06(stage: Stage) -> None:
    stage.link.drop()
    for _ in range(100):
        stage.publisher.put(b"a", b"1")
    started = time.monotonic()
    with pytest.raises(OutcomeUnknown, match="never sent are sequences 1–100"):
        stage.publisher.close(timeout=0.2)
    assert time.monotonic() - started < 1.2
    stage.publisher.close(timeout=0.2)


def test_close_names_the_sequences_whose_outcome_is_unknown_G06(stage: Stage) -> None:
    stage.link.auto = False
    receipt = stage.publisher.put(b"a", b"1")
    with pytest.raises(OutcomeUnknown, match="outcome unknown of sequences 1"):
        stage.publisher.close(timeout=0.05)
    with pytest.raises(OutcomeUnknown):
        receipt.accepted.result(1)


def test_the_last_publisher_of_a_session_closes_it(stage: Stage) -> None:
    other = Publisher(stage.session, FAST, stage.directory)
    stage.publisher.close(1)
    assert not stage.session.closed
    other.put(b"a", b"1")
    with other:
        pass
    assert stage.session.closed
    with pytest.raises(ParamstreamError, match="closed"):
        other.put(b"a", b"1")


def test_every_later_call_of_a_fenced_session_raises(stage: Stage) -> None:
    stage.owner.open("trainer")
    receipt = stage.publisher.put(b"a", b"1")
    with pytest.raises(Fenced):
        receipt.accepted.result(1)
    for call in (lambda: stage.publisher.put(b"a", b"1"), lambda: stage.publisher.flush(1)):
        with pytest.raises(Fenced):
            call()
    stage.publisher.close(1)


def test_a_session_joins_a_topic_that_came_later(stage: Stage) -> None:
    session = Session("other", stage.link, stage.directory)
    stage.link.sessions.append(session)
    stage.owner.partitions = {key: owned for key, owned in stage.owner.partitions.items() if key[0] != FAST.id}
    session.open(1)
    assert not session.has_joined(FAST)
    stage.owner.add((8, 0), (8, 1))
    receipt = Publisher(session, FAST, stage.directory).put(b"a", b"1")
    assert receipt.outcome == "accepted"
    assert session.has_joined(FAST)


def test_calls_of_many_threads_all_arrive(stage: Stage) -> None:
    receipts: list[Receipt] = []

    def work(thread: int) -> None:
        for n in range(50):
            receipts.append(stage.publisher.put(b"%d" % (thread * 1000 + n), b"v"))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(receipts) == 200
    assert all(receipt.accepted.result(5) for receipt in receipts)


def test_joining_anew_is_tried_again_where_the_connection_goes(stage: Stage) -> None:
    stage.link.breaks = 1
    stage.session.join(5.0)
    assert [type(call) for call in stage.link.asked[-2:]] == [Join, Join]
