"""What a session records: its writes before they leave, where it was when they did, and which of them were lost."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.publisher_stage import FAST, TOPIC, Stage, open_stage
from paramstream.consistency.history import Line, Lost, Read, Write, read_lines
from paramstream.consistency.position import position
from paramstream.consistency.vector import VersionVector
from paramstream.errors import InvalidEvent, StorageFull
from paramstream.events.digest import partition_of
from paramstream.events.kinds import Put, PutItem
from paramstream.events.recording import HistoryFile, Token
from paramstream.producers.calls import Call, Draft, Event
from paramstream.producers.publisher import Publisher
from paramstream.producers.recording import SessionRecorder
from paramstream.transport.messages import Heads

KV = "m#00000007/kv/"
MAIN = "trainer/1"

Make = Callable[..., Stage]


class Recorded:
    """A history file, and what stands in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = HistoryFile(path)

    @property
    def lines(self) -> list[Line]:
        return [line for _, line in read_lines(self.path)]

    def written(self) -> list[tuple[str, str, Any]]:
        """(process, key without the topic, value) of each write."""
        return [(w.process, w.key.removeprefix(KV), w.value) for w in self.lines if isinstance(w, Write)]

    def lost(self) -> list[tuple[str, Any]]:
        return [(each.key.removeprefix(KV), each.value) for each in self.lines if isinstance(each, Lost)]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[Recorded]:
    recorded = Recorded(tmp_path / "history.jsonl")
    yield recorded
    recorded.file.close()


@pytest.fixture
def stage(history: Recorded) -> Stage:
    return open_stage(history=history.file)


def key_of(number: int, nth: int = 0) -> str:
    """A key that goes to that one of two partitions."""
    found = [str(n) for n in range(64) if partition_of(b"%d" % n, 2) == number]
    return found[nth]


A, B = key_of(0), key_of(1)


class Replica:
    """What a publisher observes."""

    def __init__(self) -> None:
        self.number = 1
        self.seen = VersionVector({(TOPIC.name, 0): position(1, 0)})
        self.covers = VersionVector({(TOPIC.id, 0): position(1, 0)})

    @property
    def vector(self) -> VersionVector[str]:
        return self.seen

    def observed(self) -> tuple[VersionVector[str], Token | None]:
        return self.seen, Token("r/9", self.number, self.covers)


def test_a_write_is_in_the_file_before_its_event_leaves(
    stage: Stage, history: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, send = list[int](), stage.link.send

    def looks_first(frame: Any) -> bool:
        found.append(len(history.written()))
        return send(frame)

    monkeypatch.setattr(stage.link, "send", looks_first)
    stage.publisher.put(A, b"1")
    stage.publisher.delete(A)
    assert found == [1, 2]
    assert history.written() == [(MAIN, A, "trainer/1/1"), (MAIN, A, "trainer/1/2")]


def test_a_commit_writes_the_weights_and_chunks_and_parts_write_nothing(stage: Stage, history: Recorded) -> None:
    stage.publisher.publish_weights({"w": np.ones(3, np.float32)}, version=1)
    assert history.lines == [Write(MAIN, "m#00000007/weights", "trainer/1/3")]


def test_the_parts_of_one_call_are_concurrent_and_come_between_what_was_before_and_after(
    stage: Stage, history: Recorded
) -> None:
    stage.publisher.put(A, b"1")
    stage.publisher.put_many({A: b"2", B: b"2"})
    stage.publisher.put(B, b"3")
    fork, left, right = f"fork/{MAIN}", f"{MAIN}:m#00000007/0", f"{MAIN}:m#00000007/1"
    assert history.lines == [
        Write(MAIN, f"{KV}{A}", "trainer/1/1"),
        Write(MAIN, fork, 1),
        Read(left, fork, 1),
        Write(left, f"{KV}{A}", "trainer/1/2"),
        Read(right, fork, 1),
        Write(right, f"{KV}{B}", "trainer/1/1"),
        Write(left, f"join/{left}", 1),
        Read(MAIN, f"join/{left}", 1),
        Write(right, f"join/{right}", 1),
        Read(MAIN, f"join/{right}", 1),
        Write(MAIN, f"{KV}{B}", "trainer/1/2"),
    ]


def test_a_call_in_one_partition_is_no_fork_and_each_item_of_an_event_is_written_once(
    stage: Stage, history: Recorded
) -> None:
    other = key_of(0, 1)
    stage.publisher.put_many([(A, b"1"), (other, b"1"), (A, b"2")])
    assert history.written() == [(MAIN, A, "trainer/1/1"), (MAIN, other, "trainer/1/1")]


def test_rows_gradients_and_deleted_rows_are_written_key_by_key(stage: Stage, history: Recorded) -> None:
    ones = np.ones((3, 3), np.float32)
    first, second = [n for n in range(16) if partition_of(n.to_bytes(8, "little"), 2) == 0][:2]
    stage.publisher.publish_rows("emb", [first, second, first], ones)
    stage.publisher.publish_gradients("emb", [second, first, second], ones)
    stage.publisher.delete_rows("emb", [first])
    one, two = (f"m#00000007/rows/emb/{key}" for key in (first, second))
    assert [(key, value) for _, key, value in history.written()] == [
        (one, "trainer/1/1"), (two, "trainer/1/1"), (two, "trainer/1/2"), (one, "trainer/1/2"), (one, "trainer/1/3"),
    ]  # fmt: skip


def test_what_waits_for_its_turn_is_written_when_it_leaves_and_puts_may_share_an_event(
    stage: Stage, history: Recorded
) -> None:
    stage.link.auto = False
    stage.publisher.put(A, b"1")
    stage.publisher.put(B, b"1")
    assert [key for _, key, _ in history.written()] == [A]
    stage.link.deliver()
    assert [key for _, key, _ in history.written()] == [A, B]


def test_a_refused_write_is_lost_and_one_pipelined_behind_it_is_written_once(stage: Stage, history: Recorded) -> None:
    stage.link.auto = False
    stage.owner.refuse_next = StorageFull("full")
    stage.publisher.put(A, b"1")
    stage.publisher.put(A, b"2")
    stage.link.deliver()
    assert len(stage.link.sent) == 3
    assert history.written() == [(MAIN, A, "trainer/1/1"), (MAIN, A, "trainer/1/2")]
    assert history.lost() == [(A, "trainer/1/1")]


def test_what_goes_again_over_a_new_connection_is_not_written_again(stage: Stage, history: Recorded) -> None:
    stage.link.auto = False
    for _ in range(3):
        stage.publisher.put(A, b"1")
    stage.link.drop(arrived=1)
    stage.link.connect()
    stage.link.deliver()
    assert [value for *_, value in history.written()] == ["trainer/1/1", "trainer/1/2", "trainer/1/3"]
    assert history.lost() == []


def test_what_goes_again_is_not_written_again_though_the_partition_says_that_it_has_nothing(history: Recorded) -> None:
    recorder = SessionRecorder(history.file, "trainer", 1, lambda topic: "m")
    call = Call(((7, 0),), "write_back")
    event = Event(1, Draft.of((7, 0), Put((PutItem(b"k", 1),)), (b"1",), 1), [call])
    assert recorder.sends(event)
    recorder.durable([Heads(7, 0, accepted=0, durable=0, sent=0, time=0)])
    assert recorder.sends(event)
    assert history.written() == [(MAIN, "k", "trainer/1/1")]


def test_what_was_accepted_and_lost_is_called_so_before_anything_leaves_that_rests_on_less(
    stage: Stage, history: Recorded
) -> None:
    stage.publisher.put(A, b"1")
    stage.link.heartbeat()
    stage.publisher.put(A, b"2")
    stage.publisher.put(B, b"2")
    stage.link.auto = False
    stage.publisher.put(B, b"3")
    stage.link.drop()
    stage.owner.takeover((7, 0), lose=1)
    stage.link.connect()
    stage.publisher.put(A, b"4")
    stage.link.deliver()
    lines = history.lines
    lost, later = (
        lines.index(Lost(MAIN, f"{KV}{A}", "trainer/1/2")),
        lines.index(Write(MAIN, f"{KV}{A}", "trainer/1/3")),
    )
    assert lost < later and len(history.lost()) == 1


def test_what_was_on_the_wire_when_its_epoch_ended_is_lost(stage: Stage, history: Recorded) -> None:
    stage.link.auto = False
    stage.publisher.put(A, b"1")
    stage.link.drop()
    stage.owner.takeover((7, 0))
    stage.link.connect()
    assert history.lost() == [(A, "trainer/1/1")]


def test_under_persistence_none_an_epochs_end_loses_all_that_was_accepted(stage: Stage, history: Recorded) -> None:
    publisher = Publisher(stage.session, FAST, stage.directory)
    publisher.put(b"a", b"1")
    stage.link.heartbeat()
    stage.owner.partitions[FAST.id, 0].durable = 0
    stage.link.drop()
    stage.owner.takeover((FAST.id, 0), lose=1)
    stage.link.connect()
    assert history.lost() == [("fast#00000008/kv/a", "trainer/1/1")]


def test_what_is_published_again_is_another_write(history: Recorded) -> None:
    stage = open_stage(again=True, history=history.file)
    stage.publisher.put(A, b"1")
    stage.link.drop()
    stage.owner.takeover((7, 0), lose=1)
    stage.link.connect()
    stage.link.deliver()
    assert history.written() == [(MAIN, A, "trainer/1/1"), (MAIN, A, "trainer/1/2")]
    assert history.lost() == [(A, "trainer/1/1")]


def test_who_observes_a_replica_reads_its_token_before_it_writes(stage: Stage, history: Recorded) -> None:
    replica = Replica()
    publisher = Publisher(stage.session, TOPIC, stage.directory, observes=replica)
    publisher.put(A, b"1")
    publisher.put(A, b"2")
    replica.number = 2
    stage.publisher.observe(replica)
    assert history.lines == [
        Read(MAIN, "seen/r/9", 1, "r/9"),
        Write(MAIN, f"{KV}{A}", "trainer/1/1"),
        Write(MAIN, f"{KV}{A}", "trainer/1/2"),
        Read(MAIN, "seen/r/9", 2, "r/9"),
    ]


def test_a_token_that_is_older_than_one_that_was_read_or_says_more_than_was_observed_is_not_read(
    stage: Stage, history: Recorded
) -> None:
    replica = Replica()
    replica.number = 2
    stage.publisher.observe(replica)
    replica.number = 1
    stage.publisher.observe(replica)
    replica.number, replica.covers = 3, VersionVector({(99, 0): position(1, 0)})
    stage.publisher.observe(replica)
    stage.publisher.observe(replica.vector)
    assert history.lines == [Read(MAIN, "seen/r/9", 2, "r/9")]


def test_where_the_past_has_shrunk_a_new_process_begins_and_what_is_on_its_way_is_left_out(
    stage: Stage, history: Recorded
) -> None:
    replica = Replica()
    replica.seen = VersionVector({(TOPIC.name, 0): position(9, 9)})
    replica.covers = VersionVector({(TOPIC.id, 0): position(9, 9)})
    stage.link.auto = False
    stage.owner.refuse_next = InvalidEvent("it is not sequenced", partition=0, position=position(9, 9))
    stage.publisher.observe(replica)
    stage.publisher.put(A, b"1")
    stage.publisher.put(A, b"2")
    stage.link.deliver()
    stage.publisher.put(A, b"3")
    stage.link.deliver()
    assert len(stage.events(0)) == 2
    assert history.written() == [
        (MAIN, A, "trainer/1/1"), (MAIN, A, "trainer/1/2"), (f"{MAIN}+1", A, "trainer/1/3")
    ]  # fmt: skip
    assert sorted(history.lost()) == [(A, "trainer/1/1"), (A, "trainer/1/2")]


def test_a_deleted_topic_ends_the_process_that_had_written_to_it(stage: Stage, history: Recorded) -> None:
    Publisher(stage.session, FAST, stage.directory).put(b"a", b"1")
    stage.session.deleted(FAST.id)
    stage.publisher.put(A, b"1")
    assert [process for process, *_ in history.written()] == [MAIN, f"{MAIN}+1"]


def test_nothing_leaves_while_the_file_takes_nothing(
    stage: Stage, history: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        receipt = stage.publisher.put(A, b"1")
        with pytest.raises(StorageFull, match="no space"):
            stage.publisher.put(A, b"2")
        stage.session.tick(1.0)
        assert (stage.link.sent, receipt.outcome) == ([], "pending")
    stage.session.tick(2.0)
    assert receipt.outcome == "accepted"
    assert history.written() == [(MAIN, A, "trainer/1/1")]
