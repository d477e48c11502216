"""What users read of a replica's tables: rows, what there is, and its digest. Any thread, and no lock of the replica."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InvalidEvent, UnknownTopic
from ..events.arrays import Array, ArrayKind, as_torch
from ..events.digest import tensor_hash
from ..events.kinds import Table
from ..events.row_keys import Keys, by_partition
from ..tiers.rows.spec import RowSpec
from ..tiers.rows.table import RowTable
from ..tiers.store import TieredStore
from ..transport.calls import TopicRecord
from .applying import Applier
from .status import TableStatus

DIGEST_BYTES = 4 << 20
"""About so many bytes of rows are read at a time for a digest."""

FoundRows = tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]
"""Values (n, dim), and whether each row is there (n,)."""


class RowReads:
    """Of the state partitions that one replica follows."""

    def __init__(self, store: TieredStore, applier: Applier, followed: Sequence[int] | None) -> None:
        """`followed`: numbers of state partitions, None for all."""
        self._store = store
        self._applier = applier
        self._followed = followed

    def look_up(self, topic: TopicRecord, table: str, keys: Keys) -> FoundRows:
        """Values (n, dim) of the table's dtype, and whether each row is there (n,), in the order asked; a row that is not has its
        initial value. Each partition's rows are of one moment, up to the tiers' own limit.

        Raises `UnknownTopic` where no partition followed has such a table, `InvalidEvent` for a key of one that is not.
        """
        tables = self._tables(topic, table)
        other = next(iter(tables.values()))
        spec = other.spec
        values, found = np.empty((len(keys), spec.dim), spec.value_dtype), np.empty(len(keys), np.bool_)
        for number, places in self._by_partition(topic, table, keys):
            # One that lacks the definition yet has no rows: to any other its keys are unknown too.
            rows = tables.get(number, other)
            if places is None:
                return rows.lookup(keys)
            values[places], found[places] = rows.lookup(keys[places])
        return values, found

    def prefetch(self, topic: TopicRecord, table: str, keys: Keys) -> int:
        """Moves rows up to DRAM ahead of their use; how many moved. May read a disk. Raises as `look_up`, and what cannot be read."""
        tables, moved = self._tables(topic, table), 0
        for number, places in self._by_partition(topic, table, keys):
            if number in tables:
                moved += tables[number].prefetch(keys if places is None else keys[places])
        return moved

    def spec(self, topic: TopicRecord, table: str) -> RowSpec:
        """What the table is. Raises `UnknownTopic` as `look_up`."""
        return next(iter(self._tables(topic, table).values())).spec

    def positions(self, topic: TopicRecord, table: str, keys: Keys) -> Iterator[tuple[int, int, int]]:
        """(partition, key, position that last wrote its row or 0) of each key that differs."""
        tables, different = self._tables(topic, table), np.unique(keys)
        for number, places in by_partition(different, topic.partitions):
            own = different if places is None else different[places]
            if number in tables:
                batch = tables[number].read(own)
                yield from zip(repeat(number), own.tolist(), batch.positions.tolist(), strict=False)

    def tables(self, topic: TopicRecord) -> list[TableStatus]:
        """The tables of a topic by name, over the partitions followed."""
        return [
            TableStatus(topic.name, name, definition.dim, definition.dtype, sum(map(len, rows)), _nbytes(rows))
            for name, definition, rows in self._by_name(topic)
        ]

    def digests(self, topic: TopicRecord) -> list[tuple[str, int, str, bytes]]:
        """(name, dim, dtype, digest) of each table by name: over all rows with their state, partition by partition, by key. With nothing
        applied meanwhile; memory for the keys of one table and `DIGEST_BYTES` of rows.
        """
        return [
            (name, definition.dim, definition.dtype, _digest(rows)) for name, definition, rows in self._by_name(topic)
        ]

    def _by_partition(self, topic: TopicRecord, table: str, keys: Keys) -> Iterator[tuple[int, Keys | None]]:
        """As `by_partition`, of partitions that are followed. Raises `InvalidEvent` where a key is of another one."""
        for number, places in by_partition(keys, topic.partitions):
            if self._followed is not None and number not in self._followed:
                raise InvalidEvent(
                    "the key belongs to a state partition that this replica does not follow",
                    topic=topic.name,
                    partition=number,
                    item=f"{table}/{keys[0 if places is None else places[0]]}",
                )
            yield number, places

    def _by_name(self, topic: TopicRecord) -> Iterator[tuple[str, Table, list[RowTable]]]:
        """Name, definition, and the rows of each partition that has the table."""
        partitions = [(topic.id, number) for number in self._numbers(topic)]
        defined = {
            name: each.definition for partition in partitions for name, each in self._applier.tables(partition).items()
        }
        for name in sorted(defined):
            rows = [found for at in partitions if (found := self._store.row_tables(at).get(name)) is not None]
            yield name, defined[name], rows

    def _tables(self, topic: TopicRecord, table: str) -> dict[int, RowTable]:
        """By partition number, where the table is known."""
        found = {
            number: rows
            for number in self._numbers(topic)
            if (rows := self._store.row_tables((topic.id, number)).get(table)) is not None
        }
        if not found:
            raise UnknownTopic(
                "this replica knows no such table",
                topic=topic.name,
                item=table,
                remedy="Create it with client.create_table, and wait for what is written to it with replica.wait",
            )
        return found

    def _numbers(self, topic: TopicRecord) -> Sequence[int]:
        return range(topic.partitions) if self._followed is None else self._followed


def handed_out(values: npt.NDArray[Any], arrays: ArrayKind) -> Array:
    """The array itself, or a tensor over its memory."""
    if arrays == "numpy":
        return values
    return as_torch(values.reshape(-1).view(np.uint8), values.dtype.name, values.shape)


def _nbytes(rows: list[RowTable]) -> int:
    return sum(table.nbytes for table in rows)


def _digest(tables: list[RowTable]) -> bytes:
    digest = tensor_hash()
    for table in tables:
        keys, spec = np.sort(table.keys()), table.spec
        row = spec.dim * spec.value_dtype.itemsize + spec.state_width * spec.accumulate_dtype.itemsize
        step = max(1, DIGEST_BYTES // row)
        for at in range(0, len(keys), step):
            batch = table.read(keys[at : at + step])
            for part in (batch.keys, batch.values, batch.state):
                if part.size:
                    digest.update(part.reshape(-1).view(np.uint8).data)
    return digest.digest()
