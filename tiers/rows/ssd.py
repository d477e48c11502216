"""Rows on SSD: the files that a table's rows lie in, and where in them.

An address says which file and which slot. All rows of a file have state of one *generation*: since an alter to another kind of
optimizer they have none that counts, so new ones go to another file, and the older file goes with its last row. Which row is where
stands in the table's index alone: the files are no truth over restarts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..budget import Budget
from .batch import RowBatch, empty_batch
from .slot_file import SlotFile, Storage
from .slots import SlotLayout
from .spec import RowSpec

_SLOT_BITS: Final = 40
"""Of an address: a million million slots a file, and eight million files."""
_SLOT_MASK: Final = (1 << _SLOT_BITS) - 1

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Reading:
    """A read that has begun, and what the table was then."""

    spec: RowSpec
    generation: int
    initial_state: float
    files: Mapping[int, SlotFile]
    turns: list[tuple[SlotFile, int]]


@dataclass(frozen=True, slots=True)
class ColdRead:
    """Rows that were found to be cold, and a read of them that has begun."""

    places: Ints
    """Where they stand among the keys that were looked for."""
    owner: Ints
    """For each of these places, which of `keys` stands there."""
    keys: Ints
    """Without repeats."""
    addresses: Ints
    """Theirs."""
    reading: Reading


class SsdRows:
    """The rows of one table that lie on SSD. Thread-safe. Holds no lock while the disk works."""

    def __init__(self, spec: RowSpec, create: Callable[[], Storage], dram: Budget) -> None:
        """`create` makes an empty file; none is made before the first row comes. Notes about slots are charged to `dram`."""
        self._spec = spec
        self._create = create
        self._dram = dram
        self._lock = threading.Lock()
        self._generation = 0
        self._initial_state = spec.initial_state
        """What the state of a row of an earlier generation is: as it was when the current one began, like that of rows in DRAM."""
        self._files: dict[int, SlotFile] = {}
        """By generation."""

    @property
    def nbytes(self) -> int:
        """Bytes of the files, free slots too."""
        return sum(file.nbytes for file in list(self._files.values()))

    @property
    def note_bytes(self) -> int:
        """Bytes of DRAM that are charged for notes about slots."""
        return sum(file.slots for file in list(self._files.values()))

    @property
    def rows(self) -> int:
        """Slots that hold a row: of rows that lie nowhere else, and of those that have the same bytes in DRAM."""
        return sum(file.held for file in list(self._files.values()))

    def alter(self, spec: RowSpec) -> None:
        """The table's spec is another one. With another kind of optimizer a new generation begins. Not beside `write`."""
        with self._lock:
            if spec.kind != self._spec.kind:
                self._generation += 1
                self._initial_state = spec.initial_state
            self._spec = spec
            self._drop_empty()

    def write(self, batch: RowBatch) -> Ints:
        """Writes rows of the table's spec and returns their addresses. Raises `StorageFull` with nothing kept."""
        with self._lock:
            generation = self._generation
            file = self._files.get(generation)
            if file is None:
                file = self._files[generation] = SlotFile(self._create(), SlotLayout(self._spec), self._dram)
        slots = file.take(len(batch))
        try:
            file.write(slots, file.layout.pack(batch))
        except BaseException:
            file.free(slots)
            raise
        return slots | (generation << _SLOT_BITS)

    def free(self, addresses: Ints) -> None:
        """Gives rows up, each once: they were deleted, or are newer in DRAM."""
        for generation, which in _by_file(self._files, addresses):
            self._files[generation].free(addresses[which] & _SLOT_MASK)
        if len(self._files) > 1:
            with self._lock:
                self._drop_empty()

    def shrink(self) -> int:
        """Gives free slots at the files' ends back to the disk, as `SlotFile.shrink`. Returns bytes."""
        return sum(file.shrink() for file in list(self._files.values()))

    def begin_read(self) -> Reading:
        """Whatever is at an address now stays there, unchanged, until `end_read`."""
        with self._lock:
            turns = [(file, file.begin_read()) for file in self._files.values()]
            return Reading(self._spec, self._generation, self._initial_state, self._files.copy(), turns)

    def end_read(self, reading: Reading) -> None:
        """Ends what `begin_read` began, once."""
        for file, turn in reading.turns:
            file.end_read(turn)

    def read(self, reading: Reading, addresses: Ints, keys: Ints) -> RowBatch:
        """The rows of `keys` at `addresses`, in that order, as the table was when the reading began.

        State of an earlier generation starts anew. Raises `CorruptTier`, naming file, slots and keys.
        """
        current, batch = reading.generation, empty_batch(reading.spec, len(keys))
        batch.keys[:] = keys
        for generation, which in _by_file(reading.files, addresses):
            file = reading.files[generation]
            rows = file.layout.unpack(file.read(addresses[which] & _SLOT_MASK, keys[which]))
            if len(rows) == len(keys) and generation == current:
                return rows
            batch.values[which] = rows.values
            batch.positions[which] = rows.positions
            batch.state[which] = rows.state if generation == current else reading.initial_state
        return batch

    def as_now(self, batch: RowBatch, reading: Reading) -> RowBatch:
        """Rows that `read` gave, as they are now: the table may have been altered since the reading began. Not beside `alter`."""
        with self._lock:
            if reading.generation == self._generation:
                return batch
            state = np.full((len(batch), self._spec.state_width), self._initial_state, self._spec.accumulate_dtype)
            return replace(batch, state=state, kind=self._spec.kind)

    def clear(self) -> None:
        """Removes all files; each is there until the reads that had begun have ended. Not beside `write`."""
        with self._lock:
            files, self._files = self._files, {}
            self._generation += 1
        for file in files.values():
            file.close()

    def _drop_empty(self) -> None:
        """Under the lock."""
        for generation in [each for each in self._files if each < self._generation]:
            if not self._files[generation].used:
                self._files.pop(generation).close()


def _by_file(files: Mapping[int, SlotFile], addresses: Ints) -> list[tuple[int, NDArray[np.bool_] | slice]]:
    """Which addresses are of which file."""
    if not len(addresses):
        return []
    if len(files) == 1:
        return [(next(iter(files)), slice(None))]
    generations = addresses >> _SLOT_BITS
    return [(generation, generations == generation) for generation in np.unique(generations).tolist()]
