"""Fault cases O, end to end: bad bytes are counted and refused, and everybody else goes on; on the very same connection too."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import paramstream as ps
from paramstream.consistency.vector import PartitionId, VersionVector
from paramstream.events.codec import PREFIX_BYTES, Head, encode_event, encode_vector
from paramstream.events.kinds import (
    Base,
    Chunk,
    Claim,
    Delete,
    Epoch,
    Note,
    Payload,
    Put,
    PutItem,
    Segment,
    Table,
)
from paramstream.events.limits import MAX_EVENT_BYTES
from paramstream.transport.calls import ListTopics, TopicRecord
from paramstream.transport.messages import FORMAT, Ack, Fetch, Goodbye, Hello, Refused, Request, Welcome, encode_message
from reference.waiting import eventually
from wire.peer import Peer, Writer
from wire.spoil import META_NBYTES_AT, seal

MIB = 1 << 20


@pytest.fixture
def peer(broker: ps.Broker, client: ps.Client) -> Iterator[Peer]:
    client.create_topic("model")
    with Peer(broker.endpoint) as peer:
        peer.hello()
        yield peer


@pytest.fixture
def writer(peer: Peer) -> Writer:
    return peer.join("raw")


def state_of(writer: Writer) -> PartitionId:
    return min(writer.epochs)


def put_of(value: bytes) -> tuple[Put, list[bytes]]:
    return Put((PutItem(b"key", len(value)),)), [value]


def pickle_that_touches(canary: Path) -> bytes:
    """Written by hand: whoever loads it runs a shell."""
    return b"cos\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR."


Frames = tuple[bytes, ...]
Bad = Callable[[bytes], Frames]
"""A good event's frame → the message to send instead."""


def flipped(at: int) -> Bad:
    def flip(good: bytes) -> Frames:
        bad = bytearray(good)
        bad[at] ^= 0x10
        return (bytes(bad),)

    return flip


def claiming(nbytes: int) -> Bad:
    def claim(good: bytes) -> Frames:
        bad = bytearray(good)
        struct.pack_into("<I", bad, META_NBYTES_AT, nbytes)
        seal(bad)
        return (bytes(bad),)

    return claim


def resealed(at: int, value: int) -> Bad:
    def change(good: bytes) -> Frames:
        bad = bytearray(good)
        bad[at] = value
        seal(bad)
        return (bytes(bad),)

    return change


HELLO = encode_message(Hello(FORMAT))

GARBLED: dict[str, Bad] = {
    "nothing": lambda _: (b"",),
    "one byte": lambda _: (b"P",),
    "magic of an event alone": lambda _: (b"PS",),
    "magic of a message alone": lambda _: (b"PC",),
    "zeros": lambda _: (bytes(100),),
    "random": lambda _: (os.urandom(1000),),
    "random behind the magic of an event": lambda _: (b"PS" + os.urandom(1000),),
    "random behind the magic of a message": lambda _: (b"PC\x01" + os.urandom(1000),),
    "text": lambda _: (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",),
    "an event cut in its prefix": lambda good: (good[: PREFIX_BYTES - 1],),
    "an event cut in its head": lambda good: (good[: PREFIX_BYTES + 3],),
    "an event cut by a byte": lambda good: (good[:-1],),
    "an event and a byte": lambda good: (good + b"\0",),
    "an event twice": lambda good: (good + good,),
    "a bit in the prefix": flipped(20),
    "a bit in the checksum": flipped(60),
    "a bit in the head": flipped(PREFIX_BYTES + 1),
    "a bit in the value": flipped(-1),
    "a head that is no message pack": resealed(PREFIX_BYTES, 0xC1),
    "a head of another type": resealed(PREFIX_BYTES, 0x90),
    "an unknown kind": resealed(3, 99),
    "a length of 4 GiB": claiming(2**32 - 1),
    "a length of nothing": claiming(0),
    "an event over the limit": lambda good: (good + bytes(MAX_EVENT_BYTES),),
    "2 MiB behind the magic of an event": lambda _: (b"PS" + bytes(2 * MIB),),
    "15 MiB of zeros": lambda _: (bytes(15 * MIB),),
    "a message cut by a byte": lambda _: (encode_message(Request(1, ListTopics()))[:-1],),
    "a message of an unknown class": lambda _: (b"PC\x01" + msgspec.msgpack.encode(["Nonsense", 1]),),
    "a message with a field of another type": lambda _: (b"PC\x01" + msgspec.msgpack.encode(["Follow", "x", 0, 0, 0]),),
    "a message that is deep": lambda _: (b"PC\x01" + b"\x91" * 100_000,),
    "a message of another format": lambda _: (HELLO[:2] + b"\x02" + HELLO[3:],),
    "a message in two frames": lambda _: (HELLO, HELLO),
    "an event in two frames": lambda good: (good[:PREFIX_BYTES], good[PREFIX_BYTES:]),
    "an event and another one": lambda good: (good, good),
    "an answer of a broker": lambda _: (encode_message(Welcome("x", "y", 1, 1.0)),),
    "a fetch at the wrong door": lambda _: (encode_message(Fetch(1, 0, 0, 0, 1)),),
}


def test_a_garbled_truncated_or_oversized_frame_is_counted_and_refused_and_the_connection_survives_O01(
    broker: ps.Broker, client: ps.Client, peer: Peer, writer: Writer
) -> None:
    state = state_of(writer)
    with client.replica("model", arrays="numpy") as replica:
        for number, (what, bad) in enumerate(GARBLED.items()):
            value = f"value {number}".encode()
            before = broker.status().garbled_frames
            good = encode_event(state, Head("raw", writer.incarnation, 999, 0, 0), *put_of(value))
            peer.send(*bad(bytes(good)))
            refused = peer.hear(Refused).error.raised()
            assert isinstance(refused, ps.InvalidEvent) and "undecodable" in str(refused), what
            assert broker.status().garbled_frames == before + 1, what
            # The same connection works, and nothing of the bad frame was taken for an event.
            sequence = writer.send(state, *put_of(value))
            ((acked, position),) = peer.hear(Ack).answers
            assert acked == sequence
            replica.wait(VersionVector({("model", 0): position}))
            assert replica.get("key") == value, what
        assert not peer.is_cut_off
        # All others are unaffected.
        client.publisher("model", producer="trainer").put("key", b"last").durable.result()
        with client.subscribe("model", start="earliest") as events:
            values = [events.next(timeout=5.0).items[0][1] for _ in range(len(GARBLED) + 1)]
        assert values == [f"value {number}".encode() for number in range(len(GARBLED))] + [b"last"]


def test_a_frame_over_what_is_ever_taken_cuts_off_its_sender_alone_O01(
    broker: ps.Broker, client: ps.Client, peer: Peer
) -> None:
    with client.replica("model") as replica:
        peer.send(bytes(17 * MIB))
        eventually(lambda: peer.is_cut_off)
        receipt = client.publisher("model", producer="trainer").put("key", b"value")
        replica.wait(receipt)
        assert replica.get("key") == b"value" and replica.status().connected


def test_a_pickle_is_refused_as_event_and_control_message_and_never_run_O01(
    broker: ps.Broker, client: ps.Client, peer: Peer, writer: Writer, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    evil = pickle_that_touches(canary)
    for frame in (evil, evil.ljust(PREFIX_BYTES, b"\0"), b"PS\x01" + evil, b"PC\x01" + evil):
        peer.send(frame)
        assert isinstance(peer.hear(Refused).error.raised(), ps.InvalidEvent)
    # As the payload of a frame whose checksums are right.
    wrapped = encode_event(state_of(writer), Head("raw", writer.incarnation, 1), Note(), [evil])
    wrapped[PREFIX_BYTES : PREFIX_BYTES + 1] = evil[:1]
    seal(wrapped)
    peer.send(wrapped)
    assert isinstance(peer.hear(Refused).error.raised(), ps.InvalidEvent)
    assert broker.status().garbled_frames == 5
    # As a value it is bytes like any other.
    writer.send(state_of(writer), *put_of(evil))
    peer.hear(Ack)
    with client.replica("model") as replica:
        assert replica.get("key") == evil
    assert not canary.exists()


def test_a_pickle_at_the_door_of_fetches_is_counted_and_never_run_O01(
    broker: ps.Broker, client: ps.Client, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    client.create_topic("model")
    client.publisher("model", producer="trainer").put("key", b"value").durable.result()
    with Peer(broker.endpoint) as peer:
        port = peer.hello().fetch_address.rpartition(":")[2]
    with Peer(f"tcp://127.0.0.1:{port}") as door:
        for frame in (pickle_that_touches(canary), b"PC\x01" + pickle_that_touches(canary), b"", HELLO):
            door.send(frame)
        eventually(lambda: broker.status().garbled_frames == 4)
        with client.subscribe("model", start="earliest") as events:
            assert events.next(timeout=5.0).items == ((b"key", b"value", None),)
    assert not canary.exists()


def test_a_pickle_in_the_place_of_a_log_record_is_cut_off_named_and_never_run_O01(tmp_path: Path) -> None:
    canary, folder = tmp_path / "canary", tmp_path / "log"
    with ps.Broker(log=f"file:{folder}") as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        client.publisher("model", producer="trainer").put("key", b"the value").durable.result()
    (segment,) = (each for each in folder.rglob("*") if each.is_file() and b"the value" in each.read_bytes())
    with segment.open("ab") as file:
        file.write(pickle_that_touches(canary))
    with ps.Broker(log=f"file:{folder}") as broker, ps.connect(broker.endpoint) as client:
        (cut,) = broker.status().cut.values()
        assert f"{len(pickle_that_touches(canary))} bytes" in cut
        with client.replica("model") as replica:
            assert replica.get("key") == b"the value"
    assert not canary.exists()


def test_the_default_bind_is_loopback_O01() -> None:
    with ps.Broker() as broker:
        assert broker.endpoint.startswith("tcp://127.0.0.1:")


OUT_OF_PLACE: dict[str, tuple[Payload, list[bytes]]] = {
    "a note": (Note(), []),
    "a claim": (Claim(1 << 30, 1, "me"), []),
    "an epoch record": (Epoch(0), []),
    "a base": (Base(1), [b"state"]),
    "a table": (Table("t", 4, "float32"), []),
    "a chunk": (Chunk(1, (Segment("w", 0, 1),)), [b"x"]),
    "a put that says more than it has": (Put((PutItem(b"key", 5),)), [b"1234"]),
    "a put that says less than it has": (Put((PutItem(b"key", 3),)), [b"1234"]),
    "a put of a negative length": (Put((PutItem(b"key", -1),)), []),
    "a put without a key": (Put((PutItem(b"", 1),)), [b"1"]),
    "a put of a TTL of nothing": (Put((PutItem(b"key", 1, 0),)), [b"1"]),
    "a put of a TTL of an age": (Put((PutItem(b"key", 1, 1 << 62),)), [b"1"]),
    "a delete without a key": (Delete((b"",)), []),
}


def test_an_event_that_is_out_of_place_is_refused_and_uses_up_nothing_O01(
    broker: ps.Broker, client: ps.Client, peer: Peer, writer: Writer
) -> None:
    state = state_of(writer)
    for what, (payload, bulk) in OUT_OF_PLACE.items():
        peer.send(writer.frame(state, payload, bulk))
        refused = peer.hear(Refused)
        error = refused.error.raised()
        assert isinstance(error, ps.InvalidEvent) and error.topic == "model", what
        assert (refused.sequence, refused.last_sequence) == (writer.given(state), 0), what
    writer.send(state, *put_of(b"value"))
    assert len(peer.hear(Ack).answers) == 1
    assert broker.status().garbled_frames == 0
    with client.subscribe("model", start="earliest") as events:
        assert events.next(timeout=5.0).items == ((b"key", b"value", None),)


def test_an_event_of_a_session_that_has_not_joined_is_refused_O01(
    broker: ps.Broker, client: ps.Client, peer: Peer, writer: Writer
) -> None:
    state, epoch = state_of(writer), writer.epochs[state_of(writer)]
    heads: list[tuple[Head, type[ps.ParamstreamError]]] = [
        (Head("nobody", 7, 1, 0, epoch), ps.Fenced),
        (Head("raw", writer.incarnation + 1, 1, 0, epoch), ps.Fenced),
        (Head("raw", writer.incarnation - 1, 1, 0, epoch), ps.Fenced),
        (Head("", writer.incarnation, 1, 0, epoch), ps.InvalidEvent),
        (Head("raw", writer.incarnation, 0, 0, epoch), ps.InvalidEvent),
        (Head("raw", writer.incarnation, 5, 0, epoch, confirmed=5), ps.InvalidEvent),
        (Head("raw", writer.incarnation, 5, 0, epoch, own=b"1234567"), ps.InvalidEvent),
    ]
    for head, kind in heads:
        peer.send(encode_event(state, head, *put_of(b"value")))
        assert isinstance(peer.hear(Refused).error.raised(), kind), head
    for partition in ((0, 0), (state[0], 99), (123, 0)):
        peer.send(encode_event(partition, Head("raw", writer.incarnation, 1, 0, epoch), *put_of(b"value")))
        assert isinstance(peer.hear(Refused).error.raised(), ps.UnknownTopic), partition
    with client.replica("model") as replica:
        assert replica.get("key") is None


def test_an_event_cannot_depend_on_what_was_never_sequenced_O01(
    broker: ps.Broker, client: ps.Client, peer: Peer, writer: Writer
) -> None:
    """Otherwise every causal replica would wait for it for ever."""
    client.create_topic("other")
    publisher = client.publisher("model", producer="trainer")
    position = publisher.put("key", b"1").accepted.result()["model", 0]
    for topic, beyond in (("model", position + 1), ("model", (1 << 64) - 1), ("other", position + (1 << 40))):
        publisher.observe(VersionVector({(topic, 0): beyond}))
        with pytest.raises(ps.InvalidEvent, match="not sequenced yet") as refused:
            publisher.put("key", b"2").accepted.result()
        assert (refused.value.topic, refused.value.position) == (topic, beyond)
        publisher.close()
        publisher = client.publisher("model", producer="trainer")
    state = state_of(writer)
    vector = encode_vector(VersionVector({(state[0], 1): 1 << 60}))
    for head in ({"own": vector}, {"observed": vector}):
        peer.send(encode_event(state, Head("raw", writer.incarnation, 1, 0, writer.epochs[state], **head), *put_of(b"3")))  # type: ignore[arg-type]  # fmt: skip
        assert isinstance(peer.hear(Refused).error.raised(), ps.InvalidEvent)
    with client.replica("model") as replica:
        replica.wait(publisher.put("key", b"4"))
        assert replica.get("key") == b"4"


def test_whoever_said_goodbye_is_heard_again_after_a_hello_O01(peer: Peer, writer: Writer) -> None:
    peer.say(Goodbye())
    peer.say(Request(99, ListTopics()))
    peer.hello()
    topics: list[TopicRecord] = peer.request(ListTopics(), list[TopicRecord])
    assert [topic.name for topic in topics] == ["model"]
