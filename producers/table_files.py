"""A file of rows to be published: a safetensors file with `keys` and `rows`, mapped, checked before anything of it leaves."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import CorruptLog, InvalidEvent
from ..events.arrays import DTYPES, nbytes_of
from ..events.kinds import Table
from ..events.row_keys import Keys, partitions_of
from ..events.tensorfile import Place, decode_header
from ..events.validate import ROW_KEY_BYTES

KEYS, ROWS = "keys", "rows"

PIECE_BYTES = 4 * 1024 * 1024
"""Read and handed on at a time."""

KEYS_AT_ONCE = 1 << 20


class TableFile:
    """Rows of a table on this machine. Other tensors of the file, an optimizer's state for one, are passed over."""

    def __init__(self, path: Path, definition: Table) -> None:
        """Raises `InvalidEvent` that names the file for what is no such file, or has rows of another dim or dtype than the table's."""
        self._path = path
        self._definition = definition
        data = _mapped(path)
        try:
            found = decode_header(data, str(path))
        except CorruptLog as error:
            raise InvalidEvent(error.problem, item=str(path)) from error
        keys, rows = found.get(KEYS), found.get(ROWS)
        if keys is None or rows is None or keys.dtype != "int64" or len(keys.shape) != 1:
            raise self._wrong(f"it needs the tensors {KEYS!r}, int64 of one dimension, and {ROWS!r}")
        expected = keys.shape[0], definition.dim
        if (rows.dtype, rows.shape) != (definition.dtype, expected):
            raise self._wrong(f"its rows are {rows.dtype} {rows.shape}; the table needs {definition.dtype} {expected}")
        self._keys: Keys = _array(data, keys, "int64")
        self._rows = _array(data, rows, definition.dtype).reshape(rows.shape)

    def __len__(self) -> int:
        return len(self._keys)

    def partitions(self, count: int) -> list[int]:
        """The state partitions, of so many, that it has keys of."""
        found: set[int] = set()
        for at in range(0, len(self), KEYS_AT_ONCE):
            found.update(np.unique(partitions_of(self._keys[at : at + KEYS_AT_ONCE], count)).tolist())
            if len(found) == count:
                break
        return sorted(found)

    def pieces(self) -> Iterator[tuple[Keys, npt.NDArray[Any]]]:
        """Keys and rows in the order of the file, views of it, about `PIECE_BYTES` at a time."""
        width = ROW_KEY_BYTES + nbytes_of(self._definition.dtype, (self._definition.dim,))
        step = max(1, PIECE_BYTES // width)
        for at in range(0, len(self), step):
            yield self._keys[at : at + step], self._rows[at : at + step]

    def _wrong(self, problem: str) -> InvalidEvent:
        return InvalidEvent(
            f"{self._path} cannot be imported into table {self._definition.table!r}: {problem}", item=str(self._path)
        )


def _mapped(path: Path) -> memoryview:
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise InvalidEvent(f"{path} is empty", item=str(path))
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise InvalidEvent(f"cannot read {path}: {error.strerror}", item=str(path)) from error


def _array(data: memoryview, at: Place, dtype: str) -> npt.NDArray[Any]:
    return np.frombuffer(data[at.start : at.end], DTYPES[dtype])
