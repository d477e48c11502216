"""Connections between clients and a broker: first in, first out, until they break; then a suffix of each direction is lost.

What a client had sent may still reach the broker long after the client has noticed the loss and connected again, because it
already lies in the broker's own buffers. What the broker had sent is not taken any more: the client drops it.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from paramstream.events.codec import Buffer
from paramstream.transport.messages import Fetch, Fetched
from paramstream.transport.wire import Message


class Peer(Protocol):
    """The client's end of a connection."""

    name: str

    def connected(self, connection: Connection) -> None: ...
    def lost(self) -> None: ...
    def received(self, item: Item) -> None: ...


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
    is_up: bool = True
    """For the client; for the broker it lasts until all that has arrived is taken."""
    up: deque[Item] = field(default_factory=deque[Item])
    down: deque[Item] = field(default_factory=deque[Item])
    fetches: deque[Fetch] = field(default_factory=deque[Fetch])
    fetched: deque[FetchedFrames] = field(default_factory=deque[FetchedFrames])
    follows: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    has_joined: bool = False
    pipe: int = 1 << 30
    """Events that the broker's pipe takes before it is full."""

    @property
    def id(self) -> bytes:
        return b"%d" % self.serial

    def send(self, frame: Buffer | Message | Asked) -> bool:
        """From the client. False, with nothing sent, where the connection is gone."""
        if not self.is_up:
            return False
        self.up.append(frame if isinstance(frame, Message | Asked) else bytes(frame))
        return True

    def answer(self, item: Item) -> None:
        """From the broker. What goes to a lost connection is lost."""
        if self.is_up:
            self.down.append(item)

    def reset(self, chance: random.Random, *, broker_gone: bool = False) -> None:
        """The connection breaks: a prefix of what was under way to the client was in time, and is handed over first."""
        for _ in range(chance.randint(0, len(self.down))):
            self.client.received(self.down.popleft())
        self.is_up = False
        self.down.clear()
        self.fetches.clear()
        self.fetched.clear()
        kept = 0 if broker_gone else chance.randint(0, len(self.up))
        while len(self.up) > kept:
            self.up.pop()
        self.client.lost()
