"""Histories: what processes did, one JSON object a line, in each process's own order.

Operations (any model is checked on them):

    {"op": "w", "process": "t0", "key": "x", "value": 1}
    {"op": "r", "process": "r1", "key": "x", "value": 1}       a read of null saw the initial value
    {"op": "lost", "process": "t0", "key": "x", "value": 1}    the write was declared lost or refused: it and its reads are left out

Lines of delivery (each replica's order is checked on them): `follow`, `apply`, `epoch`, `undo`, `jump`, `unfollow`. Partitions are
named "topic/number" there. Unknown fields are ignored; an unknown `op` is a bad file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Annotated, TypeAlias

import msgspec

from ..errors import InvalidHistory
from .gate import Ordering

MAX_LINE_NBYTES = 1024 * 1024
"""A longer line is a bad file, so that reading one takes no more memory than this. A vector of 10,000 partitions fits."""

Scalar: TypeAlias = str | int | float | bool
"""What can be written. Values written to one key are unique; `true` and 1 are two values, 1 and 1.0 are one."""

At = Annotated[int, msgspec.Meta(ge=0)]
"""A position."""


class Write(msgspec.Struct, frozen=True, tag_field="op", tag="w"):
    """`process` wrote `value` to `key`; the line stands where the call was made."""

    process: str
    key: str
    value: Scalar


class Read(msgspec.Struct, frozen=True, tag_field="op", tag="r", omit_defaults=True):
    """`process` read `value` from `key`; None is the initial value, which nobody writes."""

    process: str
    key: str
    value: Scalar | None
    writer: str | None = None
    """The process that wrote the value, where the reader knows. A history without a line of it was not recorded there: the read is
    left out then, while a value that nobody wrote is a violation otherwise."""


class Lost(msgspec.Struct, frozen=True, tag_field="op", tag="lost"):
    """The write of `value` to `key` was declared lost or refused, whoever wrote it, and whoever says so."""

    process: str
    key: str
    value: Scalar


class Follow(msgspec.Struct, frozen=True, tag_field="op", tag="follow"):
    """From here on `process` follows `partition` from behind `position`; again after a restart, which may lie further back.

    `ordering` is that of the whole process: the last one given counts.
    """

    process: str
    ordering: Ordering
    partition: str
    position: At


class Unfollow(msgspec.Struct, frozen=True, tag_field="op", tag="unfollow"):
    """`process` follows `partition` no longer: its topic was deleted, or a restart left it out."""

    process: str
    partition: str


class Apply(msgspec.Struct, frozen=True, tag_field="op", tag="apply"):
    """`process` applied the event at `position`, whose stamp has the vectors `own` and `observed` (partition → position)."""

    process: str
    partition: str
    position: At
    own: dict[str, At] = {}
    observed: dict[str, At] = {}


class Epoch(msgspec.Struct, frozen=True, tag_field="op", tag="epoch"):
    """`process` passed the epoch record at `position`."""

    process: str
    partition: str
    position: At


class Undo(msgspec.Struct, frozen=True, tag_field="op", tag="undo"):
    """`process` took back all that it had applied of `partition` above `position`."""

    process: str
    partition: str
    position: At


class Jump(msgspec.Struct, frozen=True, tag_field="op", tag="jump"):
    """`process` passed over everything of `partition` up to `position`, and says that it did."""

    process: str
    partition: str
    position: At


Operation: TypeAlias = Write | Read | Lost
DeliveryLine: TypeAlias = Follow | Unfollow | Apply | Epoch | Undo | Jump
Line: TypeAlias = Write | Read | Lost | Follow | Unfollow | Apply | Epoch | Undo | Jump

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def encode_line(line: Line) -> bytes:
    """The line as it stands in a file, with its line end."""
    return _encoder.encode(line) + b"\n"


def read_lines(
    path: str | os.PathLike[str], progress: Callable[[int], None] = lambda nbytes: None
) -> Iterator[tuple[int, Line]]:
    """Every line of a file with its number, from 1 on; blank ones are passed over. Holds one line at a time.

    `progress` is called with the bytes of each line. Raises `InvalidHistory` naming file, line and what is wrong there, `OSError` for a file that cannot be read.
    """
    with open(path, "rb") as file:
        number = 0
        while raw := file.readline(MAX_LINE_NBYTES + 1):
            number += 1
            progress(len(raw))
            if len(raw) > MAX_LINE_NBYTES:
                raise bad_line(path, number, f"longer than {MAX_LINE_NBYTES} bytes", "One operation goes on one line")
            if raw.isspace():
                continue
            try:
                line = _decoder.decode(raw)
            except (msgspec.DecodeError, RecursionError) as error:
                raise bad_line(path, number, str(error), _remedy(raw)) from error
            yield number, line


def bad_line(path: str | os.PathLike[str], number: int, problem: str, remedy: str) -> InvalidHistory:
    return InvalidHistory(f"{os.fspath(path)}, line {number}: {problem}", remedy=remedy)


def _remedy(raw: bytes) -> str:
    if not raw.endswith(b"\n"):
        return "The file ends within this line: if its writer was killed there, remove the line"
    return 'A line is one JSON object, such as {"op": "w", "process": "t0", "key": "x", "value": 1}'
