"""The rows that a changelog's records say there are, gathered as the records come: the last one of each key counts.

Kept are a key and a position for each record, 16 bytes; values and state go to a temporary file where there are many of them, so that a
table may be larger than memory.
"""

from __future__ import annotations

import tempfile
import weakref
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from ...errors import CorruptLog
from ...eventlog.marks import storage_error
from ...events.kinds import Table
from ...tiers.rows.batch import RowBatch
from ..definitions import spec_of
from .records import RowRecord, RowsOf

Ints = npt.NDArray[np.int64]
Positions = npt.NDArray[np.uint64]

IN_MEMORY_BYTES = 64 * 1024 * 1024
"""Of values and state of one table; more than that goes to a temporary file."""

PAGE_BYTES = 8 * 1024 * 1024
"""About how much is read back at once."""


class HeldRows:
    """Keys and positions of the rows of one table."""

    def __init__(self) -> None:
        self._keys = array("q")
        self._positions = array("Q")

    def add(self, record: RowRecord) -> None:
        self._keys.append(record.key)
        self._positions.append(record.position)

    @property
    def highest(self) -> int:
        """Of all positions."""
        return max(self._positions, default=0)

    def last(self) -> tuple[Ints, Positions]:
        """Keys in order, and the positions of their rows; without those whose last record is a tombstone."""
        keys, positions, _ = self._last()
        return keys, positions

    def _last(self) -> tuple[Ints, Positions, npt.NDArray[np.intp]]:
        """`last`, and which records they are."""
        keys, positions = np.frombuffer(self._keys, np.int64), np.frombuffer(self._positions, np.uint64)
        unique, from_end = np.unique(keys[::-1], return_index=True)
        which = len(keys) - 1 - from_end
        there = positions[which] > 0
        return unique[there], positions[which][there], which[there]

    def _places(self, which: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """The how manieth each of these records is that are no tombstones."""
        is_row = np.frombuffer(self._positions, np.uint64) > 0
        return (np.cumsum(is_row) - 1)[which]


class StoredRows(HeldRows):
    """With their values and state."""

    def __init__(self, of: RowsOf, place: str) -> None:
        super().__init__()
        self._of = of
        self._place = place
        self._data: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115 - closed by the finalizer
        """Of all records but tombstones, one behind another."""
        self._width = 0
        weakref.finalize(self, self._data.close)

    def add(self, record: RowRecord) -> None:
        if record.position:
            self._width = self._width or len(record.data)
            if len(record.data) != self._width:
                raise CorruptLog(
                    f"the changelog {self._place} has rows of table {self._of.table!r} of different lengths",
                    item=self._place,
                )
        super().add(record)
        try:
            self._data.write(record.data)
        except OSError as error:
            raise storage_error("keep rows in", Path(tempfile.gettempdir()), error) from error

    def batches(self, definition: Table) -> Iterator[RowBatch]:
        """The rows that there are, in the order of their last records. Raises `CorruptLog` where they are none of that table."""
        spec, (keys, positions, which) = spec_of(definition), self._last()
        values_nbytes = spec.dim * spec.value_dtype.itemsize
        if len(keys) and self._width != values_nbytes + spec.state_width * spec.accumulate_dtype.itemsize:
            raise CorruptLog(
                f"the changelog {self._place} has rows of {self._width} bytes, which table {self._of.table!r} does not have",
                item=self._place,
            )
        places = self._places(which)
        order = np.argsort(places)
        step = max(1, PAGE_BYTES // max(1, self._width))
        for at in range(0, len(order), step):
            some = order[at : at + step]
            data = self._read(places[some])
            values = np.ascontiguousarray(data[:, :values_nbytes]).view(spec.value_dtype)
            state = np.ascontiguousarray(data[:, values_nbytes:]).view(spec.accumulate_dtype)
            yield RowBatch(keys[some], values, state, spec.kind, positions[some])

    def _read(self, places: npt.NDArray[np.intp]) -> npt.NDArray[np.uint8]:
        """(n, bytes of a row) of what lies at these places, which are in order. What lies between them is read too, by pages."""
        found = np.empty((len(places), self._width), np.uint8)
        step = max(1, PAGE_BYTES // max(1, self._width))
        at = 0
        while at < len(places):
            first = int(places[at])
            end = int(np.searchsorted(places, first + step))
            self._data.seek(first * self._width)
            page = np.frombuffer(self._data.read((int(places[end - 1]) - first + 1) * self._width), np.uint8)
            found[at:end] = page.reshape(-1, self._width)[places[at:end] - first]
            at = end
        return found
