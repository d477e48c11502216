"""The KV entries of one state partition, under rule 3 of the design: every entry carries the position that wrote it.

Who may do what: one thread applies (`put`, `delete`, `remove_expired`, `restore`, `clear`); any number of threads read (`get`). A
reader takes no lock and never sees a half-changed entry: an `Entry` is immutable, the table is one dict from key to entry, and a
change of a key is one assignment or one removal in that dict, which Python makes atomic. Index and budget are the applier's alone;
a reader does not look at them.

Where the store has an ssd tier, *values* move, on any thread: `evict` puts those that were not used lately on SSD, `read` brings one
back. Key, position and deadline stay in memory, so that neither order, nor expiry, nor undo knows where a value lies. A move
replaces an entry by an equal one under `_moves`, a lock that is held for no I/O and no charge that could wait, and never touches the key
that is just being changed. Who leaves is chosen by CLOCK: a queue of keys in the order in which their values came, where one that was
used since it stood last is sent to the end once more. That needs one set insertion for a read, as against a reordering for LRU.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final, NamedTuple

from sortedcontainers import SortedList

from ..errors import CorruptTier
from .blobs import BLOB_OVERHEAD_BYTES, Blob
from .budget import Budget
from .spill import Spill

ENTRY_OVERHEAD_BYTES: Final = 256
"""Charged for each entry beside key and value: dict place, entry, headers of key, value and numbers (measured on Python 3.11,
64-bit, 200,000 entries: 230)."""

DEADLINE_OVERHEAD_BYTES: Final = 112
"""Charged beside that for an entry with a deadline: its place in the sorted index, and the number (measured: 101)."""

VALID_FOR_OVERHEAD_BYTES: Final = 120
"""Charged beside that for an entry tied to a version: the pair and its two numbers."""

LEAST_SPILLED_BYTES: Final = 1024
"""Values below that stay in DRAM: little would be won, since what says where they lie takes DRAM too."""

MOVED_OVERHEAD_BYTES: Final = 80
"""Charged beside that for an entry that may move: its places in the queue and among the keys used (measured: 50 to 75)."""


_SPARE_PLACES: Final = 64
"""How much longer than needed the queue may become before it is made anew."""


class Entry(NamedTuple):
    """One value. Immutable, so a reader may keep it for as long as it likes."""

    stored: bytes | Blob
    """The value, or where it lies on SSD."""
    position: int
    """The position of the event that wrote it."""
    deadline: int | None = None
    """Nanoseconds of sequencing time: hidden once this has come, removed by the first event stamped at or past it."""
    valid_for: tuple[int, int] | None = None
    """(version, position of its commit or 0) that the writer tied the entry to, for whoever serves it to judge; the table only
    keeps it."""

    @property
    def value(self) -> bytes:
        """The value, read from SSD where it lies there. Raises `CorruptTier` where that fails: no other bytes are ever given."""
        return self.stored if isinstance(self.stored, bytes) else self.stored.read()

    @property
    def nbytes(self) -> int:
        """Of the value, wherever it lies."""
        return len(self.stored) if isinstance(self.stored, bytes) else self.stored.nbytes

    @property
    def dram_bytes(self) -> int:
        """What the value takes of DRAM."""
        return len(self.stored) if isinstance(self.stored, bytes) else BLOB_OVERHEAD_BYTES


class EntryTable:
    """Keys and entries of one partition, with those that end in time in an index sorted by (deadline, key)."""

    def __init__(self, budget: Budget, spill: Spill | None = None) -> None:
        """An empty table that charges `budget` for what it holds. Values may leave through `spill`; without one they all stay."""
        self._budget = budget
        self._spill = spill
        self._moves = threading.Lock()
        self._evicting = threading.Lock()
        """Whoever needs room waits for what another thread is just moving down."""
        self._changing: bytes | None = None
        """The key whose charge is under way: it does not move meanwhile."""
        self._queue = deque[bytes]()
        """Keys whose values may leave, the next one first; some that are gone, or stand here twice."""
        self._used = set[bytes]()
        """Keys that were read since they stood first in the queue."""
        self._entries: dict[bytes, Entry] = {}
        self._deadlines: SortedList[tuple[int, bytes]] = SortedList()
        self._nbytes = 0
        self._changed: dict[bytes, None] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of DRAM charged: keys, values that are not on SSD, and overheads of all entries not removed."""
        return self._nbytes

    def __len__(self) -> int:
        """Entries not removed, hidden ones included."""
        return len(self._entries)

    def get(self, key: bytes, now: int) -> Entry | None:
        """The entry under `key`, or None where there is none, or where its deadline is at or before `now` (ns). Any thread."""
        entry = self._entries.get(key)
        if entry is None or (entry.deadline is not None and entry.deadline <= now):
            return None
        if self._spill is not None:
            self._used.add(key)
        return entry

    def read(self, key: bytes, entry: Entry) -> bytes:
        """The value of an entry that `get` has just given. Any thread; one on SSD is read with no lock held, and comes back to DRAM where
        that has room without another value leaving.

        Raises `CorruptTier`, naming the key, where SSD does not give it: the entry stays as it is, until it is written again.
        """
        if isinstance(entry.stored, bytes):
            return entry.stored
        assert self._spill is not None
        try:
            value = entry.value
        except CorruptTier as error:
            error.item, error.position = repr(key[:64]), entry.position
            self._spill.read_failed(error)
            raise
        self._spill.count(read=1)
        if self._move(key, entry, entry._replace(stored=value)):
            self._spill.count(promoted=1)
        return value

    def refill(self, key: bytes, entry: Entry, value: bytes) -> None:
        """Has `value`, which is that of `entry`, in the place of a blob that could not be read, if the entry still stands. Any thread."""
        if self._spill is not None and not self._move(key, entry, entry._replace(stored=value)):
            blob = self._spill.put(value)
            if blob is not None:
                self._move(key, entry, entry._replace(stored=blob))

    def evict(self, nbytes: int) -> int:
        """Moves values that were not read lately to SSD, until `nbytes` of DRAM are given back or no more can go. Returns bytes.

        Any thread. Blocks for the disk, with no lock held meanwhile. A value that cannot be moved stays where it is.
        """
        with self._evicting:
            return self._evict(nbytes)

    def _evict(self, nbytes: int) -> int:
        spill, given = self._spill, 0
        for _ in range(len(self._queue)):  # One that cannot go now comes up again, in another call.
            key = self._next() if given < nbytes else None
            if key is None or spill is None:
                break
            entry = self._entries.get(key)
            if entry is None or not _may_leave(entry):
                continue
            assert isinstance(entry.stored, bytes)
            blob = spill.put(entry.stored)
            if blob is not None and self._move(key, entry, entry._replace(stored=blob)):
                spill.count(demoted=1)
                given += entry.dram_bytes - BLOB_OVERHEAD_BYTES
                continue
            # Its turn comes again. Where it was changed meanwhile, what stands there now may leave too.
            with self._moves:
                self._queue.append(key)
            if blob is None:
                break
        return given

    def items(self) -> list[tuple[bytes, Entry]]:
        """All entries not removed, hidden ones included, sorted by key: what a digest covers. Of one moment, on any thread."""
        return sorted(self._entries.copy().items(), key=_by_key)

    def keys(self) -> list[bytes]:
        """All keys of one moment, in no order, hidden ones included. Any thread."""
        return list(self._entries)

    def held(self, key: bytes) -> Entry | None:
        """The entry under `key`, hidden or not. Any thread."""
        return self._entries.get(key)

    def put(self, key: bytes, entry: Entry) -> Entry | None:
        """Writes `entry`, if its position is above that of the one held. Returns what was held before, hidden or not.

        Where the position is not above, nothing changes and the entry held is returned just the same: handed to `restore`, the
        result leads back to the state before the call in both cases. A deadline of the entry before ends with it. Raises
        `StorageFull`, with nothing changed, if the budget has no room.
        """
        held = self._hold(key)
        try:
            if held is None or entry.position > held.position:
                self._replace(key, held, entry, forced=False)
        finally:
            self._changing = None
        return held

    def delete(self, key: bytes, position: int) -> Entry | None:
        """Removes the entry under `key`, if `position` is above its own. Returns what was held before, as `put` does.

        No trace of a removal is kept: a partition is applied in order, so an older `put` only comes back in a replay that repeats
        this `delete` as well.
        """
        held = self._hold(key)
        if held is not None and position > held.position:
            self._replace(key, held, None, forced=False)
        self._changing = None
        return held

    def remove_expired(self, time: int) -> list[tuple[bytes, Entry]]:
        """Removes every entry whose deadline is at or before `time`, the stamp (ns) of an event or epoch record being applied.

        Returns them, for undo, in order of (deadline, key), so that all replicas remove the same in the same order. Costs the
        number removed, not the number held.
        """
        due = list(self._deadlines.irange(maximum=(time + 1, b""), inclusive=(True, False)))
        removed: list[tuple[bytes, Entry]] = []
        for _, key in due:
            entry = self._hold(key)
            assert entry is not None
            self._replace(key, entry, None, forced=False)
            removed.append((key, entry))
        return removed

    def restore(self, key: bytes, entry: Entry | None) -> None:
        """Puts back what `put`, `delete` or `remove_expired` reported, whatever the positions; None: there was nothing.

        Undo steps are restored in the reverse of their order. Never refused: the budget is charged even past its limit.
        """
        self._replace(key, self._hold(key), entry, forced=True)

    def changed(self) -> list[bytes]:
        """The keys written, removed or put back since the last call, in the order of their first change: what a write-back has not
        seen. None is noted before the first call. With nothing applied meanwhile (under the lock that holds the applier off).
        """
        changed, self._changed = self._changed, {}
        return list(changed or ())

    def clear(self) -> None:
        """Removes all entries, and gives their bytes back."""
        if self._changed is not None:
            self._changed.update(dict.fromkeys(self._entries))
        with self._moves:
            self._entries.clear()
            self._deadlines.clear()
            self._queue.clear()
            self._used.clear()
            nbytes, self._nbytes = self._nbytes, 0
        self._budget.refund(nbytes)

    def _hold(self, key: bytes) -> Entry | None:
        """What is held under `key`, which does not move from here on until `_changing` is another one."""
        if self._spill is not None:
            with self._moves:
                self._changing = key
        return self._entries.get(key)

    def _replace(self, key: bytes, held: Entry | None, entry: Entry | None, *, forced: bool) -> None:
        """Changes one key from `held` to `entry`. The charge comes first, since only it can fail."""
        growth = self._charged_bytes(key, entry) - self._charged_bytes(key, held)
        if growth > 0:
            self._budget.charge(growth, forced=forced)
        if held is not None and held.deadline is not None:
            self._deadlines.remove((held.deadline, key))
        with self._moves:
            if entry is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = entry
            self._nbytes += growth
            if self._spill is not None:
                self._changing = None
                self._enqueue(key, held, entry)
        if entry is not None and entry.deadline is not None:
            self._deadlines.add((entry.deadline, key))
        if growth < 0:
            self._budget.refund(-growth)
        if self._changed is not None:
            self._changed[key] = None

    def _move(self, key: bytes, entry: Entry, moved: Entry) -> bool:
        """Has the value of `entry` where `moved` has it, if `entry` still stands. Up only where DRAM has room without more ado."""
        growth = moved.dram_bytes - entry.dram_bytes
        with self._moves:
            if key == self._changing or self._entries.get(key) is not entry:
                return False
            if growth > 0 and not self._budget.charge_if_low(growth):
                return False
            self._entries[key] = moved
            self._nbytes += growth
            self._enqueue(key, entry, moved)
        if growth < 0:
            self._budget.refund(-growth)
        return True

    def _enqueue(self, key: bytes, held: Entry | None, entry: Entry | None) -> None:
        """Under the lock: `key` was changed. Its value stands in the queue if it may leave, for as long as it may."""
        if entry is None:
            self._used.discard(key)
        elif _may_leave(entry) and (held is None or not _may_leave(held)):
            self._queue.append(key)
            if len(self._queue) > 2 * len(self._entries) + _SPARE_PLACES:
                self._queue = deque(k for k in dict.fromkeys(self._queue) if k in self._entries)

    def _next(self) -> bytes | None:
        """The key whose turn it is to leave, taken out of the queue."""
        with self._moves:
            for _ in range(len(self._queue) + 1):  # The first one again where all were used.
                key = self._queue.popleft() if self._queue else None
                if key is None or key not in self._used:
                    return key
                self._used.discard(key)
                self._queue.append(key)
        return None

    def _charged_bytes(self, key: bytes, entry: Entry | None) -> int:
        if entry is None:
            return 0
        overhead = ENTRY_OVERHEAD_BYTES + (0 if entry.deadline is None else DEADLINE_OVERHEAD_BYTES)
        overhead += 0 if entry.valid_for is None else VALID_FOR_OVERHEAD_BYTES
        overhead += 0 if self._spill is None else MOVED_OVERHEAD_BYTES
        return len(key) + entry.dram_bytes + overhead


def _may_leave(entry: Entry) -> bool:
    return isinstance(entry.stored, bytes) and len(entry.stored) >= LEAST_SPILLED_BYTES


def _by_key(item: tuple[bytes, Entry]) -> bytes:
    return item[0]
