"""A bare DEALER that says hello, joins, and sends whatever a test gives it.

with Peer(broker.endpoint) as peer:
    peer.hello()
    writer = peer.join("trainer")
    writer.send(partition, Put(...), [b"value"])
    peer.hear(Ack)
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import zmq

from paramstream.consistency.vector import PartitionId
from paramstream.events.codec import Buffer, Head, encode_event
from paramstream.events.kinds import Payload
from paramstream.transport.calls import Call, Join, Joined, OpenProducer
from paramstream.transport.messages import (
    DOWN,
    FORMAT,
    Hello,
    Request,
    Response,
    Welcome,
    decode_message,
    decode_result,
    encode_message,
)
from paramstream.transport.sockets import dealer
from paramstream.transport.wire import Message

_M = TypeVar("_M", bound=Message)


class Peer:
    """One connection. Never connects again: whatever works on it later shows that the connection survived."""

    def __init__(self, endpoint: str) -> None:
        self._socket = dealer(endpoint, os.urandom(16) + DOWN)
        self._ids = itertools.count(1)
        self._lost = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED)

    @property
    def is_cut_off(self) -> bool:
        """The broker, or libzmq at its side, has ended the connection."""
        return bool(self._lost.poll(0))

    def send(self, *frames: Buffer) -> None:
        self._socket.send_multipart(list(frames))

    def say(self, message: Message) -> None:
        self.send(encode_message(message))

    def hear(self, kind: type[_M], timeout: float = 5.0) -> _M:
        """The next message of that kind; others that come before it are passed over."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            assert left > 0 and self._socket.poll(int(left * 1000) + 1), f"no {kind.__name__} within {timeout:g} s"
            frame = self._socket.recv()
            message = decode_message(frame) if frame[:2] == b"PC" else None
            if isinstance(message, kind):
                return message

    def hello(self) -> Welcome:
        self.say(Hello(FORMAT))
        return self.hear(Welcome)

    def request(self, call: Call, kind: Any) -> Any:
        """The broker's answer; raises its error."""
        request_id = next(self._ids)
        self.say(Request(request_id, call))  # type: ignore[arg-type]
        while (response := self.hear(Response)).id != request_id:
            pass
        if response.error is not None:
            raise response.error.raised()
        return decode_result(response.result, kind)

    def join(self, producer: str) -> Writer:
        """A new incarnation of the producer, joined to every partition."""
        incarnation: int = self.request(OpenProducer(producer), int)
        joined: Joined = self.request(Join(producer, incarnation), Joined)
        epochs = {(each.topic, each.partition): each.epoch for each in joined.partitions}
        return Writer(self, producer, incarnation, epochs)

    def close(self) -> None:
        self._socket.disable_monitor()
        self._lost.close(linger=0)
        self._socket.close(linger=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Writer:
    """A session without its rules: numbers its events and sends them, answered or not."""

    def __init__(self, peer: Peer, producer: str, incarnation: int, epochs: dict[PartitionId, int]) -> None:
        self.peer = peer
        self.producer = producer
        self.incarnation = incarnation
        self.epochs = epochs
        self._last: dict[PartitionId, int] = {}
        """The sequence of the last event that was sent to each partition."""
        self._given: dict[PartitionId, int] = {}
        """The last sequence that was given to an event, sent or not."""

    def frame(self, partition: PartitionId, payload: Payload, bulk: Sequence[Buffer] = ()) -> bytearray:
        """The next event of the partition, which has taken a sequence and does not count as sent."""
        sequence = self._given[partition] = self._given.get(partition, 0) + 1
        last = self._last.get(partition, 0)
        head = Head(self.producer, self.incarnation, sequence, last, self.epochs[partition], 0)
        return encode_event(partition, head, payload, bulk)

    def given(self, partition: PartitionId) -> int:
        """The last sequence that was given."""
        return self._given.get(partition, 0)

    def send(self, partition: PartitionId, payload: Payload, bulk: Sequence[Buffer] = ()) -> int:
        """Sends the next event; returns its sequence."""
        self.peer.send(self.frame(partition, payload, bulk))
        self._last[partition] = self._given[partition]
        return self._last[partition]
