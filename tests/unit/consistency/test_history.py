"""The lines of a history: what is written is read back, and a bad file is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramstream.consistency.gate import Ordering
from paramstream.consistency.history import (
    MAX_LINE_NBYTES,
    Apply,
    Epoch,
    Follow,
    Jump,
    Line,
    Lost,
    Read,
    Undo,
    Unfollow,
    Write,
    encode_line,
    read_lines,
)
from paramstream.errors import InvalidHistory

LINES: list[Line] = [
    Write("t0", "x", "t0/3/17"),
    Write("t0", "x", 2**70),
    Write("t0", "x", True),
    Read("r1", "x", None),
    Read("r1", "x", 1.5),
    Lost("t0", "x", "t0/3/17"),
    Follow("r1", Ordering.CAUSAL, "model/0", 7),
    Apply("r1", "model/0", 2**64 - 1, {"model/1": 3}, {"other/0": 4}),
    Epoch("r1", "model/0", 1 << 28),
    Undo("r1", "model/0", 9),
    Jump("r1", "model/0", 12),
    Unfollow("r1", "model/0"),
]


def write(folder: Path, content: bytes) -> Path:
    path = folder / "history.jsonl"
    path.write_bytes(content)
    return path


def test_every_kind_of_line_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = write(tmp_path, b"".join(map(encode_line, LINES)))
    found = list(read_lines(path))
    assert [line for _, line in found] == LINES
    assert [number for number, _ in found] == list(range(1, len(LINES) + 1))


def test_the_order_of_fields_unknown_fields_and_blank_lines_do_not_matter(tmp_path: Path) -> None:
    path = write(tmp_path, b'{"process": "t", "at": [1], "value": 1, "key": "x", "op": "w"}\n\n')
    assert list(read_lines(path)) == [(1, Write("t", "x", 1))]


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (b'{"op": "cas", "process": "t", "key": "x", "value": 1}\n', "cas"),
        (b'{"process": "t", "key": "x", "value": 1}\n', "op"),
        (b'{"op": "w", "process": "t", "key": "x"}\n', "value"),
        (b'{"op": "w", "process": "t", "key": "x", "value": null}\n', "null"),
        (b'{"op": "w", "process": "t", "key": "x", "value": [1]}\n', "array"),
        (b'{"op": "r", "process": 7, "key": "x", "value": 1}\n', "process"),
        (b'{"op": "undo", "process": "r", "partition": "m/0", "position": -1}\n', ">= 0"),
        (b'{"op": "follow", "process": "r", "ordering": "any", "partition": "m/0", "position": 0}\n', "any"),
        (b"[1, 2]\n", "array"),
        (b"\xff\xfe\n", "malformed"),
        (b'{"op": "w", "process": "t\xff", "key": "x", "value": 1}\n', "UTF-8"),
        (b'{"op": "w", "process": "t", "key": "x", "value": 1, "more": ' + b"[" * 100_000, "recursion"),
        (b'{"op": "w", "process": "t", "key": "x", "val', "ends within"),
        (b'{"op": "w", "process": "t", "key": "x", "value": 1e999}\n', "range"),
        (b'{"op": "w", "process": "t", "key": "' + b"x" * MAX_LINE_NBYTES + b'", "value": 1}\n', "longer"),
    ],
)
def test_a_bad_line_is_named_with_file_number_and_remedy(tmp_path: Path, bad: bytes, problem: str) -> None:
    path = write(tmp_path, encode_line(LINES[0]) + bad)
    lines = read_lines(path)
    assert next(lines) == (1, LINES[0])
    with pytest.raises(InvalidHistory, match=problem) as caught:
        next(lines)
    assert f"{path}, line 2: " in caught.value.problem
    assert caught.value.remedy
