"""The entry table against a plain dict, through any mixture of writes, replays, expiry and undo, and of moves to SSD and back."""

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from paramstream.errors import StorageFull
from paramstream.tiers.blobs import Blob, Blobs
from paramstream.tiers.budget import Budget
from paramstream.tiers.entries import (
    DEADLINE_OVERHEAD_BYTES,
    ENTRY_OVERHEAD_BYTES,
    MOVED_OVERHEAD_BYTES,
    Entry,
    EntryTable,
)
from paramstream.tiers.extents import rounded
from paramstream.tiers.spill import Spill
from paramstream.tiers.ssd import SsdFolder

KEYS = st.sampled_from([b"", b"a", b"a\x00", b"b", b"\xff"])
TIMES = st.integers(0, 30)
# Positions mostly rise, as they are applied; now and then an old one comes again in a replay.
STEPS = st.integers(-3, 4)


@dataclass
class Moment:
    """The model before one step, and what the table reported of the step."""

    entries: dict[bytes, Entry]
    images: list[tuple[bytes, Entry | None]] = field(default_factory=list[tuple[bytes, Entry | None]])


def plain(entry: Entry | None) -> Entry | None:
    """The entry with its value, wherever that lies."""
    return None if entry is None else entry._replace(stored=entry.value)


class EntryTableMachine(RuleBasedStateMachine):
    may_be_full = False
    overhead = 0
    """Charged for each entry beside what every table charges."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget(1 << 20)
        self.table = EntryTable(self.budget)
        self.model: dict[bytes, Entry] = {}
        self.past: list[Moment] = []
        self.position = 0

    def grown(self, value: bytes) -> bytes:
        return value

    def _begin(self, step: int) -> Moment:
        self.position = max(0, self.position + step)
        self.past.append(Moment(dict(self.model)))
        return self.past[-1]

    @rule(key=KEYS, value=st.binary(max_size=4), deadline=st.none() | TIMES, step=STEPS)
    def put(self, key: bytes, value: bytes, deadline: int | None, step: int) -> None:
        moment = self._begin(step)
        entry = Entry(self.grown(value), self.position, deadline)
        try:
            reported = self.table.put(key, entry)
        except StorageFull:
            assert self.may_be_full
            return
        held = self.model.get(key)
        assert plain(reported) == held
        moment.images.append((key, reported))
        if held is None or held.position < entry.position:
            self.model[key] = entry

    @rule(key=KEYS, step=STEPS)
    def delete(self, key: bytes, step: int) -> None:
        moment = self._begin(step)
        reported = self.table.delete(key, self.position)
        held = self.model.get(key)
        assert plain(reported) == held
        moment.images.append((key, reported))
        if held is not None and held.position < self.position:
            del self.model[key]

    @rule(time=TIMES)
    def expire(self, time: int) -> None:
        moment = self._begin(0)
        removed = self.table.remove_expired(time)
        due = [(e.deadline, key) for key, e in self.model.items() if e.deadline is not None and e.deadline <= time]
        assert [(key, plain(entry)) for key, entry in removed] == [(key, self.model[key]) for _, key in sorted(due)]
        moment.images.extend(removed)
        for _, key in due:
            del self.model[key]

    @rule(depth=st.integers(1, 6))
    def undo(self, depth: int) -> None:
        for _ in range(min(depth, len(self.past))):
            moment = self.past.pop()
            for key, entry in reversed(moment.images):
                self.table.restore(key, entry)
            self.model = moment.entries

    @rule()
    def clear(self) -> None:
        self.table.clear()
        self.model.clear()
        self.past.clear()

    @invariant()
    def the_table_holds_what_the_model_holds(self) -> None:
        assert [(key, plain(entry)) for key, entry in self.table.items()] == sorted(self.model.items())
        assert len(self.table) == len(self.model)

    @invariant()
    def a_reader_sees_what_is_not_hidden(self) -> None:
        for now in (0, 10, 20, 31):
            for key in (b"", b"a", b"a\x00", b"b", b"\xff", b"never"):
                held = self.model.get(key)
                hidden = held is not None and held.deadline is not None and held.deadline <= now
                assert plain(self.table.get(key, now)) == (None if hidden else held)

    @invariant()
    def exactly_what_is_held_is_charged(self) -> None:
        charged = sum(
            len(key)
            + e.dram_bytes
            + ENTRY_OVERHEAD_BYTES
            + self.overhead
            + (DEADLINE_OVERHEAD_BYTES if e.deadline is not None else 0)
            for key, e in self.table.items()
        )
        assert self.table.nbytes == self.budget.held == charged


TestEntryTable = EntryTableMachine.TestCase
TestEntryTable.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


class SpilledEntriesMachine(EntryTableMachine):
    """The same with values of up to 4 KB, a DRAM that holds three of them and an SSD that holds eight."""

    may_be_full = True
    overhead = MOVED_OVERHEAD_BYTES

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.parent = tempfile.TemporaryDirectory()
        self.folder = SsdFolder(Path(self.parent.name), 8 * 4096)
        self.budget = Budget(16_000)
        self.spill = Spill(Blobs(self.folder), self.clock)
        self.table = EntryTable(self.budget, self.spill)
        self.budget.reclaim_with(self.table.evict)

    def clock(self) -> float:
        """Every failure is long past: what could not leave is tried again each time."""
        self.now += 10.0
        return self.now

    def teardown(self) -> None:
        self.spill.blobs.close()
        self.folder.close()
        self.parent.cleanup()

    def grown(self, value: bytes) -> bytes:
        return value * 1000

    @rule(nbytes=st.sampled_from([1, 5000, 1 << 20]))
    def evict(self, nbytes: int) -> None:
        held = self.budget.held
        assert self.table.evict(nbytes) == held - self.budget.held

    @rule(key=KEYS)
    def read(self, key: bytes) -> None:
        entry = self.table.get(key, -1)
        if entry is not None:
            assert self.table.read(key, entry) == self.model[key].value

    @rule()
    def drain(self) -> None:
        """With room on SSD, nothing that may leave stays."""
        while self.table.evict(1 << 20):
            pass
        if not self.spill.error:
            assert all(isinstance(e.stored, Blob) or e.nbytes < 1024 for _, e in self.table.items())

    @invariant()
    def exactly_what_is_referred_to_is_held_on_ssd(self) -> None:
        entries = [entry for _, entry in self.table.items()]
        entries += [entry for moment in self.past for _, entry in moment.images if entry is not None]
        blobs = {id(entry.stored): entry.stored.nbytes for entry in entries if isinstance(entry.stored, Blob)}
        assert self.spill.blobs.used_bytes == sum(map(rounded, blobs.values()))
        assert self.folder.budget.held == sum(each.stat().st_size for each in tier_files(self.folder)) <= 8 * 4096


def tier_files(folder: SsdFolder) -> Iterable[Path]:
    return folder.path.glob("*.tier")


TestSpilledEntries = SpilledEntriesMachine.TestCase
TestSpilledEntries.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
