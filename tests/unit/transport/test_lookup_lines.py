"""Connections to replicas are lent to one thread at a time, kept within bounds, and known to be gone as soon as they are."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from paramstream.errors import ConnectFailed, ParamstreamError
from paramstream.transport.lookup_lines import KEEP_IDLE, Line, Lines
from paramstream.transport.sockets import Socket, router
from reference.waiting import eventually


@pytest.fixture
def listener() -> Iterator[tuple[Socket, str]]:
    socket, endpoint = router("tcp://127.0.0.1:0", insecure=False)
    yield socket, endpoint
    socket.close(linger=0)


@pytest.fixture
def lines() -> Iterator[Lines]:
    made = Lines()
    yield made
    made.close(5.0)


def test_a_peer_that_is_not_there_is_known_to_be_gone_at_once_however_soon_it_refused() -> None:
    for _ in range(20):
        line = Line("tcp://127.0.0.1:1")
        try:
            eventually(line.gone, 0.5)
        finally:
            line.close()


def test_a_line_that_came_back_is_lent_again_and_never_twice(lines: Lines, listener: tuple[Socket, str]) -> None:
    _, endpoint = listener
    first, second = lines.take(endpoint), lines.take(endpoint)
    assert first is not second
    lines.give(first)
    assert lines.take(endpoint) is first
    lines.drop(first)
    lines.give(second)
    assert first.socket.closed and lines.take(endpoint) is second
    lines.give(second)


def test_only_so_many_are_kept(lines: Lines, listener: tuple[Socket, str]) -> None:
    taken = [lines.take(listener[1]) for _ in range(KEEP_IDLE + 2)]
    for line in taken:
        lines.give(line)
    assert [line.socket.closed for line in taken] == [False] * KEEP_IDLE + [True] * 2
    lines.forget(listener[1])
    assert all(line.socket.closed for line in taken)


def test_one_whose_peer_went_while_nobody_used_it_is_not_lent_again(lines: Lines) -> None:
    socket, endpoint = router("tcp://127.0.0.1:0", insecure=False)
    line = lines.take(endpoint)
    line.send(b"question")
    assert socket.poll(5000)
    lines.give(line)
    socket.close(linger=0)

    def another() -> Line | None:
        lent = lines.take(endpoint)
        if lent is not line:
            return lent
        lines.give(lent)
        return None

    fresh = eventually(another)
    assert line.socket.closed and not fresh.socket.closed
    lines.drop(fresh)


def test_an_address_that_is_none_raises_and_is_lent_to_nobody(lines: Lines) -> None:
    with pytest.raises(ConnectFailed):
        lines.take("not an address")
    lines.close(5.0)


def test_close_waits_for_what_is_lent_and_nothing_is_lent_any_more(lines: Lines, listener: tuple[Socket, str]) -> None:
    line, idle = lines.take(listener[1]), lines.take(listener[1])
    lines.give(idle)
    closing = threading.Thread(target=lines.close, args=(10.0,))
    closing.start()
    assert eventually(lambda: lines.closed)
    with pytest.raises(ParamstreamError, match="closed"):
        lines.take(listener[1])
    assert closing.is_alive() and not line.socket.closed
    lines.give(line)
    closing.join(5)
    assert not closing.is_alive() and line.socket.closed and idle.socket.closed
