"""What ZeroMQ gives by itself through Python: DEALER → ROUTER → DEALER in three processes, with nothing done to the frames.

A paramstream broker does the same two hops; the benchmarks put their figures against this, taken in the same run.
"""

from __future__ import annotations

import tempfile
import time
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

import zmq

from .processes import Process, free_address

RECEIVER = b"receiver"
COPY_BELOW_BYTES = 64 * 1024
"""Small frames are cheaper to copy than to track."""


class RawRelay:
    """A relay and a receiver in processes of their own; this one sends. `frame_nbytes` is the size of every frame."""

    def __init__(self, transport: str, frame_nbytes: int) -> None:
        self._frame_nbytes = frame_nbytes
        self._copy = frame_nbytes < COPY_BELOW_BYTES
        self._folder = tempfile.TemporaryDirectory(prefix="raw-zmq-")
        self._relay = Process(_relay, free_address(transport, self._folder.name), self._copy)
        self._receiver = Process(_receive, self._relay.said, self._copy)
        self._context = zmq.Context()
        self._socket = _dealer(self._context, self._relay.said, b"sender")

    def latencies(self, count: int, gap_s: float) -> list[float]:
        """Seconds from each send to its receipt; one frame is sent every `gap_s`."""
        self._receiver.tell(count)
        padding = bytes(self._frame_nbytes - 8)
        for _ in range(count):
            self._socket.send(time.monotonic_ns().to_bytes(8, "little") + padding)
            time.sleep(gap_s)
        _, latencies = self._receiver.answer()
        return list(latencies)

    def seconds(self, nbytes: int) -> float:
        """From the first send to the last receipt of `nbytes` in whole frames, sent as fast as they go."""
        # Memory of its own for each frame, written before: one frame sent again and again would come out of the cache.
        data = memoryview(bytearray(b"\1") * nbytes)
        frames = [data[at : at + self._frame_nbytes] for at in range(0, nbytes, self._frame_nbytes)]
        self._receiver.tell(len(frames))
        began = time.monotonic()
        for frame in frames:
            self._socket.send(frame, 0, self._copy)
        ended, _ = self._receiver.answer()
        return float(ended) - began

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._receiver.__exit__(kind, error, trace)
        self._socket.send(b"")
        self._relay.__exit__(kind, error, trace)
        self._socket.close(linger=0)
        self._context.term()
        self._folder.cleanup()


def _relay(pipe: Connection, address: str, copy: bool) -> None:
    """Hands every frame to the receiver; an empty one of the sender ends it."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.set_hwm(0)
        socket.linger = 0
        socket.bind(address)
        pipe.send(socket.getsockopt_string(zmq.LAST_ENDPOINT))
        while True:
            _, frame = socket.recv_multipart(0, copy)
            if not len(frame):
                return
            socket.send_multipart([RECEIVER, frame], copy=copy)


def _receive(pipe: Connection, address: str, copy: bool) -> None:
    """Takes as many frames as it is asked for: answers (time of the last one, seconds that each one took)."""
    with zmq.Context() as context, _dealer(context, address, RECEIVER) as socket:
        # Once this comes back, the relay knows the way here.
        socket.send(b"here")
        socket.recv()
        pipe.send("ready")
        while (count := pipe.recv()) is not None:
            # Views are let go as they come, as a reader that has copied them out would.
            latencies = [_latency(socket.recv(copy=copy)) for _ in range(count)]
            pipe.send((time.monotonic(), latencies))


def _latency(frame: bytes | zmq.Frame) -> float:
    data = frame if isinstance(frame, bytes) else frame.buffer
    return (time.monotonic_ns() - int.from_bytes(data[:8], "little")) / 1e9


def _dealer(context: zmq.Context[zmq.Socket[bytes]], address: str, routing_id: bytes) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    socket.set_hwm(0)
    socket.linger = 0
    socket.routing_id = routing_id
    socket.connect(address)
    return socket
