"""Control frames come back as they were sent; anything else is refused as corrupt."""

from __future__ import annotations

import pickle  # noqa: TID251  (to prove that nothing reads it)

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramstream.errors import CorruptLog, Fenced
from paramstream.transport.calls import Join, Unconfirmed
from paramstream.transport.messages import (
    FORMAT,
    MAGIC,
    Ack,
    Heads,
    Heartbeat,
    Hello,
    Request,
    decode_message,
    decode_result,
    encode_message,
    encode_result,
)
from paramstream.transport.wire import Message, WireError

MESSAGES: list[Message] = [
    Hello(FORMAT, "rep", 3),
    Request(4, Join("p", 2, (Unconfirmed(1, 0, 5, (6, 7)),))),
    Ack(2**63, 1, 2, ((1, 2**63), (2, 2**64 - 1))),
    Heartbeat((Heads(1, 2, 3, 4, 5, 6),)),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_comes_back_as_it_was_sent(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


@given(st.binary(max_size=100))
def test_random_bytes_are_refused_or_are_a_message_that_can_be_sent_again(data: bytes) -> None:
    for frame in (data, MAGIC + bytes([FORMAT]) + data):
        try:
            message = decode_message(frame)
        except CorruptLog:
            continue
        assert decode_message(encode_message(message)) == message


def test_a_pickle_is_refused_as_a_control_message_O01() -> None:
    with pytest.raises(CorruptLog):
        decode_message(pickle.dumps(["payload"]))


def test_a_field_that_a_newer_peer_added_is_passed_over_O03() -> None:
    newer = MAGIC + bytes([FORMAT]) + msgspec.msgpack.encode(["Hello", FORMAT, "rep", 3, b"link", 1, "a new field"])
    assert decode_message(newer) == Hello(FORMAT, "rep", 3, b"link", 1)


def test_another_format_is_refused_with_both_numbers_O03() -> None:
    with pytest.raises(CorruptLog, match=r"format 9.*format 1"):
        decode_message(MAGIC + bytes([9]) + encode_message(Hello(9))[3:])


def test_an_error_is_the_same_on_the_other_side() -> None:
    error = Fenced("a newer session has taken over", topic="t", partition=3, remedy="Close it")
    again = WireError.of(error).raised()
    assert type(again) is Fenced and str(again) == str(error)


def test_an_error_of_a_newer_peer_keeps_its_name() -> None:
    assert "Frobnicated" in str(WireError("Frobnicated", "it did not hold", "", {}).raised())


def test_an_answer_of_another_type_is_corrupt() -> None:
    with pytest.raises(CorruptLog):
        decode_result(encode_result("text"), int)
