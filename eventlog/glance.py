"""Chunks of weights of which only the few bytes are read that say whose they are: for whoever asks what versions a log has.

The checksum of a frame covers its head and its bulk alike, so what is not read whole is not proved. A chunk is believed where it says
what was to be expected behind one that was proved: the next sequence of the same session, with all else alike. Anything else is
read and proved whole, so a damaged head is met. Damage in the bytes of the tensors, and in which of them these are, is not: whoever
uses those proves them.
"""

from __future__ import annotations

import msgspec

from ..errors import CorruptLog
from ..events.codec import EventFrame, Head, Prefix, decode_event
from ..events.kinds import Chunk, Kind
from .mapped import MappedFile

WORTH_NBYTES = 64 * 1024
"""A chunk with less is read whole."""


class Glance:
    """Over the chunks of one partition, in the log's order."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Head, int]] = {}
        """Producer → (the head of its last chunk, the version)."""

    def frame(self, file: MappedFile, prefix: Prefix, offset: int) -> memoryview | None:
        """The chunk at `offset`, its bulk not brought in; None where the record there is to be proved."""
        if prefix.kind is not Kind.CHUNK or prefix.bulk_nbytes < WORTH_NBYTES:
            return None
        frame = file.view(prefix.nbytes, offset, wanted=prefix.nbytes - prefix.bulk_nbytes)
        if len(frame) < prefix.nbytes:
            return None
        try:
            return frame if self._is_next(decode_event(frame, is_checked=True)) else None
        except CorruptLog:
            return None

    def saw(self, event: EventFrame) -> None:
        """Each record that counts, believed or proved."""
        if isinstance(event.payload, Chunk):
            self._known[event.head.producer] = event.head, event.payload.version

    def _is_next(self, event: EventFrame) -> bool:
        """Whether it is what was to be expected. `confirmed` is news of a session, and decides nothing here."""
        assert isinstance(event.payload, Chunk)
        head, version = self._known.get(event.head.producer, (None, 0))
        if head is None or event.payload.version != version:
            return False
        return event.head == msgspec.structs.replace(
            head, sequence=head.sequence + 1, previous=head.sequence, confirmed=event.head.confirmed
        )
