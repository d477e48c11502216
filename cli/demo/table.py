"""The demo's table: redrawn in place on a terminal while it runs, printed once at the end."""

from __future__ import annotations

import sys
import time

from ..output import table_lines
from ..redraw import Redrawn
from .results import Actor, Results, percentile

HEADINGS = ("", "version", "accuracy", "staleness p50", "lag", "")
REDRAW_S = 0.1


class LiveTable:
    """On standard error where that is a terminal, so that standard output stays clean; elsewhere it draws nothing."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._redrawn = Redrawn(sys.stderr)
        self._drawn_at = 0.0

    def draw(self, title: str, results: Results) -> None:
        """At most every `REDRAW_S`."""
        now = time.monotonic()
        if not self._shown or now - self._drawn_at < REDRAW_S:
            return
        self._drawn_at = now
        self._redrawn.draw([title, *lines(results)])

    def clear(self) -> None:
        if self._shown:
            self._redrawn.draw([])


def lines(results: Results) -> list[str]:
    """The table as it stands."""
    trainer = results.trainer
    rows = [(trainer.name, _number(trainer.version), _share(trainer.accuracy), "", "", trainer.note)]
    rows += [_row(results, replica) for replica in results.replicas.values()]
    return table_lines(HEADINGS, rows)


def _row(results: Results, replica: Actor) -> tuple[str, str, str, str, str, str]:
    late = percentile(list(replica.recent_ms), 50)
    lag = results.lag(replica)
    return (
        replica.name,
        _number(replica.version),
        _share(replica.accuracy),
        "-" if late is None else f"{late:.1f} ms",
        _number(lag),
        replica.note,
    )


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
