"""One frame for wire, log and snapshot: round trips exactly, and believes nothing before it is checked."""

from __future__ import annotations

import pickle  # noqa: TID251  (to prove that nothing reads it)
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramstream.consistency.vector import VersionVector
from paramstream.errors import CorruptLog, InvalidEvent
from paramstream.events import codec
from paramstream.events.codec import (
    Head,
    decode_event,
    decode_vector,
    encode_event,
    encode_vector,
    position_of,
    stamp_frame,
)
from paramstream.events.digest import checksum
from paramstream.events.kinds import Chunk, Put, PutItem, Segment
from paramstream.events.limits import MAX_EVENT_BYTES

HEAD = Head("trainer-0", 3, 7, previous=6, joined_epoch=2, confirmed=5, own=encode_vector(VersionVector({(9, 0): 4})))


def put_frame(value: bytes = b"value") -> bytearray:
    return encode_event((9, 1), HEAD, Put((PutItem(b"key", len(value), ttl_ns=5),)), [value])


def test_an_event_comes_back_as_it_was_written() -> None:
    frame = put_frame()
    stamp_frame(frame, position=77, time=88, nonce=99)
    event = decode_event(frame)
    assert (event.partition_id, event.position, event.time, event.nonce) == ((9, 1), 77, 88, 99)
    assert (event.head, event.payload, bytes(event.bulk)) == (HEAD, Put((PutItem(b"key", 5, 5),)), b"value")
    assert event.stamp().own == VersionVector({(9, 0): 4})
    assert position_of(frame) == 77


def test_stamping_leaves_all_but_the_prefix_untouched() -> None:
    frame = put_frame()
    before = bytes(frame[codec.PREFIX_BYTES :])
    stamp_frame(frame, position=1, time=2, nonce=3)
    assert bytes(frame[codec.PREFIX_BYTES :]) == before


def test_every_flipped_bit_is_noticed() -> None:
    frame = bytes(put_frame())
    for at in range(len(frame)):
        garbled = bytearray(frame)
        garbled[at] ^= 1 << (at % 8)
        with pytest.raises(CorruptLog):
            decode_event(garbled)


def test_every_truncated_frame_is_refused() -> None:
    frame = bytes(put_frame())
    for length in range(len(frame)):
        with pytest.raises(CorruptLog):
            decode_event(frame[:length])


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_as_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptLog):
        decode_event(data)


def test_a_pickle_is_refused_and_never_run_O01(tmp_path: Path) -> None:
    canary = tmp_path / "canary"

    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (canary,)

    with pytest.raises(CorruptLog, match="begins with"):
        decode_event(pickle.dumps(Bomb()).ljust(codec.PREFIX_BYTES, b"\0"))
    assert not canary.exists()


def test_a_length_over_the_limit_is_not_believed() -> None:
    frame = put_frame()
    frame[24:28] = (2**31).to_bytes(4, "little")
    frame[56:64] = checksum(bytes(frame[:56])).to_bytes(8, "little")
    with pytest.raises(CorruptLog, match="limit"):
        decode_event(frame)


def test_an_event_over_the_limit_is_refused_before_it_is_made() -> None:
    with pytest.raises(InvalidEvent, match=str(MAX_EVENT_BYTES)):
        encode_event((1, 0), HEAD, Chunk(1, (Segment("w", 0, MAX_EVENT_BYTES),)), [bytes(MAX_EVENT_BYTES)])


def remade(frame: bytearray, *, format_number: int = codec.FORMAT, meta: bytes | None = None) -> bytearray:
    """The same event written by another version of the library: another format, or another meta."""
    event = decode_event(frame)
    head = msgspec.msgpack.encode(event.head)
    meta = msgspec.msgpack.encode(event.payload) if meta is None else meta
    body = head + meta + bytes(event.bulk)
    made = bytearray(frame[: codec.PREFIX_BYTES]) + body
    made[2] = format_number
    made[20:24] = len(meta).to_bytes(4, "little")
    made[48:56] = checksum(body).to_bytes(8, "little")
    made[56:64] = checksum(bytes(made[:56])).to_bytes(8, "little")
    return made


def test_a_field_that_a_newer_writer_added_is_passed_over_O03() -> None:
    frame = put_frame()
    newer = remade(frame, meta=msgspec.msgpack.encode([[[b"key", 5, 5, None, "a new field"]], "another"]))
    assert decode_event(newer).payload == decode_event(frame).payload


def test_another_format_is_refused_with_both_numbers_O03() -> None:
    with pytest.raises(CorruptLog, match=r"format 2.*format 1"):
        decode_event(remade(put_frame(), format_number=2))


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)), st.integers(0, 2**64 - 1), max_size=8
    )
)
def test_a_vector_comes_back_as_it_was_encoded(positions: dict[tuple[int, int], int]) -> None:
    vector = VersionVector(positions)
    assert decode_vector(encode_vector(vector)) == vector


def test_half_a_vector_entry_is_refused() -> None:
    with pytest.raises(CorruptLog):
        decode_vector(b"\0" * 21)
