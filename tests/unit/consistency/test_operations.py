"""Lines become operations: each read finds its write, and what the history cannot judge is left out."""

from __future__ import annotations

from paramstream.consistency.history import Line, Read, Write
from paramstream.consistency.operations import NOBODY, operations_of


def test_a_read_from_a_writer_that_was_not_recorded_is_left_out() -> None:
    lines: list[Line] = [
        Write("t0/1", "x", "t0/1/1"),
        Read("r", "x", "t0/1/1", "t0/1"),
        Read("r", "x", "t1/2/1", "t1/2"),
    ]
    operations = operations_of(lines)
    assert len(operations) == 2 and operations.source.tolist() == [-1, 0]


def test_a_write_that_a_recorded_writer_never_made_was_made_by_nobody() -> None:
    lines: list[Line] = [Write("t0/1", "x", "t0/1/1"), Read("r", "x", "t0/1/2", "t0/1"), Read("r", "y", 1)]
    assert operations_of(lines).source.tolist() == [-1, NOBODY, NOBODY]
