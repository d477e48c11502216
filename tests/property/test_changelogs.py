"""Changelogs under writers that come, go and fall behind: whoever restores gets the state of the log, always."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from fakes.changelogs import FakeChangelog, FakeChangelogs, Stored
from paramstream.consistency.vector import EMPTY
from paramstream.consumers.changelog.core import Batch, ChangelogCore, Held
from paramstream.consumers.changelog.records import entry_record, marker_record, read_record
from paramstream.consumers.changelog.seeding import seed_of
from paramstream.errors import Fenced, OutcomeUnknown
from paramstream.tiers.budget import Budget
from paramstream.tiers.entries import Entry, EntryTable
from paramstream.transport.calls import TopicRecord

RECORD = TopicRecord("model", 7, 1, "write_back", 8)
PARTITION = (7, 0)
KEYS = [b"k%d" % n for n in range(12)]

Op = tuple[bytes, bytes | None]


@dataclass
class Replica:
    """Applies a log, and writes back what is dirty."""

    log: list[Op]
    table: EntryTable = field(default_factory=lambda: EntryTable(Budget(1 << 30)))
    position: int = 0
    core: ChangelogCore | None = None
    changelog: FakeChangelog | None = None

    def apply(self, until: int) -> None:
        for at in range(self.position + 1, until + 1):
            key, value = self.log[at - 1]
            if value is None:
                self.table.delete(key, at)
            else:
                self.table.put(key, Entry(value, at))
        self.position = max(self.position, until)

    def open(self, changelogs: FakeChangelogs) -> None:
        self.changelog = changelogs.open(PARTITION, "model", 1)
        self.changelog.open_writer()
        held = Held()
        for record in self.changelog.read():
            held.take(read_record(record, "here"))
        self.core = ChangelogCore(held)

    def flush(self, random: Random, *, waits: bool = True) -> None:
        """One write, of some of what is dirty; the log moves on between looking up and marking."""
        core, changelog = self.core, self.changelog
        assert core is not None and changelog is not None
        if waits and not core.may_flush(self.position):
            return
        changed = self.table.changed()
        core.compare(self.table.items())
        core.begin(changed, self.position)
        batch = core.next_batch(random.randrange(1, 8))
        looked_up = [entry_record(key, self.table.held(key)) for key in batch.keys]
        self.apply(min(len(self.log), self.position + random.randrange(3)))
        marked = core.marker(batch, self.position, EMPTY)
        self.apply(min(len(self.log), self.position + random.randrange(3)))
        changelog.write([*looked_up, marker_record(marked)])
        core.written(batch, marked)


def state_at(log: list[Op], position: int) -> dict[bytes, bytes]:
    state = dict[bytes, bytes]()
    for key, value in log[:position]:
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value
    return state


def check_restores(changelogs: FakeChangelogs, log: list[Op]) -> None:
    """Restored from the changelog and the log behind its floor, at every position from its ceiling on."""
    seed = seed_of(changelogs, RECORD, [0])
    for state in seed.state:
        table = EntryTable(Budget(1 << 30))
        for key, entry in state.entries():
            table.put(key, entry)
        replica = Replica(log, table, position=state.floor)
        replica.apply(state.ceiling)
        assert replica.position == state.ceiling <= len(log)
        for position in range(state.ceiling, len(log) + 1):
            replica.apply(position)
            assert {key: entry.value for key, entry in table.items()} == state_at(log, position)


def play(seed: int, *, waits: bool = True, steps: int = 120) -> None:
    random = Random(seed)
    log: list[Op] = []
    changelogs = FakeChangelogs(lambda: random.choice([None, None, None, None, True, False]))
    stored = changelogs.stored.setdefault(PARTITION, Stored())
    replicas = [Replica(log) for _ in range(3)]
    for _ in range(steps):
        replica = random.choice(replicas)
        match random.randrange(8):
            case 0 | 1 | 2:
                log.append((random.choice(KEYS), random.choice([None, b"%d" % len(log), b"%d" % len(log)])))
            case 3:
                replica.apply(random.randrange(replica.position, len(log) + 1))
            case 4:
                replica.open(changelogs)
            case 5:
                stored.compact(tombstones=random.random() < 0.5)
            case _ if replica.core is not None:
                try:
                    replica.flush(random, waits=waits)
                except (OutcomeUnknown, Fenced):
                    replica.core = None
            case _:
                pass
        if replica.core is not None and random.random() < 0.3:
            check_restores(changelogs, log)
    check_restores(changelogs, log)


def test_a_restore_from_changelogs_is_the_state_of_the_log() -> None:
    for seed in range(150):
        play(seed)


def test_a_writer_that_is_behind_and_does_not_wait_would_be_seen() -> None:
    with pytest.raises(AssertionError):
        for seed in range(100):
            play(seed, waits=False)


def test_nothing_dirty_is_forgotten_by_a_flush_in_parts() -> None:
    core = ChangelogCore(Held())
    core.compare([(key, Entry(b"", 1)) for key in KEYS])
    core.begin((), 5)
    first = core.next_batch(8)
    assert first == Batch(KEYS[:8], is_last=False)
    core.written(first, core.marker(first, 6, EMPTY))
    assert (core.floor, core.ceiling) == (0, 6)
    core.begin([KEYS[0]], 7)
    second = core.next_batch(8)
    assert second == Batch(KEYS[8:], is_last=True)
    core.written(second, core.marker(second, 8, EMPTY))
    assert (core.floor, core.ceiling, core.is_dirty) == (5, 8, True)
