"""A block of lines is overdrawn by the next one, on a terminal of any size."""

import fcntl
import os
import struct
import termios
from collections.abc import Iterator
from typing import TextIO

import pytest

from paramstream.cli.redraw import Redrawn


@pytest.fixture
def terminal() -> Iterator[tuple[TextIO, int]]:
    """The program's side of a terminal of 5 lines and 10 columns, and the descriptor at which a person sits."""
    theirs, ours = os.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 5, 10, 0, 0))
    with os.fdopen(ours, "w") as stream:
        yield stream, theirs
    os.close(theirs)


def read(theirs: int) -> str:
    return os.read(theirs, 4096).decode().replace("\r\n", "\n")


def test_a_second_block_begins_where_the_first_one_did(terminal: tuple[TextIO, int]) -> None:
    stream, theirs = terminal
    redrawn = Redrawn(stream)
    redrawn.draw(["one", "two"])
    assert read(theirs) == "\rone\x1b[K\ntwo\x1b[K\n\x1b[J"
    redrawn.draw(["three"])
    assert read(theirs) == "\x1b[2A\rthree\x1b[K\n\x1b[J"
    redrawn.draw([])
    assert read(theirs) == "\x1b[1A\r\x1b[J"


def test_what_would_wrap_or_scroll_is_left_out(terminal: tuple[TextIO, int]) -> None:
    stream, theirs = terminal
    Redrawn(stream).draw(["0123456789abc", *(str(number) for number in range(9))])
    assert read(theirs) == "\r0123456789\x1b[K\n0\x1b[K\n1\x1b[K\n2\x1b[K\n\x1b[J"
