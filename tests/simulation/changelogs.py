"""Changelogs of the simulation: in memory, and slow. Whoever writes one may be fenced, or die, at any point in between."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import xxhash

from fakes.changelogs import FakeChangelog, FakeChangelogs, Stored
from paramstream.consistency.vector import PartitionId
from paramstream.eventlog.changelog import ChangelogRecord

from .aside import pause


class SimChangelog(FakeChangelog):
    def open_writer(self) -> None:
        pause()
        super().open_writer()

    def read(self) -> Iterator[ChangelogRecord]:
        pause()
        for record in super().read():
            yield record
            pause()

    def write(self, records: Sequence[ChangelogRecord]) -> None:
        pause()
        super().write(records)
        pause()


class SimChangelogs(FakeChangelogs):
    """One write in ten is answered as unknown; half of those stand."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(lambda: chance.choice([*[None] * 18, True, False]))

    def open(self, partition: PartitionId, name: str, partitions: int) -> SimChangelog:
        return SimChangelog(self.stored.setdefault(partition, Stored()), self.fails)

    def compact(self, chance: random.Random) -> None:
        """Of one of them, which somebody may just be reading."""
        if self.stored:
            self.stored[chance.choice(sorted(self.stored))].compact(tombstones=chance.random() < 0.5)

    def digest(self) -> str:
        """Of all records, in their order: which key was written before which shows nowhere else."""
        return xxhash.xxh3_64(repr(sorted(self.stored.items(), key=lambda item: item[0])).encode()).hexdigest()

    def has(self, partition: PartitionId) -> bool:
        """Something was flushed."""
        return partition in self.stored and bool(self.stored[partition].records)
