"""A commit of parts: what it names, what it waits for, and that it sends nothing where it may not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fakes.publisher_stage import FAST, TOPIC, Stage, open_stage
from paramstream.consistency.position import position
from paramstream.consistency.vector import VersionVector
from paramstream.errors import EventLost, InvalidEvent, ParamstreamTimeout, SchemaMismatch
from paramstream.events.codec import decode_vector
from paramstream.events.digest import version_digest
from paramstream.events.kinds import Commit, Part, PartRef
from paramstream.producers.publisher import Publisher
from paramstream.producers.receipt import Receipt, ReceiptRecord
from paramstream.producers.session import Session
from paramstream.transport.calls import AwaitDurable, PrepareCommit
from reference.waiting import eventually

WEIGHTS = 2
"""The number of the topic's weight partition."""


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = open_stage()
    yield stage
    stage.link.auto = True
    stage.link.deliver()


def other_rank(stage: Stage) -> Publisher:
    session = Session("other", stage.link, stage.directory)
    stage.link.sessions.append(session)
    session.open(1.0)
    return Publisher(session, TOPIC, stage.directory)


def part(publisher: Publisher, name: str = "a", version: int = 1) -> Receipt:
    return publisher.publish_weights({name: np.ones(3, np.float32)}, version, seal=False)


def commits(stage: Stage) -> list[Commit]:
    return [event.payload for event in stage.events(WEIGHTS) if isinstance(event.payload, Commit)]


def test_a_part_is_staged_without_a_commit_and_its_receipt_names_it(stage: Stage) -> None:
    receipt = part(stage.publisher)
    assert receipt.parts == (PartRef("trainer", 1, 2),)
    assert commits(stage) == []
    text = str(receipt)
    assert text.endswith(";2")
    parsed = Receipt.parse(text)
    assert (parsed.parts, parsed.version, parsed.positions) == (receipt.parts, 1, receipt.positions)
    assert str(parsed) == text


def test_a_commit_names_the_parts_of_several_producers_with_the_digest_of_their_union(stage: Stage) -> None:
    one, two = part(stage.publisher, "a"), part(other_rank(stage), "b")
    receipt = stage.publisher.commit(1, [one, Receipt.parse(str(two))])
    (commit,) = commits(stage)
    specs = [
        spec for event in stage.events(WEIGHTS) if isinstance(event.payload, Part) for spec in event.payload.tensors
    ]
    assert commit.parts == (*one.parts, *two.parts)
    assert (commit.version, commit.digest) == (1, version_digest(specs))
    assert (receipt.version, receipt.parts) == (1, ())
    assert {spec.name for spec in stage.session.partition((7, WEIGHTS)).schema or ()} == {"a", "b"}


def test_a_question_that_went_with_its_connection_is_asked_again(stage: Stage) -> None:
    receipt = part(stage.publisher)
    stage.link.breaks = 2
    assert stage.publisher.commit(1, [receipt]).outcome == "accepted"
    assert [type(call) for call in stage.link.asked[-3:]] == [PrepareCommit] * 3


def test_rows_and_kv_are_needed_and_awaited_and_later_calls_wait_behind(stage: Stage) -> None:
    entry = other_rank(stage).put(b"k", b"v")
    receipt = part(stage.publisher)
    done: list[Receipt] = []
    committing = threading.Thread(target=lambda: done.append(stage.publisher.commit(1, [receipt, entry], timeout=10)))
    committing.start()
    try:
        eventually(lambda: any(isinstance(call, AwaitDurable) for call in stage.link.asked))
        later = stage.publisher.put(b"later", b"v")
        assert (later.outcome, commits(stage)) == ("pending", [])
        stage.owner.sync()
    finally:
        committing.join(10)
    (commit,) = commits(stage)
    assert decode_vector(commit.needs) == stage.directory.to_ids(entry.positions)
    assert later.accepted.result(5)
    assert entry.positions <= done[0].vector


def test_past_its_timeout_a_commit_has_sent_nothing_and_can_be_made_again(stage: Stage) -> None:
    entry, receipt = stage.publisher.put(b"k", b"v"), part(stage.publisher)
    with pytest.raises(ParamstreamTimeout, match=r"commit of version 1 .* durability") as caught:
        stage.publisher.commit(1, [receipt, entry], timeout=0.05)
    assert "Nothing was sent" in caught.value.remedy
    assert commits(stage) == []
    assert stage.publisher.put(b"next", b"v").outcome == "accepted"
    stage.link.heartbeat()
    assert stage.publisher.commit(1, [receipt, entry], timeout=5).outcome == "accepted"


def test_a_commit_that_names_what_is_lost_sends_nothing(stage: Stage) -> None:
    entry, receipt = stage.publisher.put(b"k", b"v"), part(stage.publisher)
    ((_, number),) = entry.positions
    stage.owner.takeover((7, number), lose=1)
    with pytest.raises(EventLost) as caught:
        stage.publisher.commit(1, [receipt, Receipt.parse(str(entry))])
    assert (caught.value.topic, caught.value.partition, commits(stage)) == ("m", number, [])


def test_parts_of_another_version_or_topic_are_refused_naming_them(stage: Stage) -> None:
    with pytest.raises(InvalidEvent, match=r"part 2 of producer 'trainer'.* version 1, not 2") as caught:
        stage.publisher.commit(2, [part(stage.publisher)])
    assert caught.value.item == "trainer/1/2"
    elsewhere = VersionVector({("fast", 1): position(1, 4)})
    record = ReceiptRecord("rank", 9, 2, elsewhere, elsewhere, (PartRef("rank", 9, 3),))
    with pytest.raises(InvalidEvent, match=r"part 3 of producer 'rank' .* of another topic"):
        stage.publisher.commit(2, [Receipt(None, None, record)])
    assert commits(stage) == []


def test_a_commit_of_no_parts_or_of_what_is_sealed_or_of_something_else_is_refused(stage: Stage) -> None:
    sealed = stage.publisher.publish_weights({"a": np.ones(3, np.float32)}, 1)
    wrong: Any = "a receipt"
    for named in ([], [stage.publisher.put(b"k", b"v")], [sealed], [wrong]):
        with pytest.raises(InvalidEvent):
            stage.publisher.commit(2, named)
    assert len(commits(stage)) == 1
    assert stage.publisher.put(b"next", b"v").outcome == "accepted"


def test_a_topic_that_lasts_cannot_name_events_of_one_that_does_not(stage: Stage) -> None:
    fast = Publisher(stage.session, FAST, stage.directory)
    passing, receipt = fast.put(b"k", b"v"), part(stage.publisher)
    stage.owner.sync()
    for named in (passing, passing.positions):
        with pytest.raises(InvalidEvent, match="'fast'"):
            stage.publisher.commit(1, [receipt, named])
    lasting, staged = stage.publisher.put(b"k", b"v"), fast.publish_weights({"a": np.ones(1)}, 1, seal=False)
    stage.owner.sync()
    assert fast.commit(1, [staged, lasting]).outcome == "accepted"


def test_a_vector_names_rows_and_kv_and_weights_in_it_are_only_rested_on(stage: Stage) -> None:
    seen = other_rank(stage).put(b"k", b"v").vector.merge({("m", WEIGHTS): position(1, 1)})
    receipt = part(stage.publisher)
    for partition in ((7, 0), (7, 1)):
        stage.owner.partitions[partition].durable = stage.owner.partitions[partition].accepted
    stage.publisher.commit(1, [receipt, seen])
    (commit,) = commits(stage)
    assert {number for _, number in decode_vector(commit.needs)} == {n for _, n in seen if n != WEIGHTS}


def test_the_commits_vector_is_closed_over_what_the_parts_rest_on(stage: Stage) -> None:
    other = other_rank(stage)
    written = other.put(b"k", b"v").positions
    text = str(part(other, "b"))
    sealed = stage.publisher.commit(1, [part(stage.publisher), Receipt.parse(text)])
    assert written <= sealed.vector
    (commit,) = commits(stage)
    assert commit.needs == b""
    later = stage.publisher.put(b"later", b"v")
    assert written <= later.vector


def test_a_part_is_checked_for_the_names_that_the_schema_has_only(stage: Stage) -> None:
    stage.publisher.publish_weights({"a": np.ones(3, np.float32), "b": np.ones(2, np.float32)}, 1)
    part(stage.publisher, version=2)
    part(stage.publisher, "new", 2)
    with pytest.raises(SchemaMismatch) as caught:
        stage.publisher.publish_weights({"a": np.ones(4, np.float32)}, 2, seal=False)
    assert caught.value.item == "a"
    stage.publisher.publish_weights({"a": np.ones(4, np.float32)}, 2, schema="replace", seal=False)
    with pytest.raises(InvalidEvent, match="commit"):
        stage.publisher.publish_weights({"a": np.ones(3, np.float32)}, 1, seal=False, rewind=True)


def test_of_tied_names_a_part_has_those_that_were_given(stage: Stage) -> None:
    shared = np.ones(3, np.float32)
    stage.publisher.publish_weights({"embed": shared, "head": shared}, 1)
    stage.publisher.publish_weights({"head": shared}, 2, seal=False)
    stage.publisher.publish_weights({"embed": shared, "head": shared}, 2, seal=False)
    *_, first, second = (event.payload for event in stage.events(WEIGHTS) if isinstance(event.payload, Part))
    assert [(spec.name, spec.tied_to) for spec in first.tensors] == [("head", "")]
    assert [(spec.name, spec.tied_to) for spec in second.tensors] == [("embed", ""), ("head", "embed")]
