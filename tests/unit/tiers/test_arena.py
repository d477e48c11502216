"""Slots: who may write, who may read, and when memory is used again."""

import gc
import mmap
import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import paramstream.errors
from paramstream.tiers.arena import KEPT_FREE_SLOTS, Arena, Slot
from paramstream.tiers.budget import Budget

PAGE = mmap.PAGESIZE


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def budget() -> Budget:
    return Budget(64 << 20)


@pytest.fixture
def arena(budget: Budget) -> Iterator[Arena]:
    arena = Arena(budget)
    yield arena
    assert budget.held == arena.used_bytes + arena.free_bytes
    arena.close()
    assert budget.held == 0


def filled(arena: Arena, nbytes: int, value: int) -> Slot:
    slot = arena.take(nbytes)
    slot.buffer[:] = bytes([value]) * nbytes
    slot.seal()
    return slot


def test_what_the_writer_wrote_is_what_every_reader_sees(arena: Arena) -> None:
    slot = arena.take(3 * PAGE + 5)
    values = np.arange(3 * PAGE + 5).astype(np.uint8)
    np.copyto(np.frombuffer(slot.buffer, np.uint8), values)
    slot.seal()
    for view in (slot.shared(), slot.private(), slot.readonly_buffer):
        assert memoryview(view).nbytes == 3 * PAGE + 5
        assert np.array_equal(np.frombuffer(view, np.uint8), values)
    slot.release()


def test_an_array_on_a_shared_mapping_cannot_be_made_writable_N10(arena: Arena) -> None:
    slot = filled(arena, PAGE, 7)
    for view in (slot.shared(), slot.readonly_buffer):
        array = np.frombuffer(view, np.float32)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
        with pytest.raises(ValueError, match="WRITEABLE"):
            array[2:].view(np.uint8).flags.writeable = True
    slot.release()


def test_what_a_reader_writes_into_its_numpy_array_stays_its_own_N10(arena: Arena) -> None:
    slot = filled(arena, 4 * PAGE, 7)
    mine, theirs = (np.frombuffer(slot.private(), np.uint8) for _ in range(2))
    mine[:] = 1
    assert (mine == 1).all()
    assert (theirs == 7).all()
    assert (np.frombuffer(slot.shared(), np.uint8) == 7).all()
    assert (np.frombuffer(slot.private(), np.uint8) == 7).all()
    slot.release()


def test_what_a_reader_writes_into_its_torch_tensor_stays_its_own_N10(arena: Arena) -> None:
    slot = filled(arena, 4 * PAGE, 7)
    mine, theirs = (torch.frombuffer(slot.private(), dtype=torch.uint8) for _ in range(2))
    mine.fill_(1)
    assert bool((mine == 1).all())
    assert bool((theirs == 7).all())
    assert bool((torch.frombuffer(slot.private(), dtype=torch.uint8) == 7).all())
    slot.release()


def test_a_released_slot_is_used_again_when_nobody_views_it(arena: Arena, budget: Budget) -> None:
    filled(arena, 8 * PAGE, 1).release()
    descriptors = open_descriptors()
    again = arena.take(8 * PAGE)
    assert (open_descriptors(), budget.held) == (descriptors, 8 * PAGE)
    assert bytes(again.buffer[:1]) == b"\x01"
    again.release()


def test_a_released_slot_waits_for_the_last_array_on_any_mapping(arena: Arena) -> None:
    slot = filled(arena, 8 * PAGE, 1)
    views: list[object] = [
        np.frombuffer(slot.shared(), np.float32)[3:7],
        torch.frombuffer(slot.private(), dtype=torch.bfloat16)[5:].view(torch.uint8),
        torch.frombuffer(memoryview(slot.private())[64:128], dtype=torch.float32),
        np.frombuffer(slot.readonly_buffer[64:], np.uint8).reshape(2, -1).T,
        slot.readonly_buffer[:10],
    ]
    slot.release()
    while views:
        other = filled(arena, 8 * PAGE, 2)
        assert arena.free_bytes == 0
        assert arena.used_bytes == 16 * PAGE
        other.release()
        assert arena.give_back_free(1) == 8 * PAGE
        views.pop()
    assert arena.free_bytes == 8 * PAGE


def test_arrays_that_outlive_their_slot_keep_their_bytes(arena: Arena) -> None:
    slot = filled(arena, 8 * PAGE, 1)
    array = np.frombuffer(slot.shared(), np.uint8)
    tensor = torch.frombuffer(slot.private(), dtype=torch.uint8)
    slot.release()
    for value in range(2, 10):
        filled(arena, 8 * PAGE, value).release()
    assert (array == 1).all()
    assert bool((tensor == 1).all())


def test_a_slot_is_not_let_again_while_its_old_writer_holds_an_array(arena: Arena) -> None:
    slot = arena.take(PAGE)
    array = np.frombuffer(slot.buffer, np.uint8)[10:]
    slot.release()
    assert arena.free_bytes == 0
    other = arena.take(PAGE)
    array[:] = 9
    assert bytes(other.buffer[10:11]) == b"\0"
    del array
    assert arena.free_bytes == PAGE
    other.release()


def test_nobody_writes_to_a_sealed_slot_or_maps_a_released_one(arena: Arena) -> None:
    slot = arena.take(PAGE)
    slot.seal()
    with pytest.raises(ValueError, match="sealed"):
        _ = slot.buffer
    slot.release()
    for use in (slot.shared, slot.private, slot.release, lambda: slot.buffer, lambda: slot.readonly_buffer):
        with pytest.raises(ValueError):
            use()


def test_a_stale_handle_does_not_reach_the_next_tenant(arena: Arena) -> None:
    first = filled(arena, PAGE, 1)
    first.release()
    second = filled(arena, PAGE, 2)
    with pytest.raises(ValueError):
        first.release()
    assert arena.used_bytes == PAGE
    second.release()


def test_a_slot_for_nothing_has_an_empty_buffer(arena: Arena) -> None:
    slot = arena.take(0)
    assert slot.buffer.nbytes == 0
    slot.seal()
    assert len(slot.shared()) == len(slot.private()) == 1
    assert slot.readonly_buffer.nbytes == 0
    slot.release()
    with pytest.raises(ValueError, match="-1"):
        arena.take(-1)


def test_a_free_slot_much_too_large_is_left_for_who_needs_it(arena: Arena) -> None:
    filled(arena, 400 * PAGE, 1).release()
    small = arena.take(100 * PAGE)
    assert (small.capacity, arena.free_bytes) == (100 * PAGE, 400 * PAGE)
    near = arena.take(350 * PAGE)
    assert (near.capacity, near.buffer.nbytes, arena.free_bytes) == (400 * PAGE, 350 * PAGE, 0)
    small.release()
    near.release()


def test_few_free_slots_are_kept(arena: Arena) -> None:
    for slot in [arena.take(PAGE) for _ in range(KEPT_FREE_SLOTS + 3)]:
        slot.release()
    assert arena.free_bytes == KEPT_FREE_SLOTS * PAGE


def test_a_slot_over_the_budget_is_refused_after_free_ones_were_given_back() -> None:
    budget = Budget(10 * PAGE)
    arena = Arena(budget)
    kept, free = arena.take(4 * PAGE), arena.take(6 * PAGE)
    free.release()
    with pytest.raises(paramstream.errors.StorageFull):
        arena.take(7 * PAGE)
    assert budget.held == 4 * PAGE
    arena.take(6 * PAGE - 1).release()
    kept.release()
    # What is free but does not fit makes room for what is asked.
    arena.take(10 * PAGE).release()
    assert budget.held == 10 * PAGE
    arena.close()


def test_memory_that_the_system_refuses_is_reported_and_not_charged(
    arena: Arena, budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(paramstream.errors.StorageFull, match="Too many open files"):
        arena.take(PAGE)
    assert budget.held == 0


def test_descriptors_stay_steady_over_two_thousand_rounds(arena: Arena, budget: Budget) -> None:
    before, most = open_descriptors(), 0
    held: list[np.ndarray[tuple[int], np.dtype[np.uint8]]] = []
    for round_number in range(2000):
        slot = filled(arena, (1 + round_number % 3) * PAGE, round_number % 251)
        held = [*held[-2:], np.frombuffer(slot.private() if round_number % 2 else slot.shared(), np.uint8)]
        slot.release()
        assert held[-1][0] == round_number % 251
        most = max(most, open_descriptors())
    held.clear()
    assert most - before <= 20
    assert budget.held <= KEPT_FREE_SLOTS * 20 * PAGE
    arena.close()
    assert open_descriptors() == before


def test_close_leaves_no_descriptor_and_spares_what_is_still_read() -> None:
    before = open_descriptors()
    budget = Budget(1 << 20)
    arena = Arena(budget)
    free, viewed, taken = (filled(arena, PAGE, value) for value in (1, 2, 3))
    array = np.frombuffer(viewed.shared(), np.uint8)
    copied = taken.readonly_buffer
    free.release()
    viewed.release()
    arena.close()
    arena.close()
    assert budget.held == 0
    assert (array == 2).all()
    assert copied[0] == 3
    taken.release()
    with pytest.raises(ValueError, match="closed"):
        arena.take(PAGE)
    with pytest.raises(ValueError, match="closed"):
        taken.shared()
    # The handles are still held; only mappings and arrays count.
    del array, copied
    assert open_descriptors() == before


def test_an_arena_dropped_without_close_leaves_no_descriptor() -> None:
    before = open_descriptors()
    arena = Arena(Budget(1 << 20))
    slot = arena.take(PAGE)
    slot.buffer[0] = 1
    del arena, slot
    gc.collect()
    assert open_descriptors() == before


def test_views_that_die_in_garbage_collection_under_the_lock_free_their_slot(arena: Arena) -> None:
    class Cycle:
        def __init__(self, view: mmap.mmap) -> None:
            self.view, self.me = view, self

    slot = filled(arena, PAGE, 1)
    Cycle(slot.shared())
    slot.release()
    assert arena.free_bytes == 0
    gc.collect()
    assert arena.free_bytes == PAGE


def test_readers_on_other_threads_see_whole_versions_while_slots_turn_over(arena: Arena) -> None:
    lock, stop = threading.Lock(), threading.Event()
    served = filled(arena, 16 * PAGE, 0)
    torn: list[int] = []

    def read() -> None:
        while not stop.is_set():
            with lock:
                mapping = served.private()
            array = np.frombuffer(mapping, np.uint8)
            if array.min() != array.max():
                torn.append(int(array.min()))
            array[:] = 255

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for value in range(1, 250):
            fresh = filled(arena, 16 * PAGE, value)
            with lock:
                old, served = served, fresh
            old.release()
    finally:
        stop.set()
        for reader in readers:
            reader.join(10)
    served.release()
    assert torn == []
    assert arena.used_bytes == 0


@pytest.mark.parametrize("missing", ["memfd_create", "populate", "huge pages"])
def test_a_system_without_the_newest_calls_gives_the_same_memory(
    missing: str, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "memfd_create":
        monkeypatch.delattr(os, "memfd_create")
    elif missing == "populate":
        monkeypatch.setattr("paramstream.tiers.segment._POPULATE_WRITE", 9999)
    else:
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    slot = filled(arena, 3 * PAGE, 5)
    assert bytes(slot.shared()) == bytes([5]) * 3 * PAGE
    slot.release()


def test_what_is_written_without_the_buffer_is_what_readers_and_the_buffer_see(arena: Arena) -> None:
    slot = arena.take(3 * PAGE - 7)
    slot.write(memoryview(b"end"), 3 * PAGE - 10)
    slot.write(memoryview(bytes([7]) * PAGE), PAGE - 1)
    expected = bytes(PAGE - 1) + bytes([7]) * PAGE + bytes(PAGE - 9) + b"end"
    assert bytes(slot.shared()) == bytes(slot.readonly_buffer) == bytes(slot.buffer) == expected
    slot.write(memoryview(b"now mapped"), 5)
    assert bytes(slot.shared()[5:15]) == b"now mapped"
    slot.release()
    again = arena.take(3 * PAGE - 7)
    again.write(memoryview(b"again"), 0)
    assert bytes(again.shared()[:15]) == b"again" + b"now mapped"
    again.release()


def test_nothing_is_written_beyond_a_slot_or_once_it_is_sealed_or_closed(arena: Arena) -> None:
    slot = arena.take(10)
    for offset in (-1, 7, PAGE):
        with pytest.raises(ValueError, match="beyond"):
            slot.write(memoryview(b"four"), offset)
    assert bytes(slot.shared()) == bytes(10)
    other = arena.take(10)
    slot.seal()
    with pytest.raises(ValueError, match="sealed"):
        slot.write(memoryview(b"four"), 0)
    arena.close()
    with pytest.raises(ValueError, match=r"sealed|closed"):
        other.write(memoryview(b"four"), 0)
