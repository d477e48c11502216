"""Receipts of other processes, followed over a client's link."""

from __future__ import annotations

import pytest

from fakes.publisher_stage import FAST, Stage, open_stage
from paramstream.errors import EventLost, NotDurable, OutcomeUnknown, UnknownTopic
from paramstream.producers.publisher import Publisher
from paramstream.producers.receipt import Receipt
from paramstream.producers.watch import Watch


@pytest.fixture
def stage() -> Stage:
    return open_stage()


@pytest.fixture
def watch(stage: Stage) -> Watch:
    return Watch(stage.link, stage.directory)


def attached(stage: Stage, watch: Watch) -> Receipt:
    receipt = Receipt.parse(str(stage.publisher.put(b"k", b"v")))
    receipt.attach_to(watch)
    return receipt


def test_an_attached_receipt_is_durable_once_the_broker_says_so(stage: Stage, watch: Watch) -> None:
    receipt = attached(stage, watch)
    future = receipt.durable
    assert receipt.durable is future and not future.done() and receipt.outcome == "accepted"
    ((call, done),) = stage.link.waiting
    assert dict(stage.directory.to_ids(receipt.positions)) == {(t, n): at for t, n, at in call.positions}
    done([], None)
    assert future.result(0) == receipt.vector and receipt.outcome == "durable"


def test_what_is_lost_is_told_by_name(stage: Stage, watch: Watch) -> None:
    receipt = attached(stage, watch)
    future = receipt.durable
    ((call, done),) = stage.link.waiting
    done(list(call.positions), None)
    with pytest.raises(EventLost, match="'trainer'") as caught:
        future.result(0)
    assert caught.value.topic == "m" and receipt.outcome == "lost"


def test_a_question_that_went_with_its_connection_is_asked_again_on_the_next(stage: Stage, watch: Watch) -> None:
    future = attached(stage, watch).durable
    ((_, done),) = stage.link.waiting
    done(None, OutcomeUnknown("gone"))
    assert not future.done()
    watch.connected()
    assert len(stage.link.waiting) == 2
    stage.link.waiting[-1][1]([], None)
    assert future.done()
    watch.connected()
    assert len(stage.link.waiting) == 2


def test_an_error_of_the_broker_ends_it(stage: Stage, watch: Watch) -> None:
    future = attached(stage, watch).durable
    stage.link.waiting[0][1](None, UnknownTopic("deleted"))
    with pytest.raises(UnknownTopic):
        future.result(0)


def test_a_closed_client_tells_that_nobody_will_tell(stage: Stage, watch: Watch) -> None:
    future = attached(stage, watch).durable
    watch.close()
    with pytest.raises(OutcomeUnknown, match="closed"):
        future.result(0)


def test_nothing_of_a_topic_with_persistence_none_becomes_durable(stage: Stage, watch: Watch) -> None:
    receipt = Receipt.parse(str(Publisher(stage.session, FAST, stage.directory).put(b"k", b"v")))
    receipt.attach_to(watch)
    with pytest.raises(NotDurable):
        _ = receipt.durable
    assert stage.link.waiting == []


def test_a_receipt_of_this_process_follows_its_events_anyway(stage: Stage, watch: Watch) -> None:
    receipt = stage.publisher.put(b"k", b"v")
    receipt.attach_to(watch)
    assert not receipt.durable.done() and stage.link.waiting == []
    stage.link.heartbeat()
    assert receipt.durable.done()
