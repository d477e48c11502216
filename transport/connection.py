"""One connection to one broker: three sockets that live and die together.

*up* sends what calling threads send; *down* receives everything and said hello; *fetch* talks to the broker's fetch thread
and is made on first use. Each has a monitor, which alone tells when a peer has gone.
"""

from __future__ import annotations

import os
import threading
import time
from typing import NamedTuple
from urllib.parse import urlsplit

import zmq
from zmq.utils.monitor import recv_monitor_message

from ..errors import ConnectFailed, CorruptLog
from ..events.codec import Buffer
from .messages import CLIENT_ID_BYTES, DOWN, UP, Hello, Welcome, decode_message, encode_message
from .sockets import COPY_THRESHOLD_BYTES, Socket, dealer, monitored

GREET_S = 1.0
"""How long a broker may take to answer a hello before the attempt is given up (and made again)."""

_GONE = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Received(NamedTuple):
    """A message of the broker."""

    data: memoryview
    is_answer: bool
    """It came on the fetch socket."""


class Monitored:
    """A DEALER with its monitor: `gone` says whether its connection has ended."""

    def __init__(self, address: str, routing_id: bytes) -> None:
        self.socket: Socket = dealer(address, routing_id)
        self._monitor: Socket = monitored(self.socket, _GONE)

    def gone(self) -> bool:
        while self._monitor.poll(0):
            recv_monitor_message(self._monitor)
            return True
        return False

    def close(self) -> None:
        self.socket.disable_monitor()
        self._monitor.close(linger=0)
        self.socket.close()


class Connection:
    """A greeted connection. `send_up` belongs to whoever holds the link's lock, all else to the link's thread."""

    def __init__(self, address: str, client_id: bytes, down: Monitored, welcome: Welcome) -> None:
        self.welcome = welcome
        self._client_id = client_id
        self._down = down
        self._up = Monitored(address, client_id + UP)
        self._fetch: Monitored | None = None
        self._failure = ""
        """Why the fetch socket could not be made: without it the connection is none."""
        self._fetch_address = _reachable(welcome.fetch_address, address)
        self._poller = zmq.Poller()
        self._poller.register(down.socket, zmq.POLLIN)

    @classmethod
    def open(cls, address: str, hello: Hello, closing: threading.Event) -> Connection | None:
        """Connect and greet. None if `closing` was set meanwhile; raises `ConnectFailed` that says what was seen."""
        client_id = os.urandom(CLIENT_ID_BYTES)
        down = Monitored(address, client_id + DOWN)
        try:
            welcome = _greet(address, down, hello, closing)
        except BaseException:
            down.close()
            raise
        if welcome is None:
            down.close()
            return None
        try:
            return cls(address, client_id, down, welcome)
        except BaseException:
            down.close()
            raise

    def send_up(self, data: Buffer) -> bool:
        try:
            self._up.socket.send(data, zmq.NOBLOCK, copy=len(data) < COPY_THRESHOLD_BYTES)
        except zmq.Again:
            return False
        return True

    def send_fetch(self, data: bytes) -> None:
        if self._fetch is None:
            try:
                self._fetch = Monitored(self._fetch_address, self._client_id + DOWN)
            except ConnectFailed as error:
                self._failure = error.problem
                return
            self._poller.register(self._fetch.socket, zmq.POLLIN)
        self._fetch.socket.send(data)

    def receive(self, timeout_s: float, most: int) -> list[Received]:
        """Messages that are there, waiting at most `timeout_s` for the first."""
        messages: list[Received] = []
        for socket, _ in self._poller.poll(int(timeout_s * 1000)):
            is_answer = socket is not self._down.socket
            while len(messages) < most:
                try:
                    messages.append(Received(socket.recv(zmq.NOBLOCK, copy=False).buffer, is_answer))
                except zmq.Again:
                    break
        return messages

    def broken(self) -> str:
        """Why the connection is over; empty while it is not."""
        if self._failure:
            return self._failure
        for name, side in (("down", self._down), ("up", self._up), ("fetch", self._fetch)):
            if side is not None and side.gone():
                return f"its {name} socket was disconnected"
        return ""

    def close(self) -> None:
        for side in (self._down, self._up, self._fetch):
            if side is not None:
                side.close()


def _greet(address: str, down: Monitored, hello: Hello, closing: threading.Event) -> Welcome | None:
    down.socket.send(encode_message(hello))
    deadline = time.monotonic() + GREET_S
    while not closing.is_set():
        if down.socket.poll(20):
            return _welcome(address, down.socket.recv())
        if down.gone():
            raise ConnectFailed(f"nothing listens at {address}", remedy="Start the broker, or check the address")
        if time.monotonic() > deadline:
            raise ConnectFailed(f"{address} did not answer a hello within {GREET_S:g} s")
    return None


def _welcome(address: str, frame: bytes) -> Welcome:
    try:
        message = decode_message(frame)
    except CorruptLog as error:
        raise ConnectFailed(f"what answers at {address} is no paramstream broker: {error.problem}") from error
    if not isinstance(message, Welcome):
        raise ConnectFailed(f"{address} answered a hello with {type(message).__name__}")
    return message


def _reachable(fetch_address: str, address: str) -> str:
    """The fetch address with the host that this client knows the broker by."""
    if not fetch_address.startswith("tcp://*:"):
        return fetch_address
    host = urlsplit(address).hostname or "127.0.0.1"
    return fetch_address.replace("*", f"[{host}]" if ":" in host else host, 1)
