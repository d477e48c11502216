"""The KV entries of one state partition, under rule 3 of the design: every entry carries the position that wrote it.

Who may do what: one thread applies (`put`, `delete`, `remove_expired`, `restore`, `clear`); any number of threads read (`get`). A
reader takes no lock and never sees a half-changed entry: an `Entry` is immutable, the table is one dict from key to entry, and a
change of a key is one assignment or one removal in that dict, which Python makes atomic. Index and budget are the applier's alone;
a reader does not look at them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sortedcontainers import SortedList

from .budget import Budget

ENTRY_OVERHEAD_BYTES: Final = 256
"""Charged for each entry beside key and value: dict place, entry, headers of key, value and numbers (measured on Python 3.11,
64-bit, 200,000 entries: 230)."""

DEADLINE_OVERHEAD_BYTES: Final = 112
"""Charged beside that for an entry with a deadline: its place in the sorted index, and the number (measured: 101)."""

VALID_FOR_OVERHEAD_BYTES: Final = 120
"""Charged beside that for an entry tied to a version: the pair and its two numbers."""


class Entry(NamedTuple):
    """One value. Immutable, so a reader may keep it for as long as it likes."""

    value: bytes
    position: int
    """The position of the event that wrote it."""
    deadline: int | None = None
    """Nanoseconds of sequencing time: hidden once this has come, removed by the first event stamped at or past it."""
    valid_for: tuple[int, int] | None = None
    """(version, position of its commit or 0) that the writer tied the entry to, for whoever serves it to judge; the table only
    keeps it."""


class EntryTable:
    """Keys and entries of one partition, with those that end in time in an index sorted by (deadline, key)."""

    def __init__(self, budget: Budget) -> None:
        """An empty table that charges `budget` for what it holds."""
        self._budget = budget
        self._entries: dict[bytes, Entry] = {}
        self._deadlines: SortedList[tuple[int, bytes]] = SortedList()
        self._nbytes = 0
        self._changed: dict[bytes, None] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes charged: keys, values and overheads of all entries not removed."""
        return self._nbytes

    def __len__(self) -> int:
        """Entries not removed, hidden ones included."""
        return len(self._entries)

    def get(self, key: bytes, now: int) -> Entry | None:
        """The entry under `key`, or None where there is none, or where its deadline is at or before `now` (ns). Any thread."""
        entry = self._entries.get(key)
        if entry is None or (entry.deadline is not None and entry.deadline <= now):
            return None
        return entry

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
        held = self._entries.get(key)
        if held is None or entry.position > held.position:
            self._replace(key, held, entry, forced=False)
        return held

    def delete(self, key: bytes, position: int) -> Entry | None:
        """Removes the entry under `key`, if `position` is above its own. Returns what was held before, as `put` does.

        No trace of a removal is kept: a partition is applied in order, so an older `put` only comes back in a replay that repeats
        this `delete` as well.
        """
        held = self._entries.get(key)
        if held is not None and position > held.position:
            self._replace(key, held, None, forced=False)
        return held

    def remove_expired(self, time: int) -> list[tuple[bytes, Entry]]:
        """Removes every entry whose deadline is at or before `time`, the stamp (ns) of an event or epoch record being applied.

        Returns them, for undo, in order of (deadline, key), so that all replicas remove the same in the same order. Costs the
        number removed, not the number held.
        """
        due = list(self._deadlines.irange(maximum=(time + 1, b""), inclusive=(True, False)))
        removed: list[tuple[bytes, Entry]] = []
        for _, key in due:
            entry = self._entries[key]
            self._replace(key, entry, None, forced=False)
            removed.append((key, entry))
        return removed

    def restore(self, key: bytes, entry: Entry | None) -> None:
        """Puts back what `put`, `delete` or `remove_expired` reported, whatever the positions; None: there was nothing.

        Undo steps are restored in the reverse of their order. Never refused: the budget is charged even past its limit.
        """
        self._replace(key, self._entries.get(key), entry, forced=True)

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
        self._entries.clear()
        self._deadlines.clear()
        self._budget.refund(self._nbytes)
        self._nbytes = 0

    def _replace(self, key: bytes, held: Entry | None, entry: Entry | None, *, forced: bool) -> None:
        """Changes one key from `held` to `entry`. The charge comes first, since only it can fail."""
        growth = _charged_bytes(key, entry) - _charged_bytes(key, held)
        if growth > 0:
            self._budget.charge(growth, forced=forced)
        if held is not None and held.deadline is not None:
            self._deadlines.remove((held.deadline, key))
        if entry is None:
            self._entries.pop(key, None)
        else:
            self._entries[key] = entry
            if entry.deadline is not None:
                self._deadlines.add((entry.deadline, key))
        if growth < 0:
            self._budget.refund(-growth)
        self._nbytes += growth
        if self._changed is not None:
            self._changed[key] = None


def _charged_bytes(key: bytes, entry: Entry | None) -> int:
    if entry is None:
        return 0
    overhead = ENTRY_OVERHEAD_BYTES + (0 if entry.deadline is None else DEADLINE_OVERHEAD_BYTES)
    overhead += 0 if entry.valid_for is None else VALID_FOR_OVERHEAD_BYTES
    return len(key) + len(entry.value) + overhead


def _by_key(item: tuple[bytes, Entry]) -> bytes:
    return item[0]
