"""What a topic's events say: the model that every replica must equal. It shares no code with what replicas apply by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import msgspec
import numpy as np
import xxhash

import paramstream as ps
from paramstream.consumers.events import Event, event_of
from paramstream.events.codec import EventFrame
from paramstream.events.kinds import Chunk, Kind, Table
from reference.row_table import RowTableModel

from .load import values_of

Place = tuple[int, int]
"""(partition, position)."""


class Held(NamedTuple):
    """An entry."""

    value: bytes
    deadline: int
    """ns since 1970, 0 where it has none."""


@dataclass
class Reference:
    """The state at the end of a topic's events, and the events themselves. Those of a partition come in its order."""

    topic: str
    events: dict[Place, Event] = field(default_factory=dict[Place, Event])
    identities: Counter[tuple[int, str, int, int]] = field(default_factory=Counter[tuple[int, str, int, int]])
    """(partition, producer, incarnation, sequence) of each event."""
    values: Counter[str] = field(default_factory=Counter[str])
    """How often each value was written."""
    entries: dict[int, dict[bytes, Held]] = field(default_factory=dict[int, dict[bytes, Held]])
    """By partition."""
    tables: dict[tuple[str, int], RowTableModel] = field(default_factory=dict[tuple[str, int], RowTableModel])
    """By name and state partition."""
    commit: Event | None = None
    """The last one: of the version that is served."""

    def take(self, event: Event) -> None:
        """The next event of its partition."""
        self.events[event.partition, event.position] = event
        self.identities[event.partition, event.producer, event.incarnation, event.sequence] += 1
        self.values.update(values_of(event))
        entries = self.entries.setdefault(event.partition, {})
        for key, value, ttl in event.items:
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = Held(value, 0 if ttl is None else event.time + round(ttl * 1e9))
        if event.kind == "commit":
            self.commit = event
        if event.table is not None and event.keys is not None:
            self._change_rows(self.tables[event.table, event.partition], event, event.keys.tolist())
        self.pass_time(event.partition, event.time)

    def define(self, partition: int, definition: Table) -> None:
        """A table is made there, if it was not before."""
        self.tables.setdefault((definition.table, partition), RowTableModel(definition))

    def _change_rows(self, table: RowTableModel, event: Event, keys: list[int]) -> None:
        if event.rows is not None:
            table.write(keys, event.rows, event.position)
        elif event.grads is not None:
            table.apply(keys, event.grads, event.position)
        else:
            table.delete(keys, event.position)

    def pass_time(self, partition: int, time: int) -> None:
        """Something stamped `time` was reached: what ends by then is gone."""
        entries = self.entries.setdefault(partition, {})
        for key in [key for key, held in entries.items() if held.deadline and held.deadline <= time]:
            del entries[key]

    @property
    def standing(self) -> dict[bytes, bytes]:
        """Key → value of all that is not removed."""
        return {key: held.value for entries in self.entries.values() for key, held in entries.items()}


def digest_of(references: Iterable[Reference]) -> str:
    """As `Replica.digest` makes it, of a replica that follows these topics."""
    found: list[tuple[str, bytes, list[tuple[bytes, bytes, int]], list[tuple[str, int, str, bytes]]]] = []
    for reference in sorted(references, key=lambda each: each.topic):
        served = bytes.fromhex(reference.commit.digest or "") if reference.commit is not None else b""
        held = [item for entries in reference.entries.values() for item in entries.items()]
        entries = sorted((key, entry.value, entry.deadline) for key, entry in held)
        found.append((reference.topic, served, entries, _tables_of(reference)))
    return xxhash.xxh3_128_hexdigest(msgspec.msgpack.encode(found))


def _tables_of(reference: Reference) -> list[tuple[str, int, str, bytes]]:
    """Each table by name: over the keys, and then the values, of each partition. Their optimizer has no state."""
    tables: list[tuple[str, int, str, bytes]] = []
    for name, parts in groupby(sorted(reference.tables.items()), key=lambda item: item[0][0]):
        digest, models = xxhash.xxh3_128(), [model for _, model in parts]
        for rows in (model.rows for model in models):
            digest.update(np.array(sorted(rows), np.int64).tobytes())
            digest.update(b"".join(rows[key].values.tobytes() for key in sorted(rows)))
        tables.append((name, models[0].definition.dim, models[0].definition.dtype, digest.digest()))
    return tables


def read_topic(topic: str, partitions: Collection[Iterable[EventFrame]], *, constant: bool = False) -> Reference:
    """The reference of what a log holds: the frames that count of each of the topic's partitions.

    Epochs before the first event may have been cut, and nothing else.

    `constant`: every element of a version's tensors is its number, and that is checked.
    """
    reference = Reference(topic)
    for number, frames in enumerate(partitions):
        for frame in frames:
            event = event_of(frame, frame.stamp(), topic, lambda _: ps.VersionVector())
            if event is not None:
                reference.take(event)
            elif isinstance(frame.payload, Table):
                reference.define(number, frame.payload)
                reference.pass_time(number, frame.time)
            elif frame.kind is not Kind.BASE:
                reference.pass_time(number, frame.time)
            if constant and isinstance(frame.payload, Chunk):
                found = np.frombuffer(frame.bulk, np.float32)
                assert (found == frame.payload.version).all(), f"{frame.describe()} holds another version's values"
    return reference
