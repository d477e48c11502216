"""What a changelog is: a compacted map of one partition's items, which only its newest writer changes.

Compaction keeps the last record of a key, so a writer that is behind must be kept out: opening for writing fences every writer
before, and each write is whole or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from ..consistency.vector import PartitionId


class ChangelogRecord(NamedTuple):
    key: bytes
    value: bytes | None
    """None: a tombstone, which compaction removes in the end with all that stood under the key."""


class Changelog(Protocol):
    """One partition's changelog. One thread uses it; every call has a deadline of its own."""

    def open_writer(self) -> None:
        """Fence the writers before, and take back what they left unfinished. Raises what reaching the log raises."""
        ...

    def read(self) -> Iterator[ChangelogRecord]:
        """All that stands, from the beginning up to what was written when this was called; later records of a key win.

        Raises `LogTruncated` where compaction was faster than the reader may rely on.
        """
        ...

    def write(self, records: Sequence[ChangelogRecord]) -> None:
        """All of the records or none. Blocks until they stand for good.

        Raises `Fenced` where a newer writer was opened: this one is over. Raises `OutcomeUnknown` where they may stand or not:
        then the writer is opened anew, and reads before it writes.
        """
        ...

    def close(self) -> None: ...


class Changelogs(Protocol):
    """Where the changelogs of a log are."""

    def open(self, partition: PartitionId, name: str, partitions: int) -> Changelog:
        """The changelog of a state partition of the topic called `name`, which has that many of them. Makes it where there is none."""
        ...

    def close(self) -> None: ...
