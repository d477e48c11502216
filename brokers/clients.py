"""The clients of a broker, and what is sent to them over its one ROUTER."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator

import zmq

from ..consistency.vector import PartitionId
from ..errors import Fenced
from ..events.codec import Buffer
from ..transport.messages import Demoted, Hello, Welcome, encode_message
from ..transport.sockets import COPY_THRESHOLD_BYTES, Socket
from ..transport.wire import Message, WireError
from .partitions import Partitions
from .peers import MAX_PEERS, Peer, client_of

MAX_OUTBOX, MAX_OUTBOX_BYTES = 10_000, 16 * 1024 * 1024
"""Control frames kept for a peer whose pipe is full, beyond the pipe's own high-water mark: that many, and so many bytes beside one."""


class Clients:
    """In the loop's thread."""

    def __init__(self, socket: Socket, partitions: Partitions) -> None:
        self._socket = socket
        self._partitions = partitions
        self._peers: dict[bytes, Peer] = {}
        self._serials = itertools.count(1)
        self._waiting: dict[bytes, Hello] = {}
        """Hellos that came before all was open, the oldest first; their clients may have given up since."""

    # --- who is there ---

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._peers.values()))

    def __len__(self) -> int:
        return len(self._peers)

    def get(self, client: bytes) -> Peer | None:
        return self._peers.get(client)

    def has(self, peer: Peer) -> bool:
        """It is connected still: one that said hello again is another peer."""
        return self._peers.get(peer.id) is peer

    @property
    def are_full(self) -> bool:
        return len(self._peers) >= MAX_PEERS

    def keep_waiting(self, client: bytes, hello: Hello) -> None:
        """It is to be welcomed. What still comes over the older connections of its link counts no more: nobody awaits an answer."""
        if hello.link:
            for other in self:
                if other.link == hello.link and other.turn < hello.turn:
                    self.forget(other)
        self._waiting[client] = hello
        if len(self._waiting) > MAX_PEERS:
            del self._waiting[next(iter(self._waiting))]

    def waiting(self) -> list[tuple[bytes, Hello]]:
        """Hellos to be answered now; they wait no longer."""
        waiting, self._waiting = self._waiting, {}
        return list(waiting.items())

    def welcome(self, client: bytes, hello: Hello, welcome: Welcome) -> None:
        """It is connected from here on; older incarnations of a replica's name are fenced."""
        peer = Peer(client, next(self._serials), hello.name, hello.incarnation, hello.link, hello.turn)
        self._peers[client] = peer
        if hello.name:
            for other in self:
                if other.name == hello.name and other.incarnation < hello.incarnation:
                    self._fence(other)
        self.send(peer, welcome)

    def _fence(self, peer: Peer) -> None:
        error = WireError.of(fenced(peer))
        for partition in list(peer.follows):
            self.unfollow(peer, partition)
            self.send(peer, Demoted(*partition, 0, 0, error))

    def forget(self, peer: Peer) -> None:
        self._peers.pop(peer.id, None)
        for partition in list(peer.follows):
            self.unfollow(peer, partition)

    def unfollow(self, peer: Peer, partition: PartitionId) -> None:
        peer.follows.discard(partition)
        owned = self._partitions.owned.get(partition)
        if owned is not None:
            owned.fanout.unfollow(peer.address)

    # --- sending ---

    def send(self, peer: Peer, message: Message) -> None:
        """Send a control frame, or keep it until the peer's pipe takes it: none is ever skipped, and their order stays."""
        data = encode_message(message)
        if peer.outbox or not self.sent(peer, data):
            peer.outbox.append(data)
            peer.outbox_bytes += len(data)
            if len(peer.outbox) > MAX_OUTBOX or peer.outbox_bytes - len(data) > MAX_OUTBOX_BYTES:
                # It takes nothing, and nothing more is kept for it: its silence tells it to connect again.
                self.forget(peer)

    def send_to(self, address: bytes, message: Message) -> None:
        peer = self._peers.get(client_of(address))
        if peer is not None:
            self.send(peer, message)

    def sent(self, peer: Peer, data: Buffer) -> bool:
        """False where the peer takes nothing at the moment; one that is gone is forgotten."""
        try:
            self._socket.send_multipart([peer.address, data], zmq.NOBLOCK, copy=len(data) < COPY_THRESHOLD_BYTES)
        except zmq.ZMQError as error:
            if error.errno == zmq.EAGAIN:
                return False
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self.forget(peer)
        return True

    @property
    def have_outboxes(self) -> bool:
        return any(peer.outbox for peer in self._peers.values())

    def empty_outboxes(self) -> None:
        for peer in [peer for peer in self._peers.values() if peer.outbox]:
            outbox: deque[bytes] = peer.outbox
            while outbox and self.sent(peer, outbox[0]):
                peer.outbox_bytes -= len(outbox.popleft())


def fenced(peer: Peer) -> Fenced:
    return Fenced(
        f"replica {peer.name!r} of incarnation {peer.incarnation} is not the newest",
        remedy="A replica name has one live owner; close the other one or choose another name",
    )
