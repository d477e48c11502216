"""Marks of time: what is called old is old, and not much older than it need be."""

from __future__ import annotations

import random

import pytest

from paramstream.consumers.time_marks import FINENESS, TimeMarks, decode_marks, encode_marks
from paramstream.errors import CorruptLog


def walk(seed: int, steps: int) -> tuple[TimeMarks, list[tuple[int, int]]]:
    """Marks of a random walk, and (time, position) of every event in it."""
    chance = random.Random(seed)
    marks, events, now, position = TimeMarks(), list[tuple[int, int]](), 1000, 0
    for _ in range(steps):
        for _ in range(chance.randrange(3)):
            now += chance.randrange(20)
            position += 1
            events.append((now, position))
        # The word of time that has come by now is of some moment before.
        marks.look(position, now)
        now += chance.randrange(50)
    return marks, events


@pytest.mark.parametrize("seed", range(5))
def test_what_is_called_old_is_never_younger_and_hardly_older(seed: int) -> None:
    marks, events = walk(seed, 3000)
    now = events[-1][0]
    for age in (100, 1000, 5000, 20000, now // 2):
        up_to = marks.older(now - age)
        assert all(time <= now - age for time, position in events if position <= up_to)
        # A look or two come to it, which take up to 90 here.
        late = age + age // FINENESS + 200
        assert all(position <= up_to for time, position in events if time <= now - late)
    assert len(marks.kept) < 300


def test_a_mark_is_made_with_the_next_word_of_time_only() -> None:
    marks = TimeMarks()
    assert not marks.look(5, 100)
    assert not marks.look(6, 100)
    assert marks.older(10**9) == 0
    assert marks.look(7, 130)
    # What stood at 5 by the first look was sequenced by 130, and not by 100 for sure.
    assert (marks.older(129), marks.older(130)) == (0, 5)


def test_marks_come_back_as_they_were_saved_and_what_is_damaged_is_refused() -> None:
    marks, _ = walk(1, 200)
    data = encode_marks(7, {0: marks, 3: TimeMarks()})
    found = decode_marks(data, 7, "here")
    assert {number: each.kept for number, each in found.items()} == {0: marks.kept, 3: ()}
    for at in range(0, len(data), 7):
        with pytest.raises(CorruptLog, match="here"):
            decode_marks(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :], 7, "here")
    with pytest.raises(CorruptLog, match="another"):
        decode_marks(data, 8, "here")
    with pytest.raises(ValueError, match="go back"):
        TimeMarks([(5, 5), (6, 4)])
