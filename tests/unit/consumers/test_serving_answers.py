"""What a replica answers to a look-up: rows and values, bounded; or why not, and whether another one may."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fakes.served_source import DIM, TABLE, TOPIC, FakeSource, rows_of
from paramstream.consumers.lookups.answers import TABLE_S, Waiting, answer, read_entries, read_rows
from paramstream.errors import (
    CorruptLog,
    CorruptTier,
    EventLost,
    Fenced,
    InvalidEvent,
    ParamstreamTimeout,
    UnknownTopic,
)
from paramstream.events.limits import MAX_KEY_BYTES
from paramstream.transport.lookups import (
    MAX_ANSWER_BYTES,
    MAX_KEYS,
    AnyQuestion,
    Declined,
    FoundEntries,
    FoundRows,
    GetEntries,
    LookUp,
    Need,
    decode_answer,
    decode_question,
    encode_frame,
)

NO_KEYS = np.empty(0, np.int64)


def look_up(*needs: Need, topic: int = TOPIC, partitions: tuple[int, ...] = (0,), table: str = TABLE) -> LookUp:
    return LookUp(5, topic, partitions, needs, 3.0, table)


def get(*keys: bytes) -> GetEntries:
    return GetEntries(5, TOPIC, (0,), (), 3.0, keys)


def asked(source: FakeSource, question: AnyQuestion, keys: Any = (2, 3)) -> Any:
    """What it is answered with, as it comes over the wire."""
    bulk = np.asarray(keys, np.int64).tobytes() if isinstance(question, LookUp) else b""
    sent, carried = decode_question(encode_frame(question, bulk))
    return answer(source, sent, carried)


def rows(frame: bytes, count: int) -> tuple[FoundRows, Any, Any]:
    told, bulk = decode_answer(frame)
    assert isinstance(told, FoundRows)
    return told, *read_rows(told, bulk, count)


def refusal(found: Any) -> tuple[type, bool]:
    assert isinstance(found, Declined) and found.id == 5
    return type(found.error.raised()), found.elsewhere


# --- what is there ----------------------------------------------------------------------------------------------------------------


def test_rows_come_in_the_order_asked_with_what_is_there_and_what_was_seen() -> None:
    told, values, found = rows(asked(FakeSource(), look_up(), [4, -1, 4, 2**63 - 1]), 4)
    assert (told.id, told.count, told.dim, told.dtype, told.seen) == (5, 4, DIM, "float32", ((0, 10),))
    assert np.array_equal(values, rows_of(np.array([4, -1, 4, 2**63 - 1])))
    assert found.tolist() == [True, False, True, False]


def test_an_answer_has_as_many_rows_as_fit_and_no_more() -> None:
    keys = np.arange(MAX_KEYS)
    frame = asked(FakeSource(), look_up(), keys)
    told, values, _ = rows(frame, len(keys))
    assert told.count == MAX_ANSWER_BYTES // (DIM * 4 + 1) < MAX_KEYS
    assert len(frame) < MAX_ANSWER_BYTES + 1000
    assert np.array_equal(values, rows_of(keys[: told.count]))


def test_values_come_in_the_order_asked_as_many_as_fit() -> None:
    source = FakeSource()
    source.entries = {b"a": b"x" * 700_000, b"b": b"y" * 700_000, b"e": b""}
    told, bulk = decode_answer(asked(source, get(b"e", b"no", b"a", b"b")))
    assert isinstance(told, FoundEntries) and told.sizes == (0, -1, 700_000)
    assert read_entries(told, bulk, 4) == [b"", None, b"x" * 700_000]


def test_one_value_is_told_however_large() -> None:
    source = FakeSource()
    source.entries = {b"a": bytes(MAX_ANSWER_BYTES + 5)}
    told, _ = decode_answer(asked(source, get(b"a", b"a")))
    assert isinstance(told, FoundEntries) and told.sizes == (MAX_ANSWER_BYTES + 5,)


# --- what is not -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "keys", "expected"),
    [
        (look_up(topic=TOPIC + 1), [1], (UnknownTopic, True)),
        (look_up(partitions=(0, 1)), [1], (InvalidEvent, True)),
        (look_up(partitions=()), [1], (InvalidEvent, False)),
        (look_up(), NO_KEYS, (InvalidEvent, False)),
        (look_up(), np.zeros(MAX_KEYS + 1, np.int64), (InvalidEvent, False)),
        (get(), NO_KEYS, (InvalidEvent, False)),
        (get(b"k" * (MAX_KEY_BYTES + 1)), NO_KEYS, (InvalidEvent, False)),
    ],
)
def test_what_cannot_be_answered_is_said_and_whether_another_replica_may(
    question: AnyQuestion, keys: Any, expected: tuple[type, bool]
) -> None:
    assert refusal(asked(FakeSource(), question, keys)) == expected


def test_keys_of_half_a_length_are_refused() -> None:
    assert refusal(answer(FakeSource(), look_up(), memoryview(b"1234567890"))) == (InvalidEvent, False)


def test_a_stopped_replica_sends_its_askers_elsewhere_with_its_error() -> None:
    source = FakeSource()
    source.stopped = Fenced("a newer one of its name is there")
    assert refusal(asked(source, look_up())) == (Fenced, True)


def test_a_replica_whose_disk_is_damaged_sends_its_askers_elsewhere() -> None:
    class Damaged(FakeSource):
        def get(self, topic: int, key: bytes) -> bytes | None:
            raise CorruptTier("a value cannot be read back")

    assert refusal(asked(Damaged(), get(b"k"))) == (CorruptTier, True)


def test_a_table_that_is_not_known_may_be_on_its_way_for_a_moment() -> None:
    source = FakeSource()
    waits = asked(source, look_up(table="new"))
    assert isinstance(waits, Waiting) and waits.most_s == TABLE_S and refusal(waits.late) == (UnknownTopic, False)
    source.tables.add("new")
    assert rows(asked(source, look_up(table="new")), 2)[0].count == 2


# --- what must have been seen ----------------------------------------------------------------------------------------------------


def test_a_position_to_be_seen_is_waited_for() -> None:
    source = FakeSource()
    need = Need(0, 11, must_stand=True)
    waits = asked(source, look_up(need))
    assert isinstance(waits, Waiting) and waits.most_s == 3.0
    assert refusal(waits.late) == (ParamstreamTimeout, True) and waits.late.error.raised().position == 11
    source.positions[0] = 11
    assert rows(asked(source, look_up(need)), 2)[0].seen == ((0, 11),)


def test_of_a_partition_that_is_not_followed_nothing_is_waited_for() -> None:
    assert rows(asked(FakeSource(), look_up(Need(7, 10**6, must_stand=True))), 2)[0].count == 2


def test_what_was_lost_is_told_where_it_must_stand_and_waited_for_nowhere() -> None:
    source = FakeSource()
    source.lost = {(0, 11)}
    assert refusal(asked(source, look_up(Need(0, 11, must_stand=True)))) == (EventLost, False)
    assert rows(asked(source, look_up(Need(0, 11, must_stand=False))), 2)[0].count == 2


@pytest.mark.parametrize(("times", "reads"), [(2, 3), (100, 4)])
def test_rows_are_read_again_where_something_was_taken_back_meanwhile(times: int, reads: int) -> None:
    source = FakeSource()
    source.undo_while_reading = times
    found = asked(source, look_up())
    assert source.reads == reads
    assert isinstance(found, bytes) if times < reads else refusal(found)[1]


# --- answers that are none --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "bulk"),
    [
        (FoundRows(5, 3, 1, "uint8", ()), bytes(6)),
        (FoundRows(5, 2, 1, "nonsense", ()), bytes(4)),
        (FoundRows(5, 2, 1, "uint8", ()), bytes(5)),
        (FoundRows(5, 2, 1, "float32", ()), bytes(4)),
        (FoundRows(5, 2, 1, "uint8", ()), b"\0\0\0\2"),
    ],
)
def test_rows_that_do_not_fit_what_was_asked_are_garbage(told: FoundRows, bulk: bytes) -> None:
    with pytest.raises(CorruptLog):
        read_rows(told, memoryview(bulk), 2)


@pytest.mark.parametrize(("sizes", "bulk"), [((), b""), ((1, 1, 1), b"abc"), ((1,), b"ab"), ((2, -1), b"a")])
def test_values_that_do_not_fit_what_was_asked_are_garbage(sizes: tuple[int, ...], bulk: bytes) -> None:
    with pytest.raises(CorruptLog):
        read_entries(FoundEntries(5, sizes, ()), memoryview(bulk), 2)
