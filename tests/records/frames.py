"""Stamped frames as an owner writes them."""

from collections.abc import Iterable

from paramstream.consistency.position import START, epoch_of, position
from paramstream.consistency.vector import PartitionId
from paramstream.eventlog.log import PartitionLog
from paramstream.events.codec import MAX_BASE_BYTES, EventFrame, Head, decode_event, encode_event, stamp_frame
from paramstream.events.kinds import Base, Claim, Epoch, Kind, Note, Payload, Put, PutItem

PARTITION: PartitionId = (0x1234_5678_9ABC_DEF0, 0)


def make_frame(
    payload: Payload, at: int, nonce: int, bulk: bytes = b"", sequence: int = 0, partition: PartitionId = PARTITION
) -> bytearray:
    head = Head(producer="trainer-0", incarnation=1, sequence=sequence)
    frame = encode_event(partition, head, payload, [bulk], limit=MAX_BASE_BYTES)
    stamp_frame(frame, position=at, time=at, nonce=nonce)
    return frame


class Owner:
    """Makes the frames of one owner after another, each at its place, and remembers those that readers get."""

    def __init__(self, partition: PartitionId = PARTITION) -> None:
        self.partition = partition
        self.epoch = 0
        self.nonce = 0
        self.at = START
        self.events: list[tuple[int, bytes]] = []
        """(position, frame) of events, notes and epoch records in order."""

    def claim(self, epoch: int | None = None) -> bytearray:
        self.epoch = self.epoch + 1 if epoch is None else epoch
        self.nonce += 1
        payload = Claim(epoch=self.epoch, nonce=self.nonce, owner="broker")
        return make_frame(payload, position(self.epoch, 0), self.nonce, partition=self.partition)

    def open_epoch(self) -> bytearray:
        previous, self.at = self.at, position(self.epoch, 0)
        return self._given(make_frame(Epoch(previous_end=previous), self.at, self.nonce, partition=self.partition))

    def put(self, value: bytes = b"value") -> bytearray:
        self.at += 1
        payload = Put(items=(PutItem(key=b"key", nbytes=len(value)),))
        return self._given(make_frame(payload, self.at, self.nonce, value, sequence=self.at, partition=self.partition))

    def note(self) -> bytearray:
        self.at += 1
        return self._given(make_frame(Note(), self.at, self.nonce, partition=self.partition))

    def base(self, state: bytes = b"state") -> bytearray:
        return make_frame(Base(epoch=self.epoch), self.at, self.nonce, state, partition=self.partition)

    def opening(self) -> list[bytearray]:
        """A tenure's first records: claim, epoch record, base."""
        return [self.claim(), self.open_epoch(), self.base()]

    def _given(self, frame: bytearray) -> bytearray:
        self.events.append((self.at, bytes(frame)))
        return frame

    def continue_from(self, events: Iterable[tuple[int, bytes]], last_claim: int) -> None:
        """What recovery kept: the next owner goes on from there."""
        self.events = list(events)
        self.at = self.events[-1][0] if self.events else START
        self.epoch = max(last_claim, epoch_of(self.at))


def append_all(log: PartitionLog, frames: Iterable[bytearray]) -> None:
    for frame in frames:
        log.append(frame)


def read_all(log: PartitionLog, after: int | None = None, max_bytes: int = 1 << 20) -> list[tuple[int, bytes]]:
    """(position, frame) of everything behind `after`, fetched batch by batch."""
    at = log.start if after is None else after
    found: list[tuple[int, bytes]] = []
    while True:
        batch = log.read(at, max_bytes)
        if not batch.frames:
            return found
        found += [(decode_event(frame).position, bytes(frame)) for frame in batch.frames]
        assert batch.end == found[-1][0]
        at = batch.end


def as_pairs(frames: Iterable[EventFrame]) -> list[tuple[int, bytes]]:
    return [(frame.position, bytes(frame.buffer)) for frame in frames if frame.kind is not Kind.BASE]
