"""How an answer to a fetch travels: its `Fetched`, then its event frames in pieces, each a message of its own.

It is never one message of many parts: a libzmq socket that does not reconnect aborts its whole process, or never gets well,
where its peer dies while the socket stands between two parts (the assertion `!_more` in fq.cpp).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..errors import CorruptLog
from ..events.codec import Buffer
from .messages import MAGIC, Fetched, decode_message

PIECE_BYTES = 1024 * 1024
"""Small frames share a piece of at most this: a message for each of 100 bytes would cost more than the copy."""


def pieces_of(frames: Iterable[memoryview]) -> Iterator[Buffer]:
    """The frames in order, each whole in one piece. A piece of one frame is that frame, not a copy."""
    held: list[memoryview] = []
    nbytes = 0
    for frame in frames:
        if held and nbytes + len(frame) > PIECE_BYTES:
            yield _joined(held)
            held, nbytes = [], 0
        held.append(frame)
        nbytes += len(frame)
    if held:
        yield _joined(held)


class AnswerReader:
    """Puts the messages of a fetch socket together again. One connection's."""

    def __init__(self) -> None:
        self._answer: Fetched | None = None
        self._frames: list[memoryview] = []

    def take(self, message: memoryview) -> tuple[Fetched, list[memoryview]] | None:
        """The next message: the answer that is whole with it, if one is. The frames are views of what was received.

        A new answer takes the place of one that stayed incomplete. Raises `CorruptLog` for what belongs to none.
        """
        if bytes(message[:2]) != MAGIC:
            self._take_piece(message)
        else:
            self._answer = None
            told = decode_message(message)
            if not isinstance(told, Fetched) or len(told.sizes) != told.count or min(told.sizes, default=1) < 1:
                raise CorruptLog(f"a fetch was answered with {type(told).__name__}, which says no sizes")
            self._answer, self._frames = told, []
        answer = self._answer
        if answer is None or len(self._frames) < answer.count:
            return None
        self._answer = None
        return answer, self._frames

    def _take_piece(self, piece: memoryview) -> None:
        answer = self._answer
        if answer is None:
            raise CorruptLog("a piece of an answer came before the answer")
        for nbytes in answer.sizes[len(self._frames) :]:
            if not piece:
                return
            if nbytes > len(piece):
                break
            self._frames.append(piece[:nbytes])
            piece = piece[nbytes:]
        if piece:
            self._answer = None
            raise CorruptLog(f"a piece of an answer has {len(piece)} bytes that are none of its frames")


def _joined(frames: list[memoryview]) -> Buffer:
    return frames[0] if len(frames) == 1 else b"".join(frames)
