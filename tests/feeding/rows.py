"""Events of row tables, and what a store then holds of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paramstream.consistency.vector import PartitionId
from paramstream.events.kinds import DeleteRows, Gradients, Initializer, Optimizer, Rows, Table
from paramstream.tiers.rows.batch import RowBatch
from paramstream.tiers.store import TieredStore

from .writer import Writer

OPTIMIZERS = {
    "sgd": {"lr": 0.5},
    "adagrad": {"lr": 0.5, "eps": 1e-8, "initial_accumulator_value": 0.25},
    "rowwise_adagrad": {"lr": 0.5, "eps": 1e-8, "initial_accumulator_value": 0.25},
    "adam": {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8},
}
Keys = Sequence[int]


def table_of(name: str, kind: str = "adam", dim: int = 3, dtype: str = "float32", lr: float | None = None) -> Table:
    settings = OPTIMIZERS[kind] | ({} if lr is None else {"lr": lr})
    return Table(name, dim, dtype, Optimizer(kind, settings), Initializer("normal", {"std": 1.0}, 7))


def write_rows(writer: Writer, table: Table, keys: Keys, rows: npt.ArrayLike, **stamp: Any) -> bytearray:
    return _write(writer, Rows, table, keys, rows, **stamp)


def write_gradients(writer: Writer, table: Table, keys: Keys, grads: npt.ArrayLike, **stamp: Any) -> bytearray:
    return _write(writer, Gradients, table, keys, grads, **stamp)


def delete_rows(writer: Writer, table: Table, keys: Keys, up_to: int | None = None) -> bytearray:
    return writer.write(DeleteRows(table.table, len(keys), up_to), [np.array(keys, np.int64).tobytes()])


def _write(
    writer: Writer, kind: type[Rows | Gradients], table: Table, keys: Keys, values: npt.ArrayLike, **stamp: Any
) -> bytearray:
    wide = np.broadcast_to(np.asarray(values, table.dtype), (len(keys), table.dim))
    payload = kind(table.table, len(keys), table.dim, table.dtype)
    return writer.write(payload, [np.array(keys, np.int64).tobytes(), np.ascontiguousarray(wide).tobytes()], **stamp)


def rows_of(store: TieredStore, partitions: Iterable[PartitionId]) -> dict[tuple[int, str], list[tuple[bytes, ...]]]:
    """(Partition number, table) → key, values, state and position of each row, bit for bit, in the order of keys."""
    return {
        (partition[1], name): sorted(row for batch in table.scan() for row in _bits(batch))
        for partition in partitions
        for name, table in store.row_tables(partition).items()
    }


def _bits(batch: RowBatch) -> Iterable[tuple[bytes, ...]]:
    columns = (batch.keys, batch.values, batch.state, batch.positions)
    return (tuple(column[at].tobytes() for column in columns) for at in range(len(batch)))
