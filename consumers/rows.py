"""The row tables of a replica: what events say of them, and how that changes them. The applying thread only.

Definitions are applied once they are durable (`SubscriptionCore`), so none is ever taken back; rows have before-images as entries have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..consistency.vector import PartitionId
from ..errors import CorruptLog
from ..events.arrays import DTYPES
from ..events.codec import EventFrame
from ..events.kinds import DeleteRows, Gradients, Rows, Table
from ..events.validate import ROW_KEY_BYTES
from ..tiers.rows.batch import RowBatch
from ..tiers.rows.kernels import kernels
from ..tiers.rows.table import RowTable
from ..tiers.store import TieredStore
from .definitions import Defined, spec_of

NO_TABLES: Mapping[str, Defined] = MappingProxyType({})

KEPT_BYTES = 16 << 20
"""Pieces of memory up to this size are used again by the process where they are freed."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """What one event does to a table's rows."""

    table: RowTable
    payload: Rows | Gradients | DeleteRows
    keys: npt.NDArray[np.int64]
    """(count,), as they came: they may repeat."""
    values: npt.NDArray[Any]
    """(count, dim) of the table's dtype: rows or gradients. A deletion has none."""
    image_nbytes: int = 0
    """What is charged for the rows before it. 0: no image of them is wanted."""

    def image_limit(self) -> int:
        """The most bytes that an image of the rows before it can take."""
        spec = self.table.spec
        row = spec.dim * spec.value_dtype.itemsize + spec.state_width * spec.accumulate_dtype.itemsize
        return len(self.keys) * (2 * ROW_KEY_BYTES + row)

    def apply(self, position: int) -> RowBatch | None:
        """Change memory only, as `RowTable.prepare` made sure; the rows before it, if they are wanted."""
        images = self.image_nbytes > 0
        match self.payload:
            case Rows():
                return self.table.write(self.keys, self.values, position, images=images)
            case Gradients():
                return self.table.apply(self.keys, self.values, position, images=images)
            case DeleteRows():
                return self.table.delete(self.keys, position, up_to=self.payload.up_to, images=images)


class Tables:
    """The definitions and rows of all state partitions."""

    def __init__(self, store: TieredStore) -> None:
        self._store = store
        self._defined: dict[PartitionId, Mapping[str, Defined]] = {}
        """Each mapping is replaced as a whole."""

    def of(self, partition: PartitionId) -> Mapping[str, Defined]:
        """The partition's tables by name, as of this moment. Any thread."""
        return self._defined.get(partition, NO_TABLES)

    def define(self, partition: PartitionId, definition: Table, position: int) -> None:
        """As `change_of` let it pass. Raises `StorageFull` with nothing changed."""
        known = self.of(partition)
        before = known.get(definition.table)
        defined = Defined.after(before, definition, position)
        if defined is before:
            return
        if before is None:
            keep_freed_memory()
            self._store.rows(partition, definition.table, spec_of(definition))
        else:
            self._store.rows(partition, definition.table, spec_of(definition)).alter(spec_of(definition))
        self._defined[partition] = {**known, definition.table: defined}

    def change_of(self, partition: PartitionId, frame: EventFrame) -> RowChange | None:
        """What the event does to rows, if anything. Raises `CorruptLog` where it does not fit its table: brokers see to it, but a log may
        have been written by something else.
        """
        payload = frame.payload
        if isinstance(payload, Table):
            self._check(partition, payload, frame.position)
            # What it runs by may be compiled first, which takes seconds: not under the replica's lock.
            kernels().make_ready(spec_of(payload))
        if not isinstance(payload, Rows | Gradients | DeleteRows):
            return None
        return self._change(partition, payload, frame)

    def begin_with(
        self, partition: PartitionId, tables: Iterable[Defined], rows: Iterable[tuple[str, RowBatch]]
    ) -> None:
        """Instead of what is there: these definitions, with these rows of theirs. Raises `StorageFull`, and what `rows` does."""
        self.clear(partition)
        self._defined[partition] = {defined.definition.table: defined for defined in tables}
        made = {
            name: self._store.rows(partition, name, spec_of(defined.definition))
            for name, defined in self.of(partition).items()
        }
        for name, table in made.items():
            # It may be there from a copy that turned out to be damaged, as that one defined it.
            table.alter(spec_of(self.of(partition)[name].definition))
        for name, batch in rows:
            made[name].load(batch)

    def clear(self, partition: PartitionId) -> None:
        """All rows go; definitions stay."""
        for table in self._store.row_tables(partition).values():
            table.clear()

    def forget(self, partition: PartitionId) -> None:
        """The store has dropped the partition's tables."""
        self._defined.pop(partition, None)

    def _check(self, partition: PartitionId, definition: Table, position: int) -> None:
        known = self.of(partition).get(definition.table)
        if known is not None and (known.definition.dim, known.definition.dtype) != (definition.dim, definition.dtype):
            raise CorruptLog(
                "a table changes its dim or dtype", item=definition.table, partition=partition[1], position=position
            )

    def _change(self, partition: PartitionId, payload: Rows | Gradients | DeleteRows, frame: EventFrame) -> RowChange:
        defined = self.of(partition).get(payload.table)
        if defined is None:
            raise CorruptLog(
                f"{frame.kind.label} of a table that has no definition before it",
                item=payload.table,
                partition=partition[1],
                position=frame.position,
            )
        definition = defined.definition
        table = self._store.rows(partition, payload.table, spec_of(definition))
        keys = np.frombuffer(frame.bulk, np.int64, payload.count).copy()
        if isinstance(payload, DeleteRows):
            return RowChange(table, payload, keys, np.empty((0, definition.dim), DTYPES[definition.dtype]))
        fits = (payload.dim, payload.dtype) == (definition.dim, definition.dtype)
        if not fits or (isinstance(payload, Gradients) and definition.optimizer is None):
            raise CorruptLog(
                f"{frame.kind.label} of {payload.dtype} and dim {payload.dim}, which the table does not take",
                item=payload.table,
                partition=partition[1],
                position=frame.position,
            )
        flat = np.frombuffer(frame.bulk[payload.count * ROW_KEY_BYTES :], DTYPES[payload.dtype])
        return RowChange(table, payload, keys, flat.copy().reshape(payload.count, payload.dim))


@cache
def keep_freed_memory() -> None:
    """An event's rows and the image of what they replace are up to 2 MiB, made anew for each. glibc gives pieces as large as the largest
    that was ever freed back to the system at once, and each page of the next one is faulted in again, which takes several times the
    copy. It learns by what is freed.
    """
    np.empty(KEPT_BYTES, np.uint8)
