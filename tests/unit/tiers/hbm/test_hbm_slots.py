"""Tests of who lies in which slot, against the plainest model: any sequence of steps keeps what is pinned and finds what is ready."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from numpy.typing import NDArray

from paramstream.tiers.hbm.slots import Slots

PER_PAGE = 4
keys = st.lists(st.integers(0, 15), min_size=1, max_size=6, unique=True)


def ints(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, np.int64)


class SlotSteps(RuleBasedStateMachine):
    """`content`: what a reader of each slot would see; `ready`: what look-ups have to find."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots(PER_PAGE)
        self.pages: set[int] = set()
        self.content: dict[int, int] = {}
        self.ready: dict[int, int] = {}
        self.coming: dict[int, int] = {}
        self.lost: list[int] = []
        self.pinned: list[tuple[NDArray[np.int64], list[int]]] = []

    @precondition(lambda self: len(self.pages) < 4)
    @rule()
    def add_page(self) -> None:
        page = self.slots.add_page()
        assert page not in self.pages
        self.pages.add(page)

    @rule()
    def remove_page(self) -> None:
        page = self.slots.remove_page()
        if page is None:
            return
        self.pages.remove(page)
        gone = range(page * PER_PAGE, (page + 1) * PER_PAGE)
        in_use = {slot for slots, _ in self.pinned for slot in slots.tolist()} | set(self.coming.values())
        assert not in_use & set(gone)
        self.ready = {key: slot for key, slot in self.ready.items() if slot not in gone}

    @rule(wanted=keys)
    def reserve(self, wanted: list[int]) -> None:
        missing = self.slots.missing(ints(wanted + wanted))
        assert missing.tolist() == sorted(key for key in wanted if key not in self.ready and key not in self.coming)
        slots = self.slots.reserve(missing)
        in_use = {slot for slots, _ in self.pinned for slot in slots.tolist()} | set(self.content)
        for key, slot in zip(missing.tolist(), slots.tolist(), strict=False):
            assert slot // PER_PAGE in self.pages
            assert slot not in in_use - self.free_slots()
            self.coming[key] = slot

    @rule(there=st.lists(st.booleans(), min_size=16, max_size=16), again=st.booleans())
    def arrive(self, there: list[bool], again: bool) -> None:
        """All that is on its way comes, or not; what was dropped meanwhile is kept under its slot in `lost`."""
        coming = {**self.coming, **{-1 - slot: slot for slot in self.lost}}
        slots = ints(list(coming.values()))
        is_there = np.array(there[: len(slots)], np.bool_)
        ready = self.slots.arrive(slots, is_there, again=again)
        for (key, slot), came in zip(coming.items(), is_there.tolist(), strict=True):
            assert (slot in ready) == (came and key >= 0)
            if slot in ready:
                self.ready[key] = slot
                self.content[slot] = key
        self.coming = {}
        self.lost = []

    @rule(gone=keys)
    def drop(self, gone: list[int]) -> None:
        again = self.slots.drop(ints(gone + gone))
        assert set(again.tolist()) <= set(gone)
        for key in gone:
            if key in self.coming:
                assert key in again
                self.lost = [*self.lost, self.coming.pop(key)]
            self.ready.pop(key, None)

    @rule(wanted=keys)
    def pin(self, wanted: list[int]) -> None:
        slots = self.slots.distinct(self.slots.find(ints(wanted + wanted)))
        assert len(slots) == len(set(wanted) & self.ready.keys())
        self.slots.pin(slots)
        self.pinned.append((slots, [self.content[slot] for slot in slots.tolist()]))

    @precondition(lambda self: self.pinned)
    @rule()
    def unpin(self) -> None:
        slots, contents = self.pinned.pop(0)
        assert [self.content[slot] for slot in slots.tolist()] == contents, "what was pinned has changed"
        changed = any(self.ready.get(key) != slot for slot, key in zip(slots.tolist(), contents, strict=True))
        assert self.slots.is_changed(slots) == changed
        self.slots.unpin(slots)

    @rule(count=st.integers(1, 6))
    def evict(self, count: int) -> None:
        before = self.slots.free
        evicted = self.slots.evict(count)
        assert self.slots.free == before + evicted
        found = self.slots.find(ints(list(self.ready)))
        pinned = {slot for slots, _ in self.pinned for slot in slots.tolist()}
        gone = [key for key, slot in zip(list(self.ready), found.tolist(), strict=True) if slot < 0]
        assert len(gone) == evicted
        assert evicted == count or all(slot in pinned for key, slot in self.ready.items() if key not in gone)
        for key in gone:
            assert self.ready.pop(key) not in pinned

    def free_slots(self) -> set[int]:
        """Slots that hold nothing for anybody."""
        pinned = {slot for slots, _ in self.pinned for slot in slots.tolist()}
        taken = pinned | set(self.ready.values()) | set(self.coming.values()) | set(self.lost)
        return {page * PER_PAGE + at for page in self.pages for at in range(PER_PAGE)} - taken

    @invariant()
    def look_ups_find_what_is_ready_and_nothing_else(self) -> None:
        every = ints(list(range(16)))
        expected = [self.ready.get(key, -1) for key in range(16)]
        assert self.slots.find(every).tolist() == expected
        assert self.slots.ready == len(self.ready)
        assert self.slots.free == len(self.free_slots())
        assert self.slots.pages == len(self.pages)


SlotSteps.TestCase.settings = settings(max_examples=30, stateful_step_count=30)
test_slots_keep_what_is_pinned_and_find_what_is_ready = SlotSteps.TestCase


def test_a_page_of_which_a_row_is_read_is_not_given_up() -> None:
    slots = Slots(PER_PAGE)
    slots.add_page()
    taken = slots.reserve(ints([1, 2]))
    slots.arrive(taken, np.ones(2, np.bool_))
    slots.pin(taken[:1])
    assert slots.remove_page() is None
    slots.unpin(taken[:1])
    assert slots.remove_page() == 0
    assert slots.find(ints([1, 2])).tolist() == [-1, -1]
    assert (slots.free, slots.ready, slots.pages) == (0, 0, 0)
