"""KV entries: positions, deadlines, undo, and what is charged."""

import threading

import pytest

import paramstream.errors
from paramstream.tiers.budget import Budget
from paramstream.tiers.entries import DEADLINE_OVERHEAD_BYTES, ENTRY_OVERHEAD_BYTES, Entry, EntryTable

SECOND = 10**9


def make_table(limit: int = 1 << 20) -> tuple[EntryTable, Budget]:
    budget = Budget(limit)
    return EntryTable(budget), budget


def test_a_put_above_the_held_position_replaces_and_reports_what_was_held() -> None:
    table, _ = make_table()
    old, new = Entry(b"old", 5), Entry(b"new", 6)
    assert table.put(b"k", old) is None
    assert table.put(b"k", new) == old
    assert table.get(b"k", 0) == new


@pytest.mark.parametrize("position", [4, 5])
def test_a_put_or_delete_at_or_below_the_held_position_changes_nothing(position: int) -> None:
    table, budget = make_table()
    held = Entry(b"held", 5, deadline=90)
    table.put(b"k", held)
    before = budget.held
    assert table.put(b"k", Entry(b"a longer value", position)) == held
    assert table.delete(b"k", position) == held
    assert table.items() == [(b"k", held)]
    assert budget.held == before
    assert table.remove_expired(90) == [(b"k", held)]


def test_a_delete_above_the_held_position_removes() -> None:
    table, budget = make_table()
    held = Entry(b"v", 5, deadline=9)
    table.put(b"k", held)
    assert table.delete(b"k", 6) == held
    assert table.delete(b"k", 7) is None
    assert (table.get(b"k", 0), len(table), budget.held) == (None, 0, 0)
    assert table.remove_expired(100) == []


def test_an_entry_is_hidden_from_its_deadline_on_and_stays_until_removed() -> None:
    table, _ = make_table()
    entry = Entry(b"v", 1, deadline=10)
    table.put(b"k", entry)
    assert table.get(b"k", 9) == entry
    assert table.get(b"k", 10) is None
    assert table.items() == [(b"k", entry)]
    assert table.remove_expired(9) == []
    assert table.remove_expired(10) == [(b"k", entry)]
    assert table.items() == []


def test_expired_entries_go_in_order_of_deadline_then_key() -> None:
    table, _ = make_table()
    for position, (key, deadline) in enumerate([(b"c", 2), (b"b", 3), (b"a", 3), (b"d", 4), (b"", 3)]):
        table.put(key, Entry(b"", position, deadline=deadline))
    table.put(b"forever", Entry(b"", 9))
    assert [key for key, _ in table.remove_expired(2)] == [b"c"]
    assert [key for key, _ in table.remove_expired(3)] == [b"", b"a", b"b"]
    assert [key for key, _ in table.items()] == [b"d", b"forever"]


def test_a_late_sweep_does_not_remove_what_was_rewritten_M08() -> None:
    table, _ = make_table()
    table.put(b"k", Entry(b"old", 1, deadline=1 * SECOND))
    now = 11 * SECOND // 10
    assert table.get(b"k", now) is None
    rewritten = Entry(b"new", 2, deadline=11 * SECOND)
    table.put(b"k", rewritten)
    assert table.remove_expired(2 * SECOND) == []
    assert table.get(b"k", 2 * SECOND) == rewritten
    forever = Entry(b"newest", 3)
    table.put(b"k", forever)
    assert table.remove_expired(100 * SECOND) == []
    assert table.get(b"k", 100 * SECOND) == forever


def test_undo_in_reverse_leads_back_whatever_happened() -> None:
    table, budget = make_table()
    table.put(b"a", Entry(b"1", 1, deadline=50))
    table.put(b"b", Entry(b"22", 2))
    before, charged = table.items(), budget.held
    images: list[tuple[bytes, Entry | None]] = [
        (b"a", table.put(b"a", Entry(b"longer", 3))),
        (b"c", table.put(b"c", Entry(b"", 4, deadline=60))),
        (b"b", table.delete(b"b", 5)),
        (b"b", table.put(b"b", Entry(b"again", 6, deadline=55))),
        *table.remove_expired(70),
    ]
    for key, entry in reversed(images):
        table.restore(key, entry)
    assert (table.items(), budget.held) == (before, charged)
    assert [key for key, _ in table.remove_expired(70)] == [b"a"]


def test_bytes_charged_are_keys_values_and_overheads() -> None:
    table, budget = make_table()
    table.put(b"key", Entry(b"value", 1))
    assert table.nbytes == budget.held == 8 + ENTRY_OVERHEAD_BYTES
    table.put(b"key", Entry(b"v", 2, deadline=4))
    assert table.nbytes == budget.held == 4 + ENTRY_OVERHEAD_BYTES + DEADLINE_OVERHEAD_BYTES
    table.put(b"other", Entry(b"", 3))
    table.clear()
    assert table.nbytes == budget.held == len(table) == 0
    assert table.remove_expired(100) == []


def test_a_put_over_the_budget_changes_nothing_and_a_smaller_one_fits() -> None:
    table, budget = make_table(limit=2 * ENTRY_OVERHEAD_BYTES + 20)
    table.put(b"a", Entry(b"0123456789", 1))
    with pytest.raises(paramstream.errors.StorageFull):
        table.put(b"b", Entry(b"0123456789", 2))
    held = Entry(b"0123456789", 1)
    with pytest.raises(paramstream.errors.StorageFull):
        table.put(b"a", Entry(b"x" * 300, 3, deadline=1))
    assert table.items() == [(b"a", held)]
    assert table.remove_expired(9) == []
    table.put(b"b", Entry(b"01234567", 2))
    assert budget.held == budget.limit


def test_an_undo_is_not_refused_for_want_of_room() -> None:
    table, budget = make_table(limit=ENTRY_OVERHEAD_BYTES + 10)
    held = Entry(b"012345678", 1)
    table.put(b"a", held)
    image = table.delete(b"a", 2)
    budget.charge(budget.limit)
    table.restore(b"a", image)
    assert table.items() == [(b"a", held)]
    assert budget.held > budget.limit


def test_readers_see_whole_entries_while_one_thread_applies() -> None:
    table, _ = make_table()
    table.put(b"k", Entry(b"0" * 8, 0, deadline=0 + 10**12, valid_for=(0, 0)))
    stop, wrong = threading.Event(), list[Entry | None]()

    def read() -> None:
        while not stop.is_set():
            entry = table.get(b"k", 0)
            if entry is None or entry != Entry(
                b"%08d" % entry.position, entry.position, entry.position + 10**12, (entry.position, 0)
            ):
                wrong.append(entry)
            table.items()

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for position in range(1, 20_000):
            table.put(b"k", Entry(b"%08d" % position, position, position + 10**12, (position, 0)))
            table.put(b"%d" % (position % 50), Entry(b"", position, deadline=position + 10))
            table.remove_expired(position)
    finally:
        stop.set()
        for reader in readers:
            reader.join(10)
    assert wrong == []
