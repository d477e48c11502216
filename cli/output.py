"""What commands print: one JSON object on one line, plain tables, and progress that only a terminal sees."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

REDRAW_S = 0.1
"""Progress is drawn at most so often."""


def print_json(value: object) -> None:
    """One value on one line of standard output, flushed: a reader at the other end of a pipe sees it at once."""
    print(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")), flush=True)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns aligned under their headings, on standard output."""
    for line in table_lines(headings, rows):
        print(line)


def table_lines(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    cells = [list(headings), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


class Progress:
    """A line on standard error that says what is done, and how much of `total` bytes; nothing at all where that is no terminal."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._drawn_at = 0.0
        self._shown = sys.stderr.isatty()

    def add(self, nbytes: int) -> None:
        self._done += nbytes
        now = time.monotonic()
        if self._shown and now - self._drawn_at >= REDRAW_S:
            self._drawn_at = now
            share = f" {100 * self._done // self._total:3d} %" if self._total else ""
            size = f" ({self._done / 2**20:.0f} MiB)" if self._total or self._done else ""
            sys.stderr.write(f"\r\x1b[K{self._what}{share}{size}")
            sys.stderr.flush()

    def __enter__(self) -> Self:
        self.add(0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
