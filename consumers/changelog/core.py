"""What of one state partition is to be flushed to its changelog, and what the marker then says. No I/O, no clock.

A writer that is new knows what the changelog holds, key by key. It flushes nothing before its own state has reached the
ceiling of the last marker: until then the changelog is ahead of it, and it would write older values over newer ones. From
there on whatever differs is dirty, and then whatever changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...consistency.position import START
from ...consistency.vector import VersionVector
from ...tiers.entries import Entry
from .records import Marker, marker


@dataclass(frozen=True, slots=True)
class Batch:
    """Keys to be written together, each as its entry is by then."""

    keys: list[bytes]
    is_last: bool
    """With it, all that was dirty when the flush began is written."""


class ChangelogCore:
    """Of one partition; made anew each time that the writer is opened."""

    def __init__(self, held: Mapping[bytes, int], last: Marker | None) -> None:
        """`held`: what the changelog holds, key → the position that wrote it. `last`: its marker, if it has one."""
        self._held: dict[bytes, int] | None = dict(held)
        self._floor, self._ceiling = (last.floor, last.ceiling) if last is not None else (START, START)
        self._dirty: dict[bytes, None] = {}
        """In the order in which they came, so that no key waits for ever behind those that change all the time."""
        self._begun = START
        """What was dirty at the position `_begun` comes first, `_left` keys of it."""
        self._left = 0

    @property
    def floor(self) -> int:
        """What lies at or below it need not stay in the log, as far as this changelog goes."""
        return self._floor

    @property
    def ceiling(self) -> int:
        return self._ceiling

    @property
    def is_dirty(self) -> bool:
        return bool(self._dirty)

    def may_flush(self, position: int) -> bool:
        """Whether the writer's own state, applied and durable up to `position`, is not behind the changelog."""
        return position >= self._ceiling

    def compare(self, entries: Iterable[tuple[bytes, Entry]]) -> None:
        """Once, before the first flush: all that differs between these entries and the changelog is dirty."""
        held, self._held = self._held, None
        if held is None:
            return
        for key, entry in entries:
            if held.pop(key, None) != entry.position:
                self._dirty[key] = None
        # What is left is gone from the state: without a tombstone it would come back.
        self._dirty.update(dict.fromkeys(held))

    @property
    def is_compared(self) -> bool:
        return self._held is None

    def begin(self, changed: Iterable[bytes], position: int) -> None:
        """These keys changed too, up to `position`. A flush begins where none is under way."""
        self._dirty.update(dict.fromkeys(changed))
        if not self._left:
            self._begun, self._left = position, len(self._dirty)

    def next_batch(self, most: int) -> Batch:
        """The next keys, at most so many; none where nothing is dirty. They stay dirty until `written`."""
        count = min(most, self._left)
        keys = [key for key, _ in zip(self._dirty, range(count), strict=False)]
        return Batch(keys, len(keys) == self._left)

    def marker(self, batch: Batch, position: int, context: VersionVector[int], skipped: int) -> Marker:
        """Of the batch, whose entries were looked up while the state stood at `position` or before."""
        floor = max(self._floor, self._begun) if batch.is_last else self._floor
        return marker(floor, max(self._ceiling, position), context, skipped)

    def written(self, batch: Batch, marked: Marker) -> None:
        """The batch and its marker stand. Keys that changed again meanwhile are said to have changed by the next `begin`."""
        for key in batch.keys:
            del self._dirty[key]
        self._left -= len(batch.keys)
        self._floor, self._ceiling = marked.floor, marked.ceiling
