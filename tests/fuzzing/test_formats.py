"""What holds of the formats themselves: one way to write a value, fields of newer writers passed over, poison that stops a partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from feeding.fakes import FakeBroker
from fuzzing import log, sealing, wire
from fuzzing.examples import examples_of
from fuzzing.peers import place
from fuzzing.state import inner_manifest
from paramstream.brokers.state import PartitionState
from paramstream.consumers.replica import Replica
from paramstream.errors import CorruptLog
from paramstream.events.codec import PREFIX_BYTES, EventFrame, decode_event
from paramstream.events.manifest import decode_manifest, encode_manifest
from paramstream.transport.messages import AnyMessage, decode_message, decode_result, encode_message, encode_result

FRAMES = [pytest.param(decode_event(frame), id=decode_event(frame).kind.label) for frame in wire.frames()]


@pytest.mark.parametrize("event", FRAMES)
def test_an_event_is_written_again_byte_for_byte(event: EventFrame) -> None:
    assert wire.encoded(event) == bytes(event.buffer)


def test_control_frames_and_answers_are_written_again_byte_for_byte() -> None:
    for message in examples_of(AnyMessage):
        data = encode_message(message)
        assert encode_message(decode_message(data)) == data
    for kind in wire.ANSWERS:
        for example in examples_of(kind):
            raw = encode_result(example)
            assert (decode_result(raw, kind), encode_result(decode_result(raw, kind))) == (example, raw)


def test_a_base_and_a_manifest_are_written_again_byte_for_byte() -> None:
    for data in log.bases():
        assert PartitionState.decode(data, msgspec.msgpack.decode(data)[0]).encode() == data
    manifest, _ = decode_manifest(sealing.manifest(inner_manifest()), "a manifest")
    written, digest = encode_manifest(manifest)
    assert encode_manifest(decode_manifest(written, "again")[0]) == (written, digest)


@pytest.mark.parametrize("event", FRAMES)
def test_fields_that_a_newer_writer_added_to_an_event_are_passed_over_O03(event: EventFrame) -> None:
    head = _with_more(msgspec.msgpack.encode(event.head))
    meta = _with_more(msgspec.msgpack.encode(event.payload))
    newer = decode_event(_frame_of(event, head, meta))
    assert (newer.head, newer.payload, bytes(newer.bulk)) == (event.head, event.payload, bytes(event.bulk))


def test_fields_that_a_newer_peer_added_to_a_message_are_passed_over_O03() -> None:
    for message in examples_of(AnyMessage):
        data = encode_message(message)
        assert decode_message(data[:3] + _with_more(data[3:])) == message


@pytest.fixture
def followed() -> Iterator[tuple[FakeBroker, Replica]]:
    broker = FakeBroker()
    with Replica(
        ["model"], directory=broker.directory, make_link=broker.make_link, timeout=2.0, arrays="numpy"
    ) as made:
        yield broker, made


@pytest.mark.parametrize("event", FRAMES)
@pytest.mark.parametrize("part", ["head", "payload"])
def test_an_event_that_cannot_be_decoded_behind_a_right_checksum_stops_its_partition_once_O04(
    followed: tuple[FakeBroker, Replica], event: EventFrame, part: str
) -> None:
    broker, replica = followed
    broker.state.put(b"before", b"1")
    head, meta = msgspec.msgpack.encode(event.head), msgspec.msgpack.encode(event.payload)
    poison = _frame_of(event, b"\xc1", meta) if part == "head" else _frame_of(event, head, b"\xc1")
    with pytest.raises(CorruptLog, match="cannot be decoded"):
        decode_event(poison)
    place(broker, b"s" + poison)
    broker.state.put(b"behind", b"1")
    for _ in range(3):
        broker.settle()
        broker.beat()
    assert (replica.get(b"before"), replica.get(b"behind")) == (b"1", None)
    stopped = replica.status().stopped
    assert set(stopped) == {("model", 0)} and isinstance(stopped["model", 0], CorruptLog)
    broker.handler.tick(1e6)
    assert not broker.fetches, "it is not asked for for ever"


def _with_more(array: bytes) -> bytes:
    """The MessagePack array with two more items at its end."""
    items: list[Any] = msgspec.msgpack.decode(array)
    return msgspec.msgpack.encode([*items, {"new": [1, None]}, "field"])


def _frame_of(event: EventFrame, head: bytes, meta: bytes) -> bytes:
    prefix = bytearray(event.buffer[:PREFIX_BYTES])
    prefix[16:24] = len(head).to_bytes(4, "little") + len(meta).to_bytes(4, "little")
    return sealing.frame(bytes(prefix) + head + meta + bytes(event.bulk))
