"""The fetch thread: answers fetches from the log, beside the broker's loop and never in its way.

It reads what is *shown*: under write_through that ends at the durable head, although the log has more.
"""

from __future__ import annotations

import threading

import zmq

from ..errors import CorruptLog, LogTruncated, ParamstreamError
from ..events.codec import position_of
from ..transport.messages import Fetch, Fetched, FetchFile, decode_message, encode_message
from ..transport.pieces import pieces_of
from ..transport.sockets import Socket, release, router
from ..transport.wire import WireError
from .keeper_files import KeeperFiles
from .partitions import Partitions

MAX_FETCH_BYTES = 16 * 1024 * 1024
"""One answer, whatever the client asks for."""

POLL_MS = 50


class FetchServer:
    """Serves what this broker owns, up to the last position that readers may see."""

    def __init__(self, address: str, *, insecure: bool, partitions: Partitions) -> None:
        self._socket, self.address = router(address, insecure=insecure)
        self._partitions = partitions
        self.keeper_files: KeeperFiles | None = None
        """Set before `start` where the broker has a keeper."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paramstream-fetches", daemon=True)
        self.garbled_frames = 0

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout: float) -> bool:
        """End the thread and give its address back. False where a read took longer than `timeout` s."""
        self._closing.set()
        if self._thread.ident is None:
            release(self._socket, self.address)
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        socket: Socket = self._socket
        try:
            while not self._closing.is_set():
                if socket.poll(POLL_MS):
                    self._serve(socket)
        finally:
            release(socket, self.address)

    def _serve(self, socket: Socket) -> None:
        routing_id, *parts = socket.recv_multipart()
        try:
            message = decode_message(parts[0]) if len(parts) == 1 else None
        except CorruptLog:
            message = None
        if isinstance(message, FetchFile):
            answer, frames = self._read_file(message)
        elif isinstance(message, Fetch):
            answer, frames = read_events(self._partitions, message)
        else:
            self.garbled_frames += 1
            return
        try:
            for piece in (encode_message(answer), *pieces_of(frames)):
                socket.send_multipart([routing_id, piece], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            # The client is gone, or takes nothing: it asks again when it can.
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise

    def _read_file(self, ask: FetchFile) -> tuple[Fetched, list[memoryview]]:
        frames, size, wire = list[memoryview](), 0, None
        try:
            if self.keeper_files is None:
                raise LogTruncated(
                    "this broker has no keeper that holds what has left the log",
                    partition=ask.partition,
                    remedy="Start the broker with its keeper",
                )
            piece, size = self.keeper_files.read(ask)
            frames = [memoryview(piece)] if piece else []
        except ParamstreamError as error:
            wire = WireError.of(error)
        sizes = tuple(len(frame) for frame in frames)
        return Fetched(ask.id, ask.topic, ask.partition, len(frames), 0, size, wire, sizes), frames


def read_events(partitions: Partitions, fetch: Fetch) -> tuple[Fetched, list[memoryview]]:
    """The answer to `fetch`, and its frames: what readers may see. Blocks as the log does."""
    partition = (fetch.topic, fetch.partition)
    log, shown = partitions.logs.get(partition), partitions.shown.get(partition, 0)
    frames: list[memoryview] = []
    error: ParamstreamError | None = None
    if log is None:
        error = partitions.absent(partition)
    else:
        try:
            batch = log.read(fetch.after, min(fetch.max_bytes, MAX_FETCH_BYTES))
            frames = [frame for frame in batch.frames if position_of(frame) <= shown]
        except ParamstreamError as raised:
            error = raised
    end = position_of(frames[-1]) if frames else fetch.after
    wire = WireError.of(error) if error is not None else None
    sizes = tuple(len(frame) for frame in frames)
    return Fetched(fetch.id, fetch.topic, fetch.partition, len(frames), end, shown, wire, sizes), frames
