"""A replica that exists only for the look-ups that are answered from it: rows follow from their keys, positions are said by the test."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paramstream.consistency.vector import PartitionId
from paramstream.consumers.lookups.answers import Standing
from paramstream.errors import ParamstreamError

TOPIC = 77
TABLE = "t"
DIM = 4

Rows = npt.NDArray[np.float32]


def rows_of(keys: npt.NDArray[np.int64]) -> Rows:
    return np.outer(keys, np.arange(1, DIM + 1)).astype(np.float32)


class FakeSource:
    """A `answers.Source`. Rows with even keys are there."""

    def __init__(self, partitions: Sequence[int] = (0,)) -> None:
        self.followed = partitions
        self.positions: dict[int, int] = dict.fromkeys((*partitions, 99), 10)
        """Of the state partitions, and of the weights, which are partition 99."""
        self.lost: set[tuple[int, int]] = set()
        self.stopped: ParamstreamError | None = None
        self.undone = 0
        self.undo_while_reading = 0
        """So many reads have something taken back under them."""
        self.tables = {TABLE}
        self.entries: dict[bytes, bytes] = {}
        self.may_read = threading.Event()
        self.may_read.set()
        self.reading = threading.Event()
        """A read has begun."""
        self.reads = 0

    def partitions(self, topic: int) -> Sequence[int] | None:
        return self.followed if topic == TOPIC else None

    def standing(self, topic: int, numbers: Iterable[int]) -> Standing:
        if self.stopped is not None:
            raise self.stopped
        return Standing({n: self.positions[n] for n in numbers if n in self.positions}, self.undone)

    def is_lost(self, partition: PartitionId, position: int) -> bool:
        return (partition[1], position) in self.lost

    def table(self, topic: int, numbers: Iterable[int], name: str) -> tuple[int, str] | None:
        return (DIM, "float32") if name in self.tables else None

    def lookup(
        self, topic: int, table: str, keys: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        self._read()
        return rows_of(keys), keys % 2 == 0

    def get(self, topic: int, key: bytes) -> bytes | None:
        self._read()
        return self.entries.get(key)

    def _read(self) -> None:
        self.reads += 1
        self.reading.set()
        assert self.may_read.wait(20)
        if self.undo_while_reading:
            self.undo_while_reading -= 1
            self.undone += 1
