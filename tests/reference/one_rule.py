"""What a whole log in Kafka says by the one rule, written down a second time and without the library's own counting."""

from __future__ import annotations

from collections.abc import Iterable

from paramstream.consistency.position import epoch_of, offset_of
from paramstream.eventlog.kafka.records import Record
from paramstream.events.codec import EventFrame, decode_event
from paramstream.events.kinds import Base, Claim, Epoch, Kind


class Truth:
    """`read` takes all records that there ever were, in the log's order."""

    def __init__(self) -> None:
        self.epoch = self.nonce = self.reached = 0
        self.claims = list[int]()
        """The epochs of claims that count, in order."""
        self.records = list[EventFrame]()
        """What stands, in order: epoch records, notes and events."""
        self.bases = list[int]()
        """The positions of bases that count."""
        self._pieces = list[Record]()

    @property
    def puts(self) -> dict[int, bytes]:
        """Position → bulk."""
        return {frame.position: bytes(frame.bulk) for frame in self.records if frame.kind is Kind.PUT}

    def read(self, records: Iterable[Record]) -> Truth:
        for record in records:
            frame = self._frame(record)
            if frame is not None:
                self._take(frame)
        return self

    def _frame(self, record: Record) -> EventFrame | None:
        if record.key is None or record.key[:4] != b"PSK1":
            self._pieces = []
            return decode_event(record.value) if record.value[:2] == b"PS" else None
        piece, pieces = int.from_bytes(record.key[4:6], "little"), int.from_bytes(record.key[6:8], "little")
        if piece == 0:
            self._pieces = []
        elif (
            len(self._pieces) != piece
            or self._pieces[-1].offset + 1 != record.offset
            or (self._pieces[-1].key or b"")[24:] != record.key[24:]
        ):
            self._pieces = []
            return None
        self._pieces.append(record)
        if piece < pieces - 1:
            return None
        whole, self._pieces = b"".join(each.value for each in self._pieces), []
        return decode_event(whole)

    def _take(self, frame: EventFrame) -> None:
        payload = frame.payload
        if isinstance(payload, Claim):
            if payload.epoch > self.epoch:
                self.epoch, self.nonce = payload.epoch, payload.nonce
                self.claims.append(payload.epoch)
        elif isinstance(payload, Base):
            if (payload.epoch, frame.nonce, frame.position) == (self.epoch, self.nonce, self.reached):
                self.bases.append(frame.position)
        elif frame.nonce == self.nonce:
            opens = isinstance(payload, Epoch) and epoch_of(self.reached) < epoch_of(frame.position) == self.epoch
            follows = frame.position == self.reached + 1 and epoch_of(frame.position) == self.epoch
            if opens or (follows and offset_of(frame.position)):
                self.reached = frame.position
                self.records.append(frame)
