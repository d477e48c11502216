"""Changelogs in memory: compacted at will, fenced as Kafka's are, and failing when told to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from paramstream.consistency.vector import PartitionId
from paramstream.errors import Fenced, OutcomeUnknown
from paramstream.eventlog.changelog import ChangelogRecord


@dataclass
class Stored:
    """What stands of one changelog."""

    records: list[ChangelogRecord] = field(default_factory=list[ChangelogRecord])
    writer: int = 0

    def compact(self, *, tombstones: bool = True) -> None:
        """Keep the last record of each key; without `tombstones`, none where that is one."""
        last = {record.key: index for index, record in enumerate(self.records)}
        self.records = [
            record
            for index, record in enumerate(self.records)
            if last[record.key] == index and (tombstones or record.value is not None)
        ]


class FakeChangelog:
    def __init__(self, stored: Stored, fails: Callable[[], bool | None]) -> None:
        self._stored = stored
        self._fails = fails
        self._writer = 0

    def open_writer(self) -> None:
        self._stored.writer += 1
        self._writer = self._stored.writer

    def read(self) -> Iterator[ChangelogRecord]:
        yield from list(self._stored.records)

    def write(self, records: Sequence[ChangelogRecord]) -> None:
        if self._writer != self._stored.writer:
            raise Fenced("a newer writer was opened")
        stands = self._fails()
        if stands is not False:
            self._stored.records += records
        if stands is not None:
            raise OutcomeUnknown("the write may stand")

    def close(self) -> None:
        self._writer = -1


class FakeChangelogs:
    """`fails()` says of each write: None, it stands; True, it stands and is answered as unknown; False, neither."""

    def __init__(self, fails: Callable[[], bool | None] = lambda: None) -> None:
        self.stored: dict[PartitionId, Stored] = {}
        self.fails = fails

    def open(self, partition: PartitionId, name: str, partitions: int) -> FakeChangelog:
        return FakeChangelog(self.stored.setdefault(partition, Stored()), self.fails)

    def close(self) -> None:
        """Nothing is held."""
