"""One connection to one broker: three sockets that live and die together.

*up* sends what calling threads send; *down* receives everything and said hello; *fetch* talks to the broker's fetch thread
and is made on first use. Each has a monitor, which alone tells when a peer has gone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Container, Iterable, Sequence
from contextlib import ExitStack
from typing import NamedTuple
from urllib.parse import urlsplit

import zmq
from zmq.utils.monitor import recv_monitor_message

from ..errors import ConnectFailed, CorruptLog
from ..events.codec import Buffer
from .messages import CLIENT_ID_BYTES, DOWN, UP, Hello, Welcome, decode_message, encode_message
from .pieces import AnswerReader
from .sockets import (
    COPY_THRESHOLD_BYTES,
    HIGH_WATER_MARK,
    MAX_ANSWER_BYTES,
    Socket,
    close_watched,
    watched_dealer,
)

GREET_S = 1.0
"""How long a broker may take to answer a hello before the attempt is given up (and made again)."""

GREET_TICK_MS = 20

SILENCE_HEARTBEATS = 6
"""A broker that says nothing for this many heartbeats is taken for gone: the process may hang with its socket open."""

_GONE = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Monitored:
    """A DEALER with its monitor: `gone` says whether its connection has ended."""

    def __init__(
        self,
        address: str,
        routing_id: bytes,
        *,
        most_waiting: int = HIGH_WATER_MARK,
        most_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self.socket, self._monitor = watched_dealer(
            address, routing_id, _GONE, most_waiting=most_waiting, most_bytes=most_bytes
        )

    def gone(self) -> bool:
        while self._monitor.poll(0):
            recv_monitor_message(self._monitor)
            return True
        return False

    def close(self) -> None:
        """A second call changes nothing."""
        if not self.socket.closed:
            close_watched(self.socket, self._monitor)


class Greeting:
    """A hello on its way to a broker, until `look` has seen the answer."""

    def __init__(self, address: str, hello: Hello) -> None:
        """Raises `ConnectFailed` where the address cannot be connected to."""
        self.address = address
        self.client_id = os.urandom(CLIENT_ID_BYTES)
        self.down = Monitored(address, self.client_id + DOWN)
        self.welcome: Welcome | None = None
        try:
            self.down.socket.send(encode_message(hello), zmq.NOBLOCK)
        except zmq.Again as error:
            self.down.close()
            raise ConnectFailed(f"{address} was gone at once") from error

    def look(self) -> bool:
        """Whether the broker has answered. Raises `ConnectFailed` that says what was seen in its place."""
        if self.welcome is None:
            if self.down.socket.poll(0):
                self.welcome = _welcome(self.address, self.down.socket.recv())
            elif self.down.gone():
                raise ConnectFailed(
                    f"nothing listens at {self.address}", remedy="Start the broker, or check the address"
                )
        return self.welcome is not None


class Received(NamedTuple):
    """A message of a broker."""

    connection: Connection
    data: memoryview
    is_answer: bool
    """It came on the fetch socket."""


class Connection:
    """A greeted connection. `send_up` belongs to whoever holds the link's lock, all else to the link's thread."""

    def __init__(self, greeting: Greeting, welcome: Welcome) -> None:
        """Takes over the greeting's socket. Raises `ConnectFailed`."""
        self.address = greeting.address
        self.welcome = welcome
        self.answers = AnswerReader()
        """Of its fetch socket."""
        self.heard = time.monotonic()
        """When it last said anything."""
        self._client_id = greeting.client_id
        self._down = greeting.down
        self._up = Monitored(self.address, self._client_id + UP)
        self._fetch: Monitored | None = None
        self._failure = ""
        """Why the fetch socket is of no use: without it the connection is none."""
        self._fetch_address = _reachable(welcome.fetch_address, self.address)
        self._poller: zmq.Poller | None = None

    def attach(self, poller: zmq.Poller) -> None:
        """Let `poller` wait for this connection's messages, those of a fetch socket to come too."""
        self._poller = poller
        poller.register(self._down.socket, zmq.POLLIN)

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
            assert self._poller is not None, "attach() comes first"
            self._poller.register(self._fetch.socket, zmq.POLLIN)
        try:
            self._fetch.socket.send(data, zmq.NOBLOCK)
        except zmq.Again:
            # A socket whose peer is gone would wait for ever.
            self._failure = "its fetch socket takes nothing more"

    def receive(self, ready: Container[Socket], most: int) -> list[Received]:
        """Messages that are there, at most so many, of those of its sockets that are `ready`."""
        messages: list[Received] = []
        for side in (self._down, self._fetch):
            if side is None or side.socket not in ready:
                continue
            while len(messages) < most:
                try:
                    data = side.socket.recv(zmq.NOBLOCK, copy=False).buffer
                except zmq.Again:
                    break
                messages.append(Received(self, data, side is self._fetch))
        if messages:
            self.heard = time.monotonic()
        return messages

    def ended(self, now: float) -> str:
        """Why the connection is over; empty while it is not. `now` is time.monotonic()."""
        if self._failure:
            return self._failure
        for name, side in (("down", self._down), ("up", self._up), ("fetch", self._fetch)):
            if side is not None and side.gone():
                return f"its {name} socket was disconnected"
        silence_s = SILENCE_HEARTBEATS * self.welcome.heartbeat_s
        return f"the broker said nothing for {silence_s:g} s" if now - self.heard > silence_s else ""

    def close(self) -> None:
        for side in (self._down, self._up, self._fetch):
            if side is not None:
                side.close()


def greet(addresses: Iterable[str], hello: Hello, closing: threading.Event) -> list[Connection]:
    """Greet the brokers at these addresses, all at once: a connection to each. None at all if `closing` was set meanwhile.

    Raises `ConnectFailed` that says what was seen where one did not answer within `GREET_S`.
    """
    with ExitStack() as undo:
        greetings: list[Greeting] = []
        for address in addresses:
            greetings.append(Greeting(address, hello))
            undo.callback(greetings[-1].down.close)
        if not _all_answered(greetings, closing):
            return []
        connections: list[Connection] = []
        for greeting in greetings:
            assert greeting.welcome is not None
            connections.append(Connection(greeting, greeting.welcome))
            undo.callback(connections[-1].close)
        undo.pop_all()
        return connections


def _all_answered(greetings: Sequence[Greeting], closing: threading.Event) -> bool:
    deadline = time.monotonic() + GREET_S
    while not closing.is_set():
        waiting = [greeting for greeting in greetings if not greeting.look()]
        if not waiting:
            return True
        if time.monotonic() > deadline:
            silent = ", ".join(greeting.address for greeting in waiting)
            raise ConnectFailed(f"{silent} did not answer a hello within {GREET_S:g} s")
        waiting[0].down.socket.poll(GREET_TICK_MS)
    return False


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
