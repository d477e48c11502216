"""What a client asks of a replica that serves look-ups, and what it answers: frames between the two of them, without a broker.

A frame is `b"PL"`, a format byte, the length of a MessagePack array tagged with its class, that array, and raw bytes behind it (keys,
rows, values), which are never parsed. One question has one answer.

An answer is never larger than `MAX_ANSWER_BYTES`: it holds what the first keys asked for come to, at least one of them, and the
client asks for the rest again. So nobody keeps account of pieces, and what a client that takes nothing can pile up is bounded by
the number of its questions.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, TypeAlias

import msgspec

from ..errors import CorruptLog
from ..events.codec import Buffer
from .wire import At, Id, Message, Number, Record, WireError

MAGIC = b"PL"
FORMAT = 1

MAX_ANSWER_BYTES = 1024 * 1024
"""Of rows or values in one answer. A single one may be no larger anyway, since an event is not."""

MAX_KEYS = 64 * 1024
"""In one question: 512 KiB of row keys."""

MAX_FRAME_BYTES = 2 * 1024 * 1024
"""Of a question or an answer: either side cuts off who sends longer ones."""

MAX_OPEN = 16
"""Questions that one connection may have open; more answers than twice that are kept for nobody."""

Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=3600)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_KEYS)]
Dim: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_ANSWER_BYTES)]
Length: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=MAX_FRAME_BYTES)]


class Need(Record, frozen=True):
    """A position that the answer must have seen."""

    partition: Number
    position: At
    must_stand: bool
    """Where it was lost the asker is told so (`EventLost`); what else was lost is waited for by nobody."""


class Asked(Message, frozen=True):
    """The head of each question."""

    id: int
    """The connection's own number of it."""
    topic: Id
    partitions: tuple[Number, ...]
    """Those that the keys belong to."""
    needs: tuple[Need, ...]
    wait_s: Seconds
    """How long the answer may wait for the needs."""


class LookUp(Asked, frozen=True):
    """Rows of a table. Bulk: the keys, little-endian int64."""

    table: str


class GetEntries(Asked, frozen=True):
    """The values of KV entries."""

    keys: tuple[bytes, ...]


class FoundRows(Message, frozen=True):
    """Bulk: the rows of the first `count` keys (of those that are not there: their first values), then a byte of each, 1 where it is there."""

    id: int
    count: Count
    dim: Dim
    dtype: str
    seen: tuple[tuple[Number, At], ...]
    """Of each partition asked: all up to there was applied, and nothing was taken back meanwhile."""


class FoundEntries(Message, frozen=True):
    """Bulk: the values one behind the other."""

    id: int
    sizes: tuple[Length, ...]
    """Bytes of each value, −1 where there is no entry."""
    seen: tuple[tuple[Number, At], ...]


class Declined(Message, frozen=True):
    id: int
    error: WireError
    elsewhere: bool
    """Another replica may have the answer, or this one later."""


AnyQuestion = LookUp | GetEntries
AnyAnswer = FoundRows | FoundEntries | Declined

_LENGTH = struct.Struct("<I")
_HEADER = MAGIC + bytes([FORMAT])
_HEAD_BYTES = len(_HEADER) + _LENGTH.size
_encoder = msgspec.msgpack.Encoder()
_questions: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(AnyQuestion)
_answers: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(AnyAnswer)


def encode_frame(message: AnyQuestion | AnyAnswer, *bulk: Buffer) -> bytes:
    """One frame; copies `bulk`."""
    head = _encoder.encode(message)
    return b"".join((_HEADER, _LENGTH.pack(len(head)), head, *bulk))


def decode_question(frame: Buffer) -> tuple[AnyQuestion, memoryview]:
    """The question and a view of its bulk. Raises `CorruptLog`."""
    return _decoded(_questions, frame)


def decode_answer(frame: Buffer) -> tuple[AnyAnswer, memoryview]:
    """The answer and a view of its bulk. Raises `CorruptLog`."""
    return _decoded(_answers, frame)


def _decoded(decoder: msgspec.msgpack.Decoder[Any], frame: Buffer) -> tuple[Any, memoryview]:
    data = memoryview(frame)
    if len(data) < _HEAD_BYTES or bytes(data[: len(_HEADER)]) != _HEADER:
        raise CorruptLog(f"a look-up's frame begins with {bytes(data[: len(_HEADER)])!r}, not {_HEADER!r}")
    (nbytes,) = _LENGTH.unpack_from(data, len(_HEADER))
    if nbytes > len(data) - _HEAD_BYTES:
        raise CorruptLog(f"a look-up's frame of {len(data)} bytes names a head of {nbytes}")
    end = _HEAD_BYTES + nbytes
    try:
        return decoder.decode(data[_HEAD_BYTES:end]), data[end:]
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptLog(f"a look-up's frame cannot be decoded: {error}") from error
