"""A table's rows as a safetensors file that other tools read, written in bounded memory.

keys        int64 (n,), each once, in no order
rows        (n, dim) of the table's dtype
state       (n, width), where asked for: of the optimizer, float32, or float64 of tables of float64
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from ..errors import InvalidEvent
from ..eventlog.marks import storage_error
from ..events.kinds import Table
from ..events.tensorfile import encode_header, in_file_order
from ..tiers.rows.batch import RowBatch
from ..tiers.rows.table import RowTable
from .definitions import spec_of
from .snapshots.row_pages import as_bytes, rows_in

KEYS, ROWS, STATE = "keys", "rows", "state"

COPY_BYTES = 8 * 1024 * 1024


def rows_once(table: RowTable, definition: Table) -> Iterator[RowBatch]:
    """The rows that are there, each once and as it is when it is read."""
    keys, step = table.keys(), rows_in(definition, COPY_BYTES)
    for at in range(0, len(keys), step):
        batch = table.read(keys[at : at + step])
        yield batch.take(batch.positions > 0)


def write_table(path: Path, definition: Table, batches: Iterable[RowBatch], *, state: bool) -> int:
    """Writes the rows of `batches` and returns how many; a file of that name is replaced as a whole at the end.

    Each column waits in a file of its own beside `path` until all of them are known: their places depend on the number of rows.
    Raises `StorageFull` or `CorruptLog` where the disk takes nothing, `InvalidEvent` where state is of another kind of optimizer than
    the definition's or `path` has no folder to lie in; then nothing of that name has changed.
    """
    if not path.parent.is_dir():
        raise InvalidEvent(f"{path.parent} is no folder", item=definition.table, remedy="Make it first")
    try:
        with ExitStack() as opened:
            names = (KEYS, ROWS, STATE) if state else (KEYS, ROWS)
            columns = {name: opened.enter_context(tempfile.TemporaryFile(dir=path.parent)) for name in names}
            count = sum(_append(columns, batch, definition) for batch in batches)
            _join(path, definition, columns, count)
            return count
    except OSError as error:
        raise storage_error("write a table to", path, error) from error


def _append(columns: Mapping[str, IO[bytes]], batch: RowBatch, definition: Table) -> int:
    columns[KEYS].write(as_bytes(batch.keys))
    columns[ROWS].write(as_bytes(batch.values))
    if STATE in columns:
        if batch.kind != spec_of(definition).kind:
            raise InvalidEvent(
                "the table got another kind of optimizer while it was exported",
                item=definition.table,
                remedy="Export it again",
            )
        columns[STATE].write(as_bytes(batch.state))
    return len(batch)


def _join(path: Path, definition: Table, columns: Mapping[str, IO[bytes]], count: int) -> None:
    spec = spec_of(definition)
    described: dict[str, tuple[str, tuple[int, ...]]] = {
        KEYS: ("int64", (count,)),
        ROWS: (spec.dtype, (count, spec.dim)),
        STATE: (spec.accumulate_dtype.name, (count, spec.state_width)),
    }
    order = [name for name in in_file_order(described) if name in columns]
    about = {"format": "pt", "table": definition.table, "optimizer": spec.kind if STATE in columns else ""}
    header, _ = encode_header({name: described[name] for name in order}, about)
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with aside.open("wb") as file:
            file.write(header)
            for name in order:
                columns[name].seek(0)
                shutil.copyfileobj(columns[name], file, COPY_BYTES)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
