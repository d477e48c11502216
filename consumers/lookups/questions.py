"""What one look-up asks for, and where its answers go: row keys or KV keys, each with its partition and its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...errors import CorruptLog
from ...events.digest import partition_of
from ...events.row_keys import Keys
from ...transport.lookups import (
    MAX_ANSWER_BYTES,
    MAX_KEYS,
    AnyAnswer,
    FoundEntries,
    FoundRows,
    GetEntries,
    LookUp,
    Need,
    encode_frame,
)
from .answers import KEY, read_entries, read_rows

Places = npt.NDArray[np.int64]
"""Indices of keys in the order of the look-up, ascending."""

FIRST_ROWS = 1024
"""Asked for at first where nobody has told yet how large a row is."""

KEYS_BYTES = 512 * 1024
"""Of KV keys in one question."""


class Question(Protocol):
    """One look-up's keys and what was found for them. Its caller's thread only."""

    partitions: Places
    """The state partition of each key."""

    @property
    def what(self) -> str:
        """For errors."""
        ...

    def cut(self, places: Places) -> tuple[Places, Places]:
        """(what one more question may ask for, the rest)."""
        ...

    def frame(
        self, number: int, topic: int, numbers: tuple[int, ...], needs: tuple[Need, ...], wait_s: float, places: Places
    ) -> bytes: ...

    def take(self, answer: AnyAnswer, bulk: memoryview, places: Places) -> int:
        """Of how many of the first `places` the answer tells. Raises `CorruptLog` where it is none to this question."""
        ...


class RowsQuestion:
    """Rows of a table."""

    def __init__(self, table: str, keys: Keys, partitions: Places, like: npt.NDArray[Any] | None) -> None:
        """`partitions`: of each key. `like`: an array (0, dim) of the table's dtype, where that is known."""
        self._table = table
        self.partitions = partitions
        self._keys = keys.astype(KEY, copy=False)
        self._found = np.zeros(len(keys), np.bool_)
        self._values = None if like is None else np.empty((len(keys), like.shape[1]), like.dtype)

    @property
    def what(self) -> str:
        return f"the rows of table {self._table!r}"

    def result(self) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """(values (n, dim), found (n,)), once all is answered."""
        assert self._values is not None, "nothing was asked for, and nobody has told what a row is like"
        return self._values, self._found

    def cut(self, places: Places) -> tuple[Places, Places]:
        known = self._values
        most = FIRST_ROWS if known is None else MAX_ANSWER_BYTES // (known.shape[1] * known.itemsize + 1)
        most = min(max(1, most), MAX_KEYS)
        return places[:most], places[most:]

    def frame(
        self, number: int, topic: int, numbers: tuple[int, ...], needs: tuple[Need, ...], wait_s: float, places: Places
    ) -> bytes:
        keys = self._keys[_where(places)]
        return encode_frame(LookUp(number, topic, numbers, needs, wait_s, self._table), keys.view(np.uint8).data)

    def take(self, answer: AnyAnswer, bulk: memoryview, places: Places) -> int:
        if not isinstance(answer, FoundRows):
            raise CorruptLog(f"a look-up of rows was answered with {type(answer).__name__}")
        values, found = read_rows(answer, bulk, len(places))
        if self._values is None:
            self._values = np.empty((len(self._keys), answer.dim), values.dtype)
        if values.dtype != self._values.dtype or answer.dim != self._values.shape[1]:
            known = f"{self._values.shape[1]} {self._values.dtype}"
            raise CorruptLog(f"rows of {answer.dim} {answer.dtype} come where those of the table are of {known}")
        where = _where(places[: answer.count])
        self._values[where], self._found[where] = values, found
        return answer.count


class EntriesQuestion:
    """Values of KV entries: `values`, None where there is none."""

    def __init__(self, keys: Sequence[bytes], partitions: int) -> None:
        self.values: list[bytes | None] = [None] * len(keys)
        self.partitions = np.fromiter((partition_of(key, partitions) for key in keys), np.int64, len(keys))
        self._keys = keys
        self._nbytes = np.fromiter(map(len, keys), np.int64, len(keys))

    @property
    def what(self) -> str:
        return f"the entry of {self._keys[0][:64]!r}" if len(self._keys) == 1 else f"{len(self._keys)} entries"

    def cut(self, places: Places) -> tuple[Places, Places]:
        ends = np.cumsum(self._nbytes[places[:MAX_KEYS]])
        most = max(1, int(np.searchsorted(ends, KEYS_BYTES, "right")))
        return places[:most], places[most:]

    def frame(
        self, number: int, topic: int, numbers: tuple[int, ...], needs: tuple[Need, ...], wait_s: float, places: Places
    ) -> bytes:
        some: list[int] = places.tolist()
        keys = tuple(self._keys[place] for place in some)
        return encode_frame(GetEntries(number, topic, numbers, needs, wait_s, keys))

    def take(self, answer: AnyAnswer, bulk: memoryview, places: Places) -> int:
        if not isinstance(answer, FoundEntries):
            raise CorruptLog(f"a look-up of entries was answered with {type(answer).__name__}")
        values = read_entries(answer, bulk, len(places))
        for place, value in zip(places.tolist(), values, strict=False):
            self.values[place] = value
        return len(values)


def _where(places: Places) -> Places | slice:
    """The same places; as a slice, which copies faster, where they follow on each other."""
    if len(places) and int(places[-1]) - int(places[0]) + 1 == len(places):
        return slice(int(places[0]), int(places[-1]) + 1)
    return places
