"""Everything that is done in a world, and everything that can be seen of it, in one running hash."""

from __future__ import annotations

import xxhash

from .clock import Clock


class Trace:
    """Two worlds of one seed have the same hash; where they differ, `lines` says from where on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._hash = xxhash.xxh3_64()
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        line = f"{self._clock.now:.3f} {line}"
        self.lines.append(line)
        self._hash.update(line.encode())

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()
