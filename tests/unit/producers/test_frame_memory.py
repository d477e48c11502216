"""Memory of frames is used again, and never while anybody still sees it."""

from __future__ import annotations

import ctypes

from fakes.session_world import World, put_values
from paramstream.producers.frame_memory import KEPT_PIECES, FrameMemory

NBYTES = 200_000
PARTITION = (7, 0)


def address_of(frame: memoryview) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(frame))


def test_memory_that_nobody_views_is_used_again() -> None:
    memory = FrameMemory()
    first = memory.take(NBYTES)
    address = address_of(first)
    del first
    again = memory.take(NBYTES + 1)
    assert address_of(again) == address
    assert len(again) == NBYTES + 1


def test_memory_that_a_slice_still_views_is_left_alone() -> None:
    memory = FrameMemory()
    first = memory.take(NBYTES)
    tail = first[-4:]
    tail[:] = b"tail"
    del first
    for _ in range(3):
        memory.take(NBYTES)[:] = bytes(NBYTES)
    assert bytes(tail) == b"tail"


def test_each_size_has_memory_of_its_own() -> None:
    memory = FrameMemory()
    large = memory.take(NBYTES)
    address = address_of(large)
    del large
    assert address_of(memory.take(NBYTES // 4)) != address


def test_what_is_kept_is_bounded() -> None:
    memory = FrameMemory()
    views = [memory.take(NBYTES) for _ in range(KEPT_PIECES + 10)]
    assert memory.free_pieces == 0
    views.clear()
    assert memory.free_pieces == KEPT_PIECES


def test_an_event_without_an_answer_keeps_its_bytes_while_memory_of_others_is_used_again() -> None:
    world = World([PARTITION], window_bytes=1 << 24)
    first, second, third = (digit * NBYTES for digit in (b"1", b"2", b"3"))
    world.put(PARTITION, first)
    world.put(PARTITION, second)
    world.arrive(1)
    world.answer(1)
    # The memory of the first one is free by now; the second one is on the wire, and has to go once more.
    world.put(PARTITION, third)
    world.disconnect()
    world.sent.clear()
    world.connect()
    assert [put_values(event) for event in world.sent] == [[second], [third]]
