"""A ROUTER that greets and answers what a test tells it to: the other end of a link, without a broker's rules."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import zmq

from paramstream.transport.messages import DOWN, AnyMessage, Heartbeat, Hello, Welcome, decode_message, encode_message
from paramstream.transport.sockets import Socket, router
from paramstream.transport.wire import Message

Answer = Callable[[AnyMessage], list[Message | bytes]]


class BareBroker:
    """Greets every hello; `answer` maps each further control frame to what is sent back to its client."""

    def __init__(
        self, answer: Answer = lambda message: [], *, bind: str = "tcp://127.0.0.1:0", greets: bool = True
    ) -> None:
        self.answer = answer
        self.welcome: Welcome | None = Welcome("bare", "tcp://*:1", 1 << 20, 0.1) if greets else None
        """What a hello is answered with; None for nothing."""
        self.beats = False
        """Sends heartbeats to all whom it has greeted."""
        self._socket, self.endpoint = router(bind, insecure=False)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paramstream-bare-broker", daemon=True)
        self.clients: list[bytes] = []
        self.frames: list[bytes] = []
        """Event frames that came."""
        self.messages: list[AnyMessage] = []
        """Control frames that came, hellos aside."""
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        socket = self._socket
        while not self._closing.is_set():
            if socket.poll(20):
                routing_id, frame = socket.recv_multipart()
                self._took(socket, routing_id[:16], frame)
            elif self.beats:
                for client in self.clients:
                    self._send(socket, client, Heartbeat(()))
        socket.close(linger=0)

    def _took(self, socket: Socket, client: bytes, frame: bytes) -> None:
        if frame[:2] == b"PS":
            self.frames.append(frame)
            return
        message = decode_message(frame)
        answers: list[Message | bytes]
        if isinstance(message, Hello):
            self.clients.append(client)
            answers = [self.welcome] if self.welcome is not None else []
        else:
            self.messages.append(message)
            answers = self.answer(message)
        for answer in answers:
            self._send(socket, client, answer)

    def _send(self, socket: Socket, client: bytes, answer: Message | bytes) -> None:
        data = answer if isinstance(answer, bytes) else encode_message(answer)
        try:
            socket.send_multipart([client + DOWN, data], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
