"""Who is connected to a broker: clients by their id, and what each of them is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ..consistency.vector import PartitionId
from ..transport.messages import CLIENT_ID_BYTES, DOWN

MAX_PEERS = 4096
"""Clients at once; a hello past it is not answered."""


@dataclass(slots=True)
class Peer:
    """A client that said hello. Everything to it goes to its *down* socket."""

    id: bytes
    serial: int
    """Grows with each hello: of two connections of one session, the newer has the greater one."""
    name: str = ""
    """A replica's name; empty for others."""
    incarnation: int = 0
    link: bytes = b""
    turn: int = 0
    """As in its hello."""
    joined: dict[int, str] = field(default_factory=dict[int, str])
    """The sessions that it has joined: incarnation → producer name."""
    wrote_ns: dict[int, int] = field(default_factory=dict[int, int])
    """When the last event of each of them came: incarnation → monotonic ns."""
    follows: set[PartitionId] = field(default_factory=set[PartitionId])
    outbox: deque[bytes] = field(default_factory=deque[bytes])
    """Control frames that its pipe did not take yet; events wait behind them."""
    outbox_bytes: int = 0
    held_bytes: int = 0
    """Of its events that wait for their turn."""

    @property
    def address(self) -> bytes:
        return self.id + DOWN


def client_of(routing_id: bytes) -> bytes:
    """The client's id in the routing id of any of its sockets."""
    return routing_id[:CLIENT_ID_BYTES]
