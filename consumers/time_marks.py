"""When a partition stood where: what a keeper must know to tell rows that were not written for a time. No I/O, no clock.

A mark is (time, position): all that stands at or below the position was sequenced at or before that time, by the time of the partition
itself, which never goes back and does not follow a clock that is set. So whoever looks for what is older than some time finds it late,
by a sixteenth of its age at most, and never early.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import xxhash

from ..consistency.position import START
from ..errors import CorruptLog

FORMAT = 1
FINENESS = 16
"""Marks lie no further apart than this part of their age."""

_DIGEST_BYTES = 8


class Mark(NamedTuple):
    time: int
    """ns of sequencing time."""
    position: int


class TimeMarks:
    """Of one partition."""

    def __init__(self, marks: Iterable[tuple[int, int]] = ()) -> None:
        """`marks`: as `kept` gave them. Raises `ValueError` where time or position goes back."""
        self._marks = [Mark(*mark) for mark in marks]
        if self._marks != sorted(self._marks) or any(min(mark) < 0 for mark in self._marks):
            raise ValueError("marks of a partition go back")
        if any(b.position < a.position for a, b in zip(self._marks, self._marks[1:], strict=False)):
            raise ValueError("marks of a partition go back")
        self._looked: Mark | None = None

    @property
    def kept(self) -> tuple[Mark, ...]:
        """Oldest first."""
        return tuple(self._marks)

    def look(self, position: int, time: int) -> bool:
        """The partition is applied up to `position`, and the newest word of its time that has come is `time`. True where a mark was
        made.

        What was applied at one look was sequenced before the next word that comes: the mark is made then.
        """
        before, made = self._looked, False
        if before is not None and time <= before.time:
            return False
        if before is not None and (not self._marks or before.position > self._marks[-1].position):
            self._add(Mark(time, before.position))
            made = True
        self._looked = Mark(time, position)
        return made

    def older(self, time: int) -> int:
        """What stands at or below this position was sequenced at or before `time`."""
        at = bisect_right(self._marks, (time, 1 << 64))
        return self._marks[at - 1].position if at else START

    def _add(self, mark: Mark) -> None:
        self._marks.append(mark)
        kept = list[Mark]()
        for older, newer in zip(self._marks, self._marks[1:], strict=False):
            # The one between its neighbours goes where these are close enough, for their age.
            is_wanted = not kept or newer.time - kept[-1].time > (mark.time - newer.time) // FINENESS
            if is_wanted:
                kept.append(older)
        self._marks = [*kept, mark]


class _Kept(msgspec.Struct, array_like=True, frozen=True):
    format: int
    topic: int
    marks: dict[int, tuple[tuple[int, int], ...]]
    """By the number of the partition."""


def encode_marks(topic: int, marks: Mapping[int, TimeMarks]) -> bytes:
    data = msgspec.msgpack.encode(_Kept(FORMAT, topic, {number: each.kept for number, each in marks.items()}))
    return xxhash.xxh3_64_digest(data) + data


def decode_marks(data: bytes, topic: int, place: str) -> dict[int, TimeMarks]:
    """Raises `CorruptLog` that names `place` for what `encode_marks` did not write of that topic."""
    digest, rest = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    try:
        if digest != xxhash.xxh3_64_digest(rest):
            raise ValueError("its digest does not match its bytes")
        kept = msgspec.msgpack.decode(rest, type=_Kept)
        if (kept.format, kept.topic) != (FORMAT, topic):
            raise ValueError("it is of another format or topic")
        return {number: TimeMarks(marks) for number, marks in kept.marks.items()}
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CorruptLog(f"{place} holds no marks of time: {error}", item=place) from error
