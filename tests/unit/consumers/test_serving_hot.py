"""Copies of rows in a client are used only while it is known that they are what the log says."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np
import pytest

from feeding.fakes import FakeBroker
from paramstream.consistency.position import epoch_of, position
from paramstream.consumers.lookups import hot as hot_module
from paramstream.consumers.lookups.hot import HotTopic, HotTopics
from paramstream.errors import ParamstreamTimeout
from paramstream.events.kinds import DeleteRows, Gradients, Rows, Table
from paramstream.tiers.rows.copies import RowCopies
from paramstream.transport.calls import Call
from paramstream.transport.lookups import Need
from paramstream.transport.messages import Heads, Heartbeat

MIB = 1024 * 1024
KEYS = np.arange(6)
ALL = KEYS.tolist()
NO_NEEDS: dict[int, Need] = {}


class Stage:
    """A topic of one state partition, followed for its hot rows."""

    def __init__(self, persistence: str = "write_back") -> None:
        self.broker = FakeBroker(persistence=persistence)
        self.hot = HotTopics(MIB, self.broker.directory, self.broker.make_link)
        hot = self.hot.of(self.broker.topic, time.monotonic() + 10)
        assert hot is not None
        self.topic: HotTopic = hot
        # Loops are compiled at their first use, and heartbeats are not heard meanwhile here.
        RowCopies(2, np.dtype(np.float32), MIB)
        self.broker.beat()

    @property
    def head(self) -> int:
        return self.broker.state.position

    def write(self, *keys: int, kind: type[Rows | Gradients | DeleteRows] = Rows, table: str = "t") -> int:
        """An event of these rows, which is not told yet."""
        bulk = np.array(keys, np.int64).tobytes()
        if issubclass(kind, DeleteRows):
            self.broker.state.write(DeleteRows(table, len(keys)), [bulk])
        else:
            self.broker.state.write(kind(table, len(keys), 2, "float32"), [bulk, bytes(8 * len(keys))])
        return self.head

    def tell(self) -> None:
        """All that was written, and then a heartbeat."""
        self.broker.settle()
        self.broker.beat()

    def answer(self, seen: int | None = None, keys: Iterable[int] = ALL) -> None:
        """Rows come in answer to a look-up, as of a position."""
        some = np.array(list(keys), np.int64)
        values = np.outer(some, [1, 1]).astype(np.float32)
        self.topic.keep(
            "t", some, np.zeros(len(some), np.int64), values, some % 2 == 0, {0: self.head if seen is None else seen}
        )

    def known(self, needs: dict[int, Need] = NO_NEEDS) -> list[int]:
        read = self.topic.read("t", KEYS, np.zeros(len(KEYS), np.int64), needs)
        if read is None:
            return []
        (values, there, known), seen = read
        assert (values[known] == np.outer(KEYS, [1, 1])[known]).all() and (there[known] == (KEYS % 2 == 0)[known]).all()
        if known.any():
            assert seen == {0: self.head}
        found: list[int] = KEYS[known].tolist()
        return found


def test_what_was_answered_is_known_until_it_is_written() -> None:
    stage = Stage()
    assert stage.known() == []
    stage.answer()
    assert stage.known() == ALL
    for kind, key in ((Rows, 1), (Gradients, 2), (DeleteRows, 3)):
        stage.write(key, key, 100, kind=kind)
        stage.write(4, table="another")
        stage.tell()
    assert stage.known() == [0, 4, 5]
    counters = stage.hot.counters()
    assert (counters.rows, counters.dropped) == (3, 3)
    stage.answer()
    assert stage.known() == ALL


def test_an_answer_of_before_a_write_that_is_known_is_not_kept() -> None:
    stage = Stage()
    stage.answer(keys=[0])
    before = stage.head
    stage.write(1, 2)
    stage.tell()
    stage.answer(before)
    assert stage.known() == [0, 3, 4, 5]


def test_an_answer_that_is_ahead_is_dropped_by_what_comes_behind_it_alone() -> None:
    stage = Stage()
    first, second = stage.write(1), stage.write(2)
    stage.answer(first)
    stage.tell()
    assert stage.known() == [0, 1, 3, 4, 5]
    stage.answer(second)
    assert stage.known() == ALL


def test_an_answer_from_before_what_is_remembered_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_module, "RECENT_KEYS", 4)
    stage = Stage()
    stage.answer(keys=[0])
    before = stage.head
    for key in (1, 100, 101, 102, 103):
        stage.write(key)
    stage.tell()
    stage.answer(before)
    assert stage.known() == [0]
    stage.answer(before + 1)
    assert stage.known() == ALL


def test_what_is_first_asked_for_is_kept_only_as_of_what_is_followed_from_then_on() -> None:
    stage = Stage()
    before = stage.head
    stage.write(1)
    stage.tell()
    stage.answer(before)
    assert stage.known() == []


def test_copies_are_not_used_while_more_was_accepted_than_has_come() -> None:
    stage = Stage()
    stage.answer()
    stage.write(1)
    state = stage.broker.state
    stage.broker.handler.message(Heartbeat((Heads(*state.partition, stage.head, 0, stage.head, state.time),)))
    assert stage.known() == []
    stage.tell()
    assert stage.known() == [0, 2, 3, 4, 5]


def test_copies_are_not_used_beyond_what_must_have_been_seen() -> None:
    stage = Stage()
    stage.answer()
    assert stage.known({0: Need(0, stage.head, True)}) == ALL
    assert stage.known({0: Need(0, stage.head + 1, True)}) == []


def test_what_must_have_been_seen_of_an_epoch_that_nobody_knows_is_asked_of_a_replica() -> None:
    """It may be of a topic that had this one's name before: then it was lost, and only a replica can tell."""
    stage = Stage()
    stage.answer()
    epoch = epoch_of(stage.head)
    assert stage.known({0: Need(0, position(epoch - 1, 1), True)}) == []
    assert stage.known({0: Need(0, position(epoch, 0), True)}) == stage.known({0: Need(0, 0, True)}) == ALL


def test_copies_are_not_used_without_a_broker_nor_when_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    stage.answer()
    stage.broker.disconnect()
    assert stage.known() == []
    stage.broker.connect()
    assert stage.known() == ALL
    monkeypatch.setattr(hot_module, "STALE_S", 0.0)
    assert stage.known() == []


def test_what_was_written_while_there_was_no_connection_is_dropped() -> None:
    stage = Stage()
    stage.answer()
    stage.broker.disconnect()
    stage.write(1)
    stage.broker.connect()
    assert stage.known() == [0, 2, 3, 4, 5]


@pytest.mark.parametrize("persistence", ["write_back", "none"])
def test_what_was_lost_takes_all_copies_with_it_and_answers_of_it_are_not_kept(persistence: str) -> None:
    stage = Stage(persistence)
    end = stage.head
    lost = stage.write(1)
    stage.tell()
    stage.answer()
    stage.broker.disconnect()
    stage.broker.state.open_epoch(end=end)
    stage.broker.connect()
    assert stage.known() == []
    stage.answer(lost)
    assert stage.known() == []
    assert stage.known({0: Need(0, lost, True)}) == []
    stage.answer()
    assert stage.known() == ALL
    assert stage.known({0: Need(0, lost, True)}) == []


def test_a_changed_table_is_asked_for_anew() -> None:
    stage = Stage()
    stage.answer()
    stage.broker.state.write(Table("t", 2, "float32"))
    stage.broker.durable[stage.broker.topic.id, 0] = stage.head
    stage.tell()
    assert stage.known() == []


def test_a_topic_that_is_gone_ends_its_copies() -> None:
    stage = Stage()
    stage.answer()
    stage.broker.disconnect()
    stage.broker.replace_topic()
    stage.broker.connect()
    assert stage.topic.ended and stage.known() == []
    stage.hot.close(1.0)
    assert not stage.broker.connected


def test_a_topic_that_cannot_be_followed_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FakeBroker()
    hot, tries = HotTopics(MIB, broker.directory, broker.make_link), 0

    def refuse(call: Call, kind: object, timeout: float) -> None:
        nonlocal tries
        tries += 1
        raise ParamstreamTimeout("no broker")

    broker.directory.request = refuse  # type: ignore[method-assign]
    deadline = time.monotonic() + 10
    assert hot.of(broker.topic, deadline) is None and hot.of(broker.topic, deadline) is None
    assert tries == 1
    monkeypatch.setattr(hot_module, "AGAIN_S", 0.0)
    hot = HotTopics(MIB, broker.directory, broker.make_link)
    assert hot.of(broker.topic, deadline) is None and hot.of(broker.topic, deadline) is None
    assert tries == 3
    hot.close(1.0)
    assert hot.of(broker.topic, deadline) is None
    assert tries == 3
