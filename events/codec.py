"""The one codec: an event is one contiguous frame, the same on the wire and in the log.

    prefix   64 bytes, fixed: what the partition's owner writes (position, time, nonce) and what is checked before belief
    head     who wrote it, what it follows on, its two vectors (MessagePack array)
    meta     the payload's struct (MessagePack array)
    bulk     raw bytes

The producer encodes a frame once. The owner stamps the prefix *in place*; the rest stays untouched through fan-out, log and
replica. Two xxh3_64 checksums guard it: one over head, meta and bulk, made by the producer; one over the prefix, which
includes the first. Every length is checked against the frame and the limits before it is used, and nothing is unpickled.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import msgspec

from ..consistency.position import show
from ..consistency.stamp import Stamp
from ..consistency.vector import EMPTY, PartitionId, VersionVector
from ..errors import CorruptLog, InvalidEvent
from .digest import checksum
from .kinds import KIND_OF, PAYLOADS, Kind, Payload
from .limits import MAX_EVENT_BYTES

Buffer = bytes | bytearray | memoryview

FORMAT = 1
MAGIC = b"PS"
MAX_BASE_BYTES = 256 * 1024 * 1024
"""A base is a record of the log only and may be larger than an event: the whole state of a partition's core."""

_PREFIX = struct.Struct("<2sBBIQIIIIQQQQ")
_STAMP = struct.Struct("<IQQ")  # nonce, position, time
_STAMP_AT = 28
_PARTITION = struct.Struct("<IQ")
_PARTITION_AT = 4
_POSITION = struct.Struct("<Q")
_POSITION_AT = 32
_CHECKSUM = struct.Struct("<Q")
_BODY_CHECKSUM_AT = 48
_CHECKSUM_AT = 56
PREFIX_BYTES = _PREFIX.size
assert PREFIX_BYTES == 64

_VECTOR_ENTRY = struct.Struct("<QIQ")


class Head(msgspec.Struct, array_like=True, frozen=True):
    """What the producer says about its event, beside the payload."""

    producer: str
    incarnation: int
    sequence: int
    previous: int = 0
    """The sequence of the session's event before it in this partition; first: the one that the join answered."""
    joined_epoch: int = 0
    """The epoch of the partition that the session has joined: the event is refused in any other."""
    confirmed: int = 0
    """The session has the answers up to this sequence: the owner may forget their positions."""
    own: bytes = b""
    observed: bytes = b""
    source: tuple[int, int] | None = None
    """(source position, index) of a processor's output."""


_head_decoder = msgspec.msgpack.Decoder(Head)
_meta_decoders = {kind: msgspec.msgpack.Decoder(payload) for kind, payload in PAYLOADS.items()}
_encoder = msgspec.msgpack.Encoder()
_KINDS = {int(kind): kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class EventFrame:
    """A decoded frame. `buffer` is the whole frame; `bulk` a view into it that keeps it alive."""

    kind: Kind
    topic: int
    partition: int
    nonce: int
    position: int
    time: int
    head: Head
    payload: Payload
    bulk: memoryview
    buffer: memoryview

    @property
    def partition_id(self) -> PartitionId:
        return self.topic, self.partition

    @property
    def nbytes(self) -> int:
        return len(self.buffer)

    def stamp(self) -> Stamp:
        """The event's stamp with its vectors decoded."""
        head = self.head
        return Stamp(
            producer=head.producer,
            incarnation=head.incarnation,
            sequence=head.sequence,
            own=decode_vector(head.own),
            observed=decode_vector(head.observed),
            position=self.position,
            time=self.time,
        )

    def describe(self) -> str:
        return f"{self.kind.label} of {self.head.producer!r} (sequence {self.head.sequence}) at {show(self.position)}"


def encode_vector(vector: VersionVector[int]) -> bytes:
    """20 bytes an entry: topic id, partition, position; sorted, so that equal vectors have equal bytes."""
    return b"".join(_VECTOR_ENTRY.pack(topic, number, at) for (topic, number), at in sorted(vector.items()))


def decode_vector(data: bytes) -> VersionVector[int]:
    """Raises `CorruptLog` where the length is no whole number of entries. Cached: neighbours carry the same vectors."""
    if not data:
        return EMPTY
    return _decode_small(data) if len(data) <= _SMALL_VECTOR_BYTES else _decode_large(data)


def _read_vector(data: bytes) -> VersionVector[int]:
    if len(data) % _VECTOR_ENTRY.size:
        raise CorruptLog(
            f"an encoded vector of {len(data)} bytes is no whole number of {_VECTOR_ENTRY.size}-byte entries"
        )
    return VersionVector({(topic, number): at for topic, number, at in _VECTOR_ENTRY.iter_unpack(data)})


_SMALL_VECTOR_BYTES = 4 * 1024
# A vector in memory is ten times its bytes, and an event may carry 896 KiB of them: of large ones few are kept.
_decode_small = lru_cache(maxsize=1024)(_read_vector)
_decode_large = lru_cache(maxsize=32)(_read_vector)


def encode_event(
    partition: PartitionId, head: Head, payload: Payload, bulk: Sequence[Buffer] = (), *, limit: int = MAX_EVENT_BYTES
) -> bytearray:
    """A frame with an empty stamp (position, time and nonce are 0). Copies `bulk` once.

    Raises `InvalidEvent` where the frame would be larger than `limit` bytes.
    """
    # Joined rather than filled in: bytes that are about to be written are not set to zero before.
    frame = bytearray().join(_pieces(partition, head, payload, bulk, limit))
    _seal(frame)
    return frame


def encode_event_into(
    memory: Callable[[int], memoryview],
    partition: PartitionId,
    head: Head,
    payload: Payload,
    bulk: Sequence[Buffer] = (),
) -> memoryview:
    """As `encode_event`, made in what `memory` gives: writable bytes, as many as it is asked for."""
    pieces = _pieces(partition, head, payload, bulk, MAX_EVENT_BYTES)
    frame = memory(sum(map(len, pieces)))
    at = 0
    for piece in pieces:
        frame[at : at + len(piece)] = piece
        at += len(piece)
    _seal(frame)
    return frame


def _pieces(
    partition: PartitionId, head: Head, payload: Payload, bulk: Sequence[Buffer], limit: int
) -> tuple[Buffer, ...]:
    """What a frame is joined from: the prefix without its checksums, head, meta and bulk."""
    kind = KIND_OF[type(payload)]
    head_bytes, meta_bytes = _encoder.encode(head), _encoder.encode(payload)
    bulk_nbytes = sum(len(piece) for piece in bulk)
    nbytes = PREFIX_BYTES + len(head_bytes) + len(meta_bytes) + bulk_nbytes
    if nbytes > limit:
        raise InvalidEvent(
            f"a {kind.label} event of {nbytes} bytes is over the limit of {limit}",
            partition=partition[1],
            remedy="Publish it in smaller pieces",
        )
    prefix = _PREFIX.pack(
        MAGIC, FORMAT, kind, partition[1], partition[0],
        len(head_bytes), len(meta_bytes), bulk_nbytes, 0, 0, 0, 0, 0,
    )  # fmt: skip
    return prefix, head_bytes, meta_bytes, *bulk


def stamp_frame(frame: bytearray | memoryview, *, position: int, time: int, nonce: int) -> None:
    """Write the owner's fields into the prefix, in place."""
    _STAMP.pack_into(frame, _STAMP_AT, nonce, position, time)
    _seal_prefix(frame)


def position_of(frame: Buffer) -> int:
    """The position in the prefix of a whole frame, without decoding the rest."""
    return int(_POSITION.unpack_from(frame, _POSITION_AT)[0])


def partition_in(frame: Buffer) -> PartitionId:
    """The partition in the prefix of a whole frame, without decoding the rest."""
    number, topic = _PARTITION.unpack_from(frame, _PARTITION_AT)
    return topic, number


class Prefix(NamedTuple):
    """What the first 64 bytes of a frame say of it."""

    kind: Kind
    topic: int
    partition: int
    nonce: int
    position: int
    time: int
    nbytes: int
    """Of the whole frame."""
    bulk_nbytes: int
    """Of its bulk, which ends it."""


def read_prefix(data: Buffer) -> Prefix:
    """The prefix at the beginning of `data`, proved whole by its own checksum; what follows it is not looked at.

    Raises `CorruptLog` where there are fewer than 64 bytes, or magic, format, checksum or lengths are wrong.
    """
    buffer = memoryview(data)
    if len(buffer) < PREFIX_BYTES:
        raise CorruptLog(f"a frame of {len(buffer)} bytes is shorter than its prefix of {PREFIX_BYTES}")
    return _prefix_of(_checked_prefix(buffer))


def check_frame(data: Buffer) -> Prefix:
    """The prefix of the one frame that `data` is, with every checksum proved; head and payload are not decoded.

    Raises `CorruptLog` as `decode_event` does.
    """
    buffer = memoryview(data)
    if len(buffer) < PREFIX_BYTES:
        raise CorruptLog(f"a frame of {len(buffer)} bytes is shorter than its prefix of {PREFIX_BYTES}")
    fields = _checked_prefix(buffer)
    prefix = _prefix_of(fields)
    if prefix.nbytes != len(buffer):
        raise CorruptLog(f"a frame says {prefix.nbytes} bytes and has {len(buffer)}", position=prefix.position)
    if checksum(buffer[PREFIX_BYTES:]) != fields[-1]:
        raise CorruptLog(
            f"the checksum of a {prefix.kind.label} event does not match its bytes",
            partition=prefix.partition,
            position=prefix.position,
        )
    return prefix


def decode_event(data: Buffer, *, is_checked: bool = False) -> EventFrame:
    """The frame in `data`, which must be exactly one. Does not copy. `is_checked`: `check_frame` has just proved these bytes.

    Raises `CorruptLog` that says which check failed: too short, wrong magic, unknown format or kind, a length that does not
    fit, a checksum, or a head or payload that cannot be decoded.
    """
    buffer = memoryview(data)
    if len(buffer) < PREFIX_BYTES:
        raise CorruptLog(f"a frame of {len(buffer)} bytes is shorter than its prefix of {PREFIX_BYTES}")
    (kind, topic, head_nbytes, meta_nbytes, bulk_nbytes, partition, nonce, position, time, body_checksum) = (
        _checked_prefix(buffer)
    )
    meta_at = PREFIX_BYTES + head_nbytes
    bulk_at = meta_at + meta_nbytes
    if bulk_at + bulk_nbytes != len(buffer):
        raise CorruptLog(f"a frame says {bulk_at + bulk_nbytes} bytes and has {len(buffer)}", position=position)
    if not is_checked and checksum(buffer[PREFIX_BYTES:]) != body_checksum:
        raise CorruptLog(
            f"the checksum of a {kind.label} event does not match its bytes", partition=partition, position=position
        )
    bulk = buffer[bulk_at:]
    try:
        head = _head_decoder.decode(buffer[PREFIX_BYTES:meta_at])
        payload: Payload = _meta_decoders[kind].decode(buffer[meta_at:bulk_at])
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptLog(
            f"a {kind.label} event cannot be decoded: {error}", partition=partition, position=position
        ) from error
    return EventFrame(kind, topic, partition, nonce, position, time, head, payload, bulk, buffer)


def _prefix_of(fields: tuple[Kind, int, int, int, int, int, int, int, int, int]) -> Prefix:
    kind, topic, head_nbytes, meta_nbytes, bulk_nbytes, partition, nonce, position, time, _ = fields
    nbytes = PREFIX_BYTES + head_nbytes + meta_nbytes + bulk_nbytes
    return Prefix(kind, topic, partition, nonce, position, time, nbytes, bulk_nbytes)


def _seal(frame: bytearray | memoryview) -> None:
    _CHECKSUM.pack_into(frame, _BODY_CHECKSUM_AT, checksum(memoryview(frame)[PREFIX_BYTES:]))
    _seal_prefix(frame)


def _seal_prefix(frame: bytearray | memoryview) -> None:
    _CHECKSUM.pack_into(frame, _CHECKSUM_AT, checksum(memoryview(frame)[:_CHECKSUM_AT]))


def _checked_prefix(buffer: memoryview) -> tuple[Kind, int, int, int, int, int, int, int, int, int]:
    (magic, version, number, partition, topic, head_nbytes, meta_nbytes, bulk_nbytes, nonce,
     position, time, body_checksum, prefix_checksum) = _PREFIX.unpack_from(buffer)  # fmt: skip
    if magic != MAGIC:
        raise CorruptLog(f"a frame begins with {bytes(magic)!r}, not {MAGIC!r}")
    if version != FORMAT:
        raise CorruptLog(
            f"a frame has format {version}, this reader knows format {FORMAT}", remedy="Upgrade this reader"
        )
    if checksum(buffer[:_CHECKSUM_AT]) != prefix_checksum:
        raise CorruptLog("the checksum of a frame's prefix does not match its bytes")
    kind = _KINDS.get(number)
    if kind is None:
        raise CorruptLog(f"a frame has the unknown kind {number}", partition=partition, position=position)
    limit = MAX_BASE_BYTES if kind is Kind.BASE else MAX_EVENT_BYTES
    if PREFIX_BYTES + head_nbytes + meta_nbytes + bulk_nbytes > limit:
        raise CorruptLog(
            f"a {kind.label} frame says more than the limit of {limit} bytes", partition=partition, position=position
        )
    return kind, topic, head_nbytes, meta_nbytes, bulk_nbytes, partition, nonce, position, time, body_checksum
