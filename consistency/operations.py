"""The writes and reads of a history as columns, ready to be checked.

Operations have ids from 0 on; those of one process follow each other, in its order. So "before it in its process" is `<` between
ids of one process, and a *past* is one id for each process that writes: the first one that is not in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from .history import Line, Lost, Operation, Read, Scalar, Write, bad_line

Ids: TypeAlias = npt.NDArray[np.int64]
"""Ids of operations, processes or keys."""

Bounds: TypeAlias = npt.NDArray[np.int32]
"""Pasts, of which there are many: a row each, a column for each process that writes."""

Bools: TypeAlias = npt.NDArray[np.bool_]

INITIAL = -1
"""The source of a read that saw the initial value, and of a write."""

NOBODY = -2
"""The source of a read of a value that nobody wrote."""


@dataclass(frozen=True, slots=True)
class OperationLine:
    """One operation as its file tells it."""

    process: str
    op: str
    """"w" or "r"."""
    key: str
    value: Scalar | None
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Labels:
    """What users call things, by id; where each operation stands in its file."""

    processes: list[str]
    keys: list[str]
    values: list[Scalar | None]
    files: list[str]
    places: list[tuple[int, int]]
    """For each operation the number of its file in `files`, and its line."""


@dataclass(frozen=True, slots=True)
class Operations:
    """Columns over n operations of k processes."""

    labels: Labels
    label: Ids
    """Shape (n,): the operation's id in `labels`."""
    starts: Ids
    """Shape (k + 1,): the ids of process p are `starts[p]` up to, without, `starts[p + 1]`."""
    process: Ids
    """Shape (n,)."""
    key: Ids
    """Shape (n,)."""
    is_write: Bools
    """Shape (n,)."""
    source: Ids
    """Shape (n,): for a read the id of the write that it saw, or `INITIAL`, or `NOBODY`."""

    def __len__(self) -> int:
        return len(self.process)

    def line(self, operation: int) -> OperationLine:
        labels, label = self.labels, int(self.label[operation])
        file, line = labels.places[label]
        return OperationLine(
            process=labels.processes[int(self.process[operation])],
            op="w" if self.is_write[operation] else "r",
            key=labels.keys[int(self.key[operation])],
            value=labels.values[label],
            file=labels.files[file],
            line=line,
        )

    def restricted(self, keep: Iterable[int]) -> Operations:
        """Only the operations of `keep`, under new ids, without reads of writes that are left out."""
        chosen = np.zeros(len(self), np.bool_)
        chosen[np.fromiter(keep, np.int64)] = True
        chosen &= (self.source < 0) | chosen[np.maximum(self.source, 0)]
        ids = np.flatnonzero(chosen)
        new_id = np.cumsum(chosen) - 1
        source = self.source[ids]
        return Operations(
            labels=self.labels,
            label=self.label[ids],
            starts=np.searchsorted(ids, self.starts),
            process=self.process[ids],
            key=self.key[ids],
            is_write=self.is_write[ids],
            source=_renamed(source, new_id),
        )


def _renamed(source: Ids, new_id: Ids) -> Ids:
    return np.where(source < 0, source, new_id[np.maximum(source, 0)])


class OperationsBuilder:
    """Takes the operations of histories, line by line; those of one process in its order, processes mixed as they come."""

    def __init__(self) -> None:
        self._processes: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self._files: list[str] = []
        self._rows: list[tuple[int, int, bool]] = []
        """Process, key, whether it is a write."""
        self._items: list[object] = []
        """Key and value, equal only for equal JSON values."""
        self._values: list[Scalar | None] = []
        self._places: list[tuple[int, int]] = []
        self._writes: dict[object, int] = {}
        """Item → its write."""
        self._lost: set[object] = set()
        self._writers: list[tuple[int, str]] = []
        """Reads that name who wrote what they saw."""

    def add_file(self, path: str | os.PathLike[str]) -> None:
        """The lines that come next are of this file."""
        self._files.append(os.fspath(path))

    def add(self, number: int, line: Operation) -> None:
        """The operation on line `number`. Raises `InvalidHistory` for a second write of one value to one key."""
        key = self._keys.setdefault(line.key, len(self._keys))
        item = (key, line.value) if line.value.__class__ is not bool else (key, line.value, bool)
        if isinstance(line, Lost):
            self._lost.add(item)
            return
        process = self._processes.setdefault(line.process, len(self._processes))
        place = len(self._files) - 1, number
        if isinstance(line, Write):
            first = self._writes.setdefault(item, len(self._rows))
            if first != len(self._rows):
                self._refuse_second_write(first, place, line)
        elif line.writer is not None:
            self._writers.append((len(self._rows), line.writer))
        self._rows.append((process, key, isinstance(line, Write)))
        self._items.append(item)
        self._values.append(line.value)
        self._places.append(place)

    def build(self) -> Operations:
        """All operations that were added, without what was declared lost, and without reads from writers that were not recorded."""
        unknown = {at for at, writer in self._writers if writer not in self._processes}
        kept = (
            [at for at, item in enumerate(self._items) if item not in self._lost and at not in unknown]
            if self._lost or unknown
            else None
        )
        rows = np.array(self._rows, np.int64).reshape(-1, 3)
        sources = np.fromiter(map(self._source_of, range(len(rows))), np.int64, len(rows))
        order = np.argsort(rows[:, 0], kind="stable")
        new_id = np.empty(len(rows), np.int64)
        new_id[order] = np.arange(len(rows))
        source = sources[order]
        whole = Operations(
            labels=self._labels(order.tolist()),
            label=np.arange(len(rows)),
            starts=np.searchsorted(rows[order, 0], np.arange(len(self._processes) + 1)),
            process=rows[order, 0],
            key=rows[order, 1],
            is_write=rows[order, 2].astype(np.bool_),
            source=_renamed(source, new_id),
        )
        return whole if kept is None else whole.restricted(new_id[kept].tolist())

    def _labels(self, order: list[int]) -> Labels:
        return Labels(
            list(self._processes),
            list(self._keys),
            [self._values[at] for at in order],
            self._files,
            [self._places[at] for at in order],
        )

    def _source_of(self, at: int) -> int:
        if self._rows[at][2] or self._values[at] is None:
            return INITIAL
        return self._writes.get(self._items[at], NOBODY)

    def _refuse_second_write(self, first: int, place: tuple[int, int], line: Write) -> None:
        file, number = self._places[first]
        raise bad_line(
            self._files[place[0]],
            place[1],
            f"{value_text(line.value)} is written to key {line.key!r} a second time; the first is line {number} of {self._files[file]}",
            "Give each write to one key a value of its own, so that a read tells which write it saw",
        )


def value_text(value: Scalar | None) -> str:
    """As it stands in a file, on one line that can be shown."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


def name_text(name: str) -> str:
    """A process or key in text: itself, or as it stands in a file where it has characters that no line can show."""
    return name if name.isprintable() else json.dumps(name)


def operations_of(lines: Iterable[Line]) -> Operations:
    """The operations of one history that is in memory, numbered by their place in `lines`; other lines are passed over."""
    builder = OperationsBuilder()
    builder.add_file("history")
    for number, line in enumerate(lines, 1):
        if isinstance(line, Write | Read | Lost):
            builder.add(number, line)
    return builder.build()


class Writers:
    """The processes that write: a past has a column for each."""

    def __init__(self, operations: Operations) -> None:
        self.processes: Ids = np.unique(operations.process[operations.is_write])
        self.starts: Ids = operations.starts[self.processes]
        """For each column the first id of its process: where nothing of it is in a past."""
        self.column: Ids = np.full(len(operations.starts) - 1, -1)
        """For each process its column, or -1."""
        self.column[self.processes] = np.arange(len(self.processes))

    def __len__(self) -> int:
        return len(self.processes)

    def empty_pasts(self, count: int) -> Bounds:
        """Shape (count, writers)."""
        return np.tile(self.starts.astype(np.int32), (count, 1))


class LastWrites:
    """Finds the last write of a key below a bound in one process, for many questions at once."""

    def __init__(self, operations: Operations) -> None:
        self._count = len(operations) + 1
        writes = np.flatnonzero(operations.is_write)
        # In front of all stands one that is below every question.
        self._codes = np.concatenate(([-1], np.sort(operations.key[writes] * self._count + writes)))

    def before(self, key: Ids | np.int64, bound: Ids | Bounds, start: Ids | np.int64) -> Ids:
        """For each question the greatest id of a write of `key` with `start` <= id < `bound`, or -1. Shapes are broadcast."""
        base = key * self._count
        found = self._codes[np.searchsorted(self._codes, base + bound) - 1] - base
        return np.where(found >= start, found, -1)
