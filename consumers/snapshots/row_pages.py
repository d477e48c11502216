"""Rows of a table in a safetensors file: columns, so that any reader of the format can look at them.

keys            int64 (n,)
values          (n, dim) of the table's dtype
state           (n, width) of the optimizer: float32, of float64 tables float64; width 0 without state
positions       uint64 (n,): of the event that wrote each row last
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import CorruptLog
from ...events.arrays import DTYPES
from ...events.kinds import Table
from ...events.tensorfile import decode_header, encode_header, in_file_order
from ...tiers.rows.batch import RowBatch
from ...tiers.rows.table import PIECE_ROWS
from ..definitions import spec_of

ROW_BYTES = 16
"""Counted for a row beside its values and state: key and position."""

KEYS, VALUES, STATE, POSITIONS = "keys", "values", "state", "positions"


def encode_rows(batch: RowBatch, definition: Table) -> list[bytes | memoryview]:
    """A whole file, as pieces to write one after another; they are views of the batch."""
    columns: dict[str, npt.NDArray[Any]] = {
        KEYS: batch.keys,
        VALUES: batch.values,
        STATE: batch.state,
        POSITIONS: batch.positions,
    }
    described = {name: (array.dtype.name, array.shape) for name, array in columns.items()}
    order = in_file_order(described)
    about = {"format": "paramstream rows", "table": definition.table, "optimizer": batch.kind}
    header, _ = encode_header({name: described[name] for name in order}, about)
    return [header, *(as_bytes(columns[name]) for name in order)]


def decode_rows(data: memoryview, definition: Table, place: str) -> RowBatch:
    """The rows of a file, as views of `data`. Raises `CorruptLog` naming `place` where they are none of that table."""
    spec, found = spec_of(definition), decode_header(data, place)
    count = sum(found[KEYS].shape) if KEYS in found else 0
    expected = {
        KEYS: ("int64", (count,)),
        VALUES: (definition.dtype, (count, spec.dim)),
        STATE: (spec.accumulate_dtype.name, (count, spec.state_width)),
        POSITIONS: ("uint64", (count,)),
    }
    if {name: (at.dtype, at.shape) for name, at in found.items()} != expected:
        raise CorruptLog(f"{place} is no page of rows of table {definition.table!r}", item=place)
    columns = {
        name: np.frombuffer(data[at.start : at.end], DTYPES[at.dtype]).reshape(at.shape) for name, at in found.items()
    }
    return RowBatch(
        keys=columns[KEYS],
        values=columns[VALUES],
        state=columns[STATE],
        kind=spec.kind,
        positions=columns[POSITIONS],
    )


def rows_in(definition: Table, nbytes: int) -> int:
    """How many rows of a table take about so many bytes: at least one, and no more than are read at once."""
    spec = spec_of(definition)
    width = spec.dim * spec.value_dtype.itemsize + spec.state_width * spec.accumulate_dtype.itemsize
    return min(PIECE_ROWS, max(1, nbytes // (width + ROW_BYTES)))


def as_bytes(array: npt.NDArray[Any]) -> memoryview:
    """The bytes of a contiguous array, not copied."""
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat) if array.size else memoryview(b"")
