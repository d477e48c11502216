"""Answers to fetches, in the pieces in which they travel."""

from __future__ import annotations

import pytest

from paramstream.errors import CorruptLog
from paramstream.events.kinds import Put, PutItem
from paramstream.transport.messages import Fetched, Goodbye, encode_message
from paramstream.transport.pieces import PIECE_BYTES, AnswerReader, pieces_of
from records.frames import make_frame


def frames_of(*sizes: int) -> list[memoryview]:
    """Event frames with values of so many bytes."""
    return [
        memoryview(make_frame(Put(items=(PutItem(b"k", size),)), at, 0, bytes(size)))
        for at, size in enumerate(sizes, start=1)
    ]


def answer_of(frames: list[memoryview], number: int = 1) -> Fetched:
    count = len(frames)
    return Fetched(number, 7, 0, count, count, count, sizes=tuple(map(len, frames)))


def as_message(answer: Fetched) -> memoryview:
    return memoryview(encode_message(answer))


def test_small_frames_share_pieces_of_at_most_a_mebibyte() -> None:
    frames = frames_of(*[100] * 20_000)
    pieces = list(pieces_of(frames))
    assert len(pieces) > 1 and all(len(piece) <= PIECE_BYTES for piece in pieces)
    assert b"".join(pieces) == b"".join(frames)


def test_a_frame_that_has_a_piece_for_itself_is_not_copied() -> None:
    frames = frames_of(800_000, 800_000)
    assert [piece is frame for piece, frame in zip(pieces_of(frames), frames, strict=True)] == [True, True]


@pytest.mark.parametrize("sizes", [(), (10,), (10, 800_000, 10, 10, 700_000, 600_000, 5), (100,) * 12_000])
def test_an_answer_is_whole_with_its_last_piece_and_not_before(sizes: tuple[int, ...]) -> None:
    reader, frames, answer = AnswerReader(), frames_of(*sizes), answer_of(frames_of(*sizes))
    messages = [as_message(answer), *(memoryview(piece) for piece in pieces_of(frames))]
    assert all(reader.take(message) is None for message in messages[:-1])
    assert reader.take(messages[-1]) == (answer, frames)


def test_a_new_answer_takes_the_place_of_one_that_stayed_incomplete() -> None:
    reader, frames = AnswerReader(), frames_of(10, 20)
    assert reader.take(as_message(answer_of(frames * 2))) is None
    assert reader.take(frames[0]) is None
    assert reader.take(as_message(answer_of(frames[1:], number=2))) is None
    assert reader.take(frames[1]) == (answer_of(frames[1:], number=2), [frames[1]])


def test_what_belongs_to_no_answer_is_refused_and_the_next_answer_is_read() -> None:
    reader, (frame,) = AnswerReader(), frames_of(10)
    for stray in (frame, memoryview(encode_message(Goodbye())), memoryview(b"PSgarbage"), memoryview(b"")):
        with pytest.raises(CorruptLog):
            reader.take(stray)
    assert reader.take(as_message(answer_of([]))) == (answer_of([]), [])


def test_more_frames_than_an_answer_says_make_none_of_it_count() -> None:
    reader, frames = AnswerReader(), frames_of(10, 20)
    assert reader.take(as_message(answer_of(frames[:1]))) is None
    with pytest.raises(CorruptLog):
        reader.take(memoryview(b"".join(frames)))
    with pytest.raises(CorruptLog):
        reader.take(frames[0])


@pytest.mark.parametrize("at", [0, 2, 3, 24, 60])
def test_a_frame_that_says_nonsense_of_itself_reaches_whoever_stops_at_it(at: int) -> None:
    reader, frames = AnswerReader(), [memoryview(bytearray(frame)) for frame in frames_of(10, 20, 30)]
    frames[1][at] ^= 0xFF
    assert reader.take(as_message(answer_of(frames))) is None
    answer = None
    for piece in pieces_of(frames):
        answer = reader.take(memoryview(piece))
    assert answer == (answer_of(frames), frames)


def test_an_answer_that_does_not_say_the_sizes_of_its_frames_is_refused() -> None:
    for sizes in ((), (10,), (10, 0), (10, -5)):
        with pytest.raises(CorruptLog, match="sizes"):
            AnswerReader().take(as_message(Fetched(1, 7, 0, 2, 2, 2, sizes=sizes)))
