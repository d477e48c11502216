"""The connections to all brokers of one generation: they live and die together, and each message finds its own.

Brokers that share a log share its partitions by slots, and each welcome says who owns which. A client is connected to all of
them or to none: so a partition that goes over to another broker is one loss and one new connection to whoever uses a link,
as the restart of a single broker is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from math import ceil
from typing import Protocol, cast

import msgspec
import zmq

from ..consistency.vector import PartitionId
from ..errors import ConnectFailed
from ..events.codec import Buffer
from .connection import Connection, Received, greet
from .messages import Hello, Owner, Welcome
from .slots import META, SLOTS, slot_of
from .wire import Message, To

ROUNDS = 4
"""How often one attempt greets those brokers again that turned out to be of an older generation than others."""


class _Placed(Protocol):
    """A message for the owner of a partition."""

    @property
    def topic(self) -> int: ...
    @property
    def partition(self) -> int: ...


class Fleet:
    """Connections to the owners of all partitions. One broker that owns everything is a fleet too."""

    def __init__(self, connections: Sequence[Connection], owned: Sequence[Sequence[int]]) -> None:
        """`owned` are the slots of each connection's broker: every slot once."""
        self.connections = tuple(connections)
        self.only = connections[0] if len(connections) == 1 else None
        """The connection where there is just one: nothing need be looked up."""
        by_slot = {slot: connection for connection, slots in zip(connections, owned, strict=True) for slot in slots}
        self._by_slot = [by_slot[slot] for slot in range(SLOTS)]
        self._poller = zmq.Poller()
        for connection in connections:
            connection.attach(self._poller)
        self.welcome = _joint(connections)
        """What holds of all of them: the smallest window, the longest heartbeat."""

    @classmethod
    def gather(cls, endpoint: str, hello: Hello, closing: threading.Event) -> Fleet | None:
        """Ask the broker at `endpoint` who the others are, and connect to all. None if `closing` was set meanwhile.

        The greatest generation that any of them names is the one that counts; all must have answered in it. Raises
        `ConnectFailed` that says what was seen.
        """
        found = greet((endpoint,), hello, closing)
        try:
            for _ in range(ROUNDS):
                if not found:
                    return None
                newest = max((each.welcome for each in found), key=lambda welcome: welcome.generation)
                owners = _owners(newest, endpoint)
                serving = _serving(owners, newest, found)
                for useless in [each for each in found if each not in serving]:
                    useless.close()
                found = [each for each in serving if each is not None]
                if len(found) == len(owners):
                    fleet = cls(found, [owner.slots for owner in owners])
                    found = []
                    return fleet
                missing = [owner.endpoint for owner, each in zip(owners, serving, strict=True) if each is None]
                more = greet(missing, hello, closing)
                if not more:
                    return None
                found += more
            told = ", ".join(f"{each.address}: {each.welcome.generation}" for each in found)
            raise ConnectFailed(f"the brokers are not of one generation: {told}", remedy="Wait until they have settled")
        finally:
            for each in found:
                each.close()

    # --- for whoever holds the link's lock -----------------------------------------------------------------------------------

    def owner(self, partition: PartitionId) -> Connection:
        return self.only or self._by_slot[slot_of(partition)]

    def keepers(self, partition: PartitionId) -> list[Connection]:
        """Whose keeper may have a partition's state: its owner's first, then those of the others, in one order while they are connected."""
        owner = self.owner(partition)
        return [owner, *(each for each in self.connections if each is not owner)]

    def stages(self, message: Message) -> list[list[Connection]]:
        """To whom a message goes: first to all of the first list, then, for a call that was answered there, to the next."""
        if self.only is not None:
            return [[self.only]]
        match message.to:
            case To.EVERY:
                return [list(self.connections)]
            case To.META:
                return [[self.owner(META)]]
            case To.META_FIRST:
                first = self.owner(META)
                return [[first], [each for each in self.connections if each is not first]]
            case To.OWNER:
                placed = cast("_Placed", message)
                return [[self.owner((placed.topic, placed.partition))]]

    def send(self, message: Message, data: Buffer) -> bool:
        """Send `data`, the encoded `message`, to all that it is for. False where one took it no more."""
        taken = [each.send_up(data) for each in self.stages(message)[0]]
        return all(taken)

    # --- in the link's thread ----------------------------------------------------------------------------------------------

    def receive(self, timeout_s: float, most: int) -> list[Received]:
        """Messages that are there, at most so many of each broker, waiting at most `timeout_s` for the first.

        The wait is rounded up to a whole millisecond: rounded down, the last one before a deadline would be spent asking again.
        """
        ready = {socket for socket, _ in self._poller.poll(ceil(timeout_s * 1000))}
        if not ready:
            return []
        if self.only is not None:
            return self.only.receive(ready, most)
        return [message for each in self.connections for message in each.receive(ready, most)]

    def ended(self, now: float) -> str:
        """Why it is over, naming the broker where there are several; empty while it is not."""
        for each in self.connections:
            reason = each.ended(now)
            if reason:
                return reason if self.only is not None else f"{each.address}: {reason}"
        return ""

    def endpoints(self) -> list[str]:
        return [each.address for each in self.connections]

    def close(self) -> None:
        for each in self.connections:
            each.close()


def _owners(welcome: Welcome, endpoint: str) -> Sequence[Owner]:
    """Those that own any slots: a broker without any is asked nothing. Raises `ConnectFailed` unless every slot has one owner."""
    if not welcome.owners:
        return [Owner(welcome.broker, endpoint, tuple(range(SLOTS)))]
    if sorted(slot for owner in welcome.owners for slot in owner.slots) != list(range(SLOTS)):
        raise ConnectFailed(
            f"{endpoint} does not say of every slot which broker owns it", remedy="Wait until the brokers have settled"
        )
    return [owner for owner in welcome.owners if owner.slots]


def _serving(owners: Sequence[Owner], newest: Welcome, found: Iterable[Connection]) -> list[Connection | None]:
    """The connection to each owner, greeted in the newest generation."""
    current = [each for each in found if each.welcome.generation == newest.generation]
    by_broker = {each.welcome.broker: each for each in current}
    # A broker that came back in its old place has another id than the one that the map was made with.
    others = {each.address: each for each in current if each.welcome.broker not in {owner.broker for owner in owners}}
    return [by_broker.get(owner.broker) or others.get(owner.endpoint) for owner in owners]


def _joint(connections: Sequence[Connection]) -> Welcome:
    welcomes = [each.welcome for each in connections]
    return msgspec.structs.replace(
        welcomes[0],
        broker="+".join(sorted(welcome.broker for welcome in welcomes)),
        window_bytes=min(welcome.window_bytes for welcome in welcomes),
        heartbeat_s=max(welcome.heartbeat_s for welcome in welcomes),
    )
