"""Frames of look-ups arrive as they were sent, and what is none is refused."""

from __future__ import annotations

import pytest

from paramstream.errors import CorruptLog
from paramstream.transport.lookups import (
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
from paramstream.transport.wire import WireError

LOOK_UP = LookUp(1, 7, (0, 2), (Need(0, 5, True),), 0.5, "table")


@pytest.mark.parametrize("question", [LOOK_UP, GetEntries(2, 7, (0,), (), 0.0, (b"a", b""))])
def test_questions_arrive_with_their_bulk(question: LookUp | GetEntries) -> None:
    told, bulk = decode_question(encode_frame(question, b"ab", b"c"))
    assert (told, bytes(bulk)) == (question, b"abc")


@pytest.mark.parametrize(
    "answer",
    [
        FoundRows(1, 2, 4, "float32", ((0, 5),)),
        FoundEntries(1, (3, -1), ()),
        Declined(1, WireError("UnknownTopic", "no such topic", "", {"topic": "t"}), True),
    ],
)
def test_answers_arrive_with_their_bulk(answer: FoundRows | FoundEntries | Declined) -> None:
    told, bulk = decode_answer(encode_frame(answer, b"abc"))
    assert (told, bytes(bulk)) == (answer, b"abc")


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"PL",
        b"PL\x01\x00",
        b"PC\x01" + bytes(10),
        encode_frame(LOOK_UP)[:2] + b"\x02" + encode_frame(LOOK_UP)[3:],
        encode_frame(LOOK_UP)[:-1],
        b"PL\x01\xff\xff\xff\xff" + bytes(100),
        encode_frame(FoundEntries(1, (), ())),
        encode_frame(LookUp(1, 7, (1 << 32,), (), 0.5, "table")),
        encode_frame(LookUp(1, -1, (0,), (), 0.5, "table")),
        encode_frame(LookUp(1, 7, (0,), (), float("nan"), "table")),
        encode_frame(LookUp(1, 7, (0,), (), float("inf"), "table")),
    ],
)
def test_what_is_no_question_is_refused(frame: bytes) -> None:
    with pytest.raises(CorruptLog):
        decode_question(frame)


def test_a_question_is_no_answer() -> None:
    with pytest.raises(CorruptLog):
        decode_answer(encode_frame(LOOK_UP))
