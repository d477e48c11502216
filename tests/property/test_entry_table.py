"""The entry table against a plain dict, through any mixture of writes, replays, expiry and undo."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from paramstream.tiers.budget import Budget
from paramstream.tiers.entries import DEADLINE_OVERHEAD_BYTES, ENTRY_OVERHEAD_BYTES, Entry, EntryTable

KEYS = st.sampled_from([b"", b"a", b"a\x00", b"b", b"\xff"])
TIMES = st.integers(0, 30)
# Positions mostly rise, as they are applied; now and then an old one comes again in a replay.
STEPS = st.integers(-3, 4)


@dataclass
class Moment:
    """The model before one step, and what the table reported of the step."""

    entries: dict[bytes, Entry]
    images: list[tuple[bytes, Entry | None]] = field(default_factory=list[tuple[bytes, Entry | None]])


class EntryTableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget(1 << 20)
        self.table = EntryTable(self.budget)
        self.model: dict[bytes, Entry] = {}
        self.past: list[Moment] = []
        self.position = 0

    def _begin(self, step: int) -> Moment:
        self.position = max(0, self.position + step)
        self.past.append(Moment(dict(self.model)))
        return self.past[-1]

    @rule(key=KEYS, value=st.binary(max_size=4), deadline=st.none() | TIMES, step=STEPS)
    def put(self, key: bytes, value: bytes, deadline: int | None, step: int) -> None:
        moment = self._begin(step)
        entry = Entry(value, self.position, deadline)
        reported = self.table.put(key, entry)
        held = self.model.get(key)
        assert reported == held
        moment.images.append((key, reported))
        if held is None or held.position < entry.position:
            self.model[key] = entry

    @rule(key=KEYS, step=STEPS)
    def delete(self, key: bytes, step: int) -> None:
        moment = self._begin(step)
        reported = self.table.delete(key, self.position)
        held = self.model.get(key)
        assert reported == held
        moment.images.append((key, reported))
        if held is not None and held.position < self.position:
            del self.model[key]

    @rule(time=TIMES)
    def expire(self, time: int) -> None:
        moment = self._begin(0)
        removed = self.table.remove_expired(time)
        due = [(e.deadline, key) for key, e in self.model.items() if e.deadline is not None and e.deadline <= time]
        assert removed == [(key, self.model[key]) for _, key in sorted(due)]
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
        assert self.table.items() == sorted(self.model.items())
        assert len(self.table) == len(self.model)

    @invariant()
    def a_reader_sees_what_is_not_hidden(self) -> None:
        for now in (0, 10, 20, 31):
            for key in (b"", b"a", b"a\x00", b"b", b"\xff", b"never"):
                held = self.model.get(key)
                hidden = held is not None and held.deadline is not None and held.deadline <= now
                assert self.table.get(key, now) == (None if hidden else held)

    @invariant()
    def exactly_what_is_held_is_charged(self) -> None:
        charged = sum(
            len(key) + len(e.value) + ENTRY_OVERHEAD_BYTES + (DEADLINE_OVERHEAD_BYTES if e.deadline is not None else 0)
            for key, e in self.model.items()
        )
        assert self.table.nbytes == self.budget.held == charged


TestEntryTable = EntryTableMachine.TestCase
TestEntryTable.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
