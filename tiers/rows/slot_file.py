"""A file of fixed slots: which are free, and how many of them are read and written at once.

The life of a slot: `take` gives it to one writer; `write` fills it once; any number read it; `free` gives it up. What was given up is
taken again only after every reader that had begun before has ended (`begin_read`, `end_read`): a slot's bytes never change under a
reader. All offsets are 64-bit.
"""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import CorruptTier, ParamstreamError, StorageFull
from ..budget import Budget
from .slots import SlotLayout, Words

_LEAST_GROWTH_BYTES: Final = 256 << 10
_MOST_GROWTH_BYTES: Final = 64 << 20
_GROWTH_SHARE: Final = 8
"""A file grows by an eighth of itself, within the two bounds."""

_SPARE_SHARE: Final = 16
"""It grows before its last slots are taken, while there is room: free slots far apart cost a write each."""

_GAP_BYTES: Final = 4096
"""Slots that lie no further apart are read in one go: a page of the disk is read in any case."""

_PIECE_BYTES: Final = 1 << 20
"""Read and written at a time at most, gaps apart."""

_WINDOW: Final = 4096
"""Slots that are looked through for free ones at a time, at least."""

Ints = NDArray[np.int64]


class Storage(Protocol):
    """What a file of a tier can do (`TierFile`)."""

    @property
    def path(self) -> Path: ...
    @property
    def nbytes(self) -> int: ...
    def reserve(self, nbytes: int) -> None: ...
    def write(self, data: memoryview, offset: int) -> None: ...
    def read_places(self, buffer: NDArray[np.uint8], begins: Ints, nbytes: Ints, offsets: Ints) -> None: ...
    def close(self) -> None: ...


class SlotFile:
    """One file of slots of one layout. Thread-safe; `write` and `read` hold no lock while the disk works."""

    def __init__(self, file: Storage, layout: SlotLayout, dram: Budget) -> None:
        """Takes over `file`, empty, and removes it at `close`. One byte a slot is charged to `dram`."""
        self.layout: Final = layout
        self._file = file
        self._dram = dram
        self._lock = threading.Lock()
        self._taken = np.zeros(0, np.bool_)
        self._free = 0
        self._next = 0
        """Where free slots are looked for: round the file, so that what is written together lies together."""
        self._reads: dict[int, int] = {}
        """Readers that have not ended, by the turn in which they began."""
        self._turn = 0
        self._given_up: deque[tuple[int, Ints]] = deque()
        """Slots that are free once nobody reads who began in that turn or before."""
        self._waiting = 0
        """How many these are."""
        self._is_closing = False

    @property
    def path(self) -> str:
        """For errors."""
        return str(self._file.path)

    @property
    def nbytes(self) -> int:
        """Bytes of the file, charged to the tier."""
        return self._file.nbytes

    @property
    def slots(self) -> int:
        """Slots that the file has."""
        return len(self._taken)

    @property
    def used(self) -> int:
        """Slots that hold something, or that somebody still reads."""
        with self._lock:
            return len(self._taken) - self._free

    @property
    def held(self) -> int:
        """Slots that were taken and not given up."""
        with self._lock:
            return len(self._taken) - self._free - self._waiting

    def take(self, count: int) -> Ints:
        """`count` slots, in the order of the file. Raises `StorageFull` with nothing taken."""
        with self._lock:
            self._settle()
            missing = count + len(self._taken) // _SPARE_SHARE - self._free
            if missing > 0:
                self._grow(missing, count - self._free)
            return self._find_free(count)

    def free(self, slots: Ints) -> None:
        """Gives slots up, each once."""
        with self._lock:
            self._given_up.append((self._turn, slots))
            self._waiting += len(slots)
            self._turn += 1
            self._settle()

    def shrink(self) -> int:
        """Gives free slots at the end of the file back to the disk. Returns bytes; 0 too where somebody is just busy with the file, so
        that whoever holds another one may call this.
        """
        if not self._lock.acquire(blocking=False):
            return 0
        try:
            slots = len(self._taken)
            end = slots - int(np.argmax(self._taken[::-1])) if self._free < slots else 0
            if end == slots or self._is_closing:
                return 0
            try:
                self._file.reserve(end * self.layout.nbytes)
            except OSError:
                return 0  # The disk does not shorten it.
            self._taken = self._taken[:end].copy()
            self._free -= slots - end
            self._next = min(self._next, max(0, end - 1))
            self._dram.refund(slots - end)
            return (slots - end) * self.layout.nbytes
        finally:
            self._lock.release()

    def begin_read(self) -> int:
        """Whatever is taken now keeps its bytes until `end_read` with the number returned."""
        with self._lock:
            self._reads[self._turn] = self._reads.get(self._turn, 0) + 1
            return self._turn

    def end_read(self, turn: int) -> None:
        """Ends one `begin_read`."""
        with self._lock:
            self._reads[turn] -= 1
            if not self._reads[turn]:
                del self._reads[turn]
            self._settle()

    def write(self, slots: Ints, words: Words) -> None:
        """Fills slots, given in the order of the file. Raises `StorageFull` where the disk refuses; what they hold then is undefined."""
        nbytes = self.layout.nbytes
        starts = np.flatnonzero(np.diff(slots, prepend=-2) != 1)
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(slots)], strict=True):
            self._file.write(words[start:end].data.cast("B"), int(slots[start]) * nbytes)

    def read(self, slots: Ints, keys: Ints) -> Words:
        """(n, words): the slots of these keys, in any order. All are verified.

        Raises `CorruptTier`, naming file, slots and keys, where some are damaged or the disk does not give them.
        """
        order = np.argsort(slots, kind="stable")
        words = np.empty((len(slots), self.layout.words), np.uint64)
        step = max(1, _PIECE_BYTES // self.layout.nbytes)
        for start in range(0, len(slots), step):
            piece = order[start : start + step]
            words[piece] = self._read_sorted(slots[piece], keys[piece])
        whole = self.layout.are_whole(words, keys)
        if not whole.all():
            raise self._damaged(slots[~whole], keys[~whole], "their bytes are not those that were written")
        return words

    def close(self) -> None:
        """Removes the file, with the last read that had begun."""
        with self._lock:
            self._is_closing = True
            self._settle()

    def _read_sorted(self, slots: Ints, keys: Ints) -> Words:
        nbytes = self.layout.nbytes
        is_start = np.diff(slots, prepend=slots[0]) * nbytes > nbytes + _GAP_BYTES
        is_start[0] = True
        starts = np.flatnonzero(is_start)
        ends = np.append(starts[1:], len(slots))
        first = slots[starts]
        spans = slots[ends - 1] - first + 1
        begins = np.cumsum(spans) - spans
        buffer = np.empty((int(spans.sum()), self.layout.words), np.uint64)
        try:
            flat = buffer.reshape(-1).view(np.uint8)
            self._file.read_places(flat, begins * nbytes, spans * nbytes, first * nbytes)
        except OSError as error:
            raise self._damaged(slots, keys, f"the disk does not give them: {error.strerror}") from error
        except ValueError as error:
            raise ParamstreamError(
                f"the store was closed while rows were read from its ssd tier: {self.path}"
            ) from error
        if len(buffer) == len(slots):
            return buffer
        run = np.cumsum(is_start) - 1
        picked: Words = buffer[begins[run] + slots - first[run]]
        return picked

    def _damaged(self, slots: Ints, keys: Ints, why: str) -> CorruptTier:
        order = np.argsort(slots)
        slots, keys = slots[order], keys[order]
        some = ", ".join(
            f"key {key} in slot {slot}" for key, slot in zip(keys[:8].tolist(), slots[:8].tolist(), strict=True)
        )
        more = f" and {len(slots) - 8} more" if len(slots) > 8 else ""
        error = CorruptTier(
            f"rows in {self.path} cannot be read: {some}{more}: {why}",
            remedy="Rows that are loaded anew are whole again, as from a snapshot; all others can be read. Check the disk",
        )
        error.keys = tuple(keys.tolist())
        return error

    # Under the lock.

    def _grow(self, wanted: int, needed: int) -> None:
        slots, nbytes = len(self._taken), self.layout.nbytes
        usual = min(max(slots // _GROWTH_SHARE, _LEAST_GROWTH_BYTES // nbytes), _MOST_GROWTH_BYTES // nbytes)
        try:
            self._grow_by(max(wanted, usual))
        except StorageFull:
            if needed > 0:
                self._grow_by(needed)

    def _grow_by(self, more: int) -> None:
        # Past the limit if need be: whoever moves rows down for the sake of DRAM must not wait for it.
        self._dram.charge(more, forced=True)
        try:
            self._file.reserve((len(self._taken) + more) * self.layout.nbytes)
        except BaseException:
            self._dram.refund(more)
            raise
        self._next = len(self._taken) if not self._free else self._next
        self._taken = np.concatenate((self._taken, np.zeros(more, np.bool_)))
        self._free += more

    def _find_free(self, count: int) -> Ints:
        """There are as many."""
        found: list[Ints] = []
        missing = count
        while missing:
            window = self._taken[self._next : self._next + max(_WINDOW, 4 * missing)]
            here = np.flatnonzero(~window)[:missing]
            window[here] = True
            found.append(here + self._next)
            missing -= len(here)
            passed = len(window) if missing else int(here[-1]) + 1
            self._next = (self._next + passed) % len(self._taken)
        self._free -= count
        return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)

    def _settle(self) -> None:
        if self._is_closing:
            if not self._reads:
                self._file.close()
                self._dram.refund(len(self._taken))
                self._taken = self._taken[:0]
            return
        oldest = min(self._reads, default=self._turn)
        while self._given_up and self._given_up[0][0] < oldest:
            slots = self._given_up.popleft()[1]
            self._taken[slots] = False
            self._free += len(slots)
            self._waiting -= len(slots)
