"""What a log says, read from its beginning: the model that every replica must equal."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec
import xxhash

import paramstream as ps
from paramstream.consumers.events import Event

Place = tuple[int, int]
"""(partition, position)."""


@dataclass
class Reference:
    """The state at the end of a topic's raw events, and the events themselves."""

    topic: str
    events: dict[Place, Event] = field(default_factory=dict[Place, Event])
    """In the order in which a causal subscription yielded them."""
    identities: Counter[tuple[int, str, int, int]] = field(default_factory=Counter[tuple[int, str, int, int]])
    """(partition, producer, incarnation, sequence) of each event."""
    values: Counter[str] = field(default_factory=Counter[str])
    """How often each value was written."""
    entries: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    commit: Event | None = None
    """The last one: of the version that is served."""

    def take(self, event: Event) -> None:
        """The next event of a subscription in causal order."""
        self.events[event.partition, event.position] = event
        self.identities[event.partition, event.producer, event.incarnation, event.sequence] += 1
        match event.kind:
            case "put":
                for key, value, _ in event.items:
                    assert value is not None
                    self.entries[key] = value
                    self.values[value.decode()] += 1
            case "delete":
                for key, _, _ in event.items:
                    self.entries.pop(key, None)
            case "commit":
                self.commit = event
            case _:
                pass

    @property
    def digest(self) -> str:
        """As `Replica.digest` makes it, of entries that never expire."""
        served = bytes.fromhex(self.commit.digest or "") if self.commit is not None else b""
        entries = [(key, value, 0) for key, value in sorted(self.entries.items())]
        return xxhash.xxh3_128_hexdigest(msgspec.msgpack.encode([(self.topic, served, entries)]))


def read_log(client: ps.Client, topic: str, until: ps.VersionVector[str], timeout: float) -> Reference:
    """All events of `topic` that its log holds, up to `until` in each partition that it names."""
    reference = Reference(topic)
    left = dict(until)
    with client.subscribe(topic, start="earliest") as events:
        while left:
            event = events.next(timeout)
            assert event.kind != "lost", f"what a log holds from its beginning cannot be lost: {event}"
            reference.take(event)
            if event.position >= left.get((topic, event.partition), event.position + 1):
                del left[topic, event.partition]
    return reference
