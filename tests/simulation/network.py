"""Connections between clients and brokers: first in, first out, until they break; then a suffix of each direction is lost.

What a client had sent may still reach the broker long after the client has noticed the loss and connected again, because it
already lies in the broker's own buffers. What the broker had sent is not taken any more: the client drops it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from paramstream.events.codec import Buffer
from paramstream.transport.messages import Fetch, Fetched
from paramstream.transport.wire import Message

from .clock import Clock

ALL = 1 << 30


class Peer(Protocol):
    """The client's end of a connection."""

    name: str

    def connected(self, connection: Connection) -> None: ...
    def lost(self) -> None: ...
    def received(self, item: Item) -> None: ...


class Server(Protocol):
    """The broker's end of its connections."""

    name: str
    """Another one at each start."""
    connections: dict[bytes, Connection]

    def received(self, connection: Connection, item: Item) -> None: ...
    def forget(self, connection: Connection) -> None: ...
    def fetch(self, connection: Connection, fetch: Fetch, count: int) -> None: ...


@dataclass(frozen=True)
class Asked:
    """A call on its way to the broker."""

    call: Message


@dataclass(frozen=True)
class Told:
    """The answer to a call: a record, or the error's code."""

    call: Message
    answer: object


@dataclass(frozen=True)
class FetchedFrames:
    answer: Fetched
    frames: list[memoryview]


Item = bytes | bytearray | Message | Asked | Told | FetchedFrames


@dataclass(eq=False)
class Connection:
    serial: int
    client: Peer
    broker: Server
    is_up: bool = True
    """For the client; for the broker it lasts until all that has arrived is taken."""
    up: deque[Item] = field(default_factory=deque[Item])
    down: deque[Item] = field(default_factory=deque[Item])
    fetches: deque[Fetch] = field(default_factory=deque[Fetch])
    fetched: deque[FetchedFrames] = field(default_factory=deque[FetchedFrames])
    follows: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    has_joined: bool = False
    pipe: int = ALL
    """Events that the broker's pipe takes before it is full."""
    up_from: float = 0.0
    """Until then nothing reaches the broker, although the connection lives."""
    down_from: float = 0.0
    """Until then nothing reaches the client."""
    rate: int = ALL
    """Items that pass in one step, in each direction."""

    @property
    def id(self) -> bytes:
        return b"%d" % self.serial

    @property
    def broker_name(self) -> str:
        return self.broker.name

    def send(self, frame: Buffer | Message | Asked) -> bool:
        """From the client. False, with nothing sent, where the connection is gone."""
        if not self.is_up:
            return False
        self.up.append(frame if isinstance(frame, Message | Asked) else bytes(frame))
        return True

    def fetch(self, message: Fetch) -> None:
        self.fetches.append(message)

    def answer(self, item: Item) -> None:
        """From the broker. What goes to a lost connection is lost."""
        if self.is_up:
            self.down.append(item)

    def reset(self, chance: random.Random, *, broker_gone: bool = False) -> None:
        """The connection breaks: a prefix of what was under way to the client was in time, and is handed over first."""
        for _ in range(chance.randint(0, len(self.down))):
            if self.down:
                self.client.received(self.down.popleft())
        self.is_up = False
        self.down.clear()
        self.fetches.clear()
        self.fetched.clear()
        kept = 0 if broker_gone else chance.randint(0, len(self.up))
        while len(self.up) > kept:
            self.up.pop()
        self.client.lost()


class Network:
    """All connections, and how what is under way on them moves."""

    def __init__(self, clock: Clock, awake: Callable[[object], bool], leftovers_move: float) -> None:
        """`awake` says whether a process does anything now. `leftovers_move`: how fast brokers' buffers of lost connections empty."""
        self._clock = clock
        self._awake = awake
        self._leftovers_move = leftovers_move
        self._ids = count(1)
        self.live: list[Connection] = []
        """Those whose client has not noticed a loss."""
        self.leftovers: list[Connection] = []
        """Lost ones, of which frames still lie in the broker's buffers."""

    def connect(self, client: Peer, broker: Server) -> Connection | None:
        """None where they are connected already."""
        if any(connection.client is client and connection.broker is broker for connection in self.live):
            return None
        connection = Connection(next(self._ids), client, broker)
        self.live.append(connection)
        broker.connections[connection.id] = connection
        client.connected(connection)
        return connection

    def of(self, client: Peer) -> list[Connection]:
        return [connection for connection in self.live if connection.client is client]

    def lose(self, connection: Connection, chance: random.Random) -> None:
        self.live.remove(connection)
        self.leftovers.append(connection)
        connection.reset(chance)

    def end(self, broker: Server, chance: random.Random) -> None:
        """The broker's process is gone, and all of its buffers with it."""
        gone = [connection for connection in self.live if connection.broker is broker]
        self.live = [connection for connection in self.live if connection.broker is not broker]
        self.leftovers = [connection for connection in self.leftovers if connection.broker is not broker]
        for connection in gone:
            connection.reset(chance, broker_gone=True)

    def mend(self) -> None:
        """Nothing is slow, cut or full any more."""
        for connection in [*self.live, *self.leftovers]:
            connection.pipe = connection.rate = ALL
            connection.up_from = connection.down_from = 0.0

    # --- movement ---------------------------------------------------------------------------------------------------------

    def move(self, chance: random.Random) -> None:
        """A little of what is under way arrives, or nothing."""
        for connection in list(self.live):
            for _ in range(min(chance.choice([0, 1, 2, 8]), connection.rate)):
                self._arrive_one(connection)
        for connection in list(self.leftovers):
            if chance.random() < self._leftovers_move:
                self._arrive_one(connection)
        for connection in list(self.live):
            self._hand_over(connection, min(chance.choice([0, 1, 4, 16]), connection.rate))
            self._fetch(connection, chance)

    def settle(self) -> bool:
        """Everything under way arrives. False where nothing was."""
        moved = False
        for connection in [*self.leftovers, *self.live]:
            moved = moved or bool(connection.up or connection.fetches or connection.down or connection.fetched)
            while connection.up or connection in self.leftovers:
                self._arrive_one(connection)
            while connection.fetches:
                connection.broker.fetch(connection, connection.fetches.popleft(), ALL)
            while connection.down:
                connection.client.received(connection.down.popleft())
            while connection.fetched:
                connection.client.received(connection.fetched.popleft())
        return moved

    def _arrive_one(self, connection: Connection) -> None:
        if connection.up_from > self._clock.now or not self._awake(connection.broker):
            return
        if connection.up:
            connection.broker.received(connection, connection.up.popleft())
        elif connection in self.leftovers:
            self.leftovers.remove(connection)
            connection.broker.forget(connection)

    def _hand_over(self, connection: Connection, most: int) -> None:
        """A few frames reach the client."""
        if connection.down_from > self._clock.now or not self._awake(connection.client):
            return
        for _ in range(min(most, len(connection.down))):
            if connection.down:  # Else the client has left it, for what it was told.
                connection.client.received(connection.down.popleft())

    def _fetch(self, connection: Connection, chance: random.Random) -> None:
        """Fetches go over a socket of their own, which breaks by itself: one answer in twenty is lost."""
        if connection.fetches and chance.random() < 0.5 and self._awake(connection.broker):
            connection.broker.fetch(connection, connection.fetches.popleft(), chance.choice([1, 3, ALL]))
        if connection.fetched and chance.random() < 0.5 and self._awake(connection.client):
            answer = connection.fetched.popleft()
            if chance.random() < 0.95:
                connection.client.received(answer)
