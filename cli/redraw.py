"""A block of lines on a terminal that is drawn anew in its place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO


class Redrawn:
    """What was drawn last on `stream`, a terminal, and is overdrawn by what comes next. The cursor stands below it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines = 0

    def draw(self, content: Sequence[str]) -> None:
        """Lines are cut at the terminal's width and height: a wrapped or scrolled one could not be found again."""
        size = os.get_terminal_size(self._stream.fileno())
        shown = [line[: size.columns or None] for line in content[: size.lines - 1 if size.lines > 1 else None]]
        up = f"\x1b[{self._lines}A" if self._lines else ""
        # Line by line, each cleared to its end, and what an older, longer block left below is cleared too.
        body = "".join(f"{line}\x1b[K\n" for line in shown)
        self._stream.write(f"{up}\r{body}\x1b[J")
        self._stream.flush()
        self._lines = len(shown)
