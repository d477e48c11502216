"""Reads a log in Kafka without being anybody's owner: for `restore` and `verify`.

Each partition is read to the end that Kafka showed when the reading of it began; all of that is durable. To begin at a time,
compare the stamps in the frames: Kafka's own times follow its clocks, and its lookup by time need not be monotone.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from ...consistency.position import START
from ...consistency.vector import PartitionId
from ...events.codec import EventFrame, decode_event
from ...events.kinds import Kind
from ..counting import Counting
from ..reading import PartitionRead
from .asking import ask
from .log import KafkaEventLog
from .scan import Place, Scan, base_at, no_base_at_start
from .settings import KafkaLog


class KafkaReader:
    """Connections for reading, as a context manager. The owners of the partitions are not disturbed."""

    def __init__(self, settings: KafkaLog) -> None:
        """Raises `ConnectFailed` where no server answers, `InvalidEvent` where aiokafka is not installed."""
        self._log = KafkaEventLog(settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def owner_lives(self) -> bool:
        """Whether one does is not known, and changes nothing."""
        return True

    def partitions(self) -> list[PartitionId]:
        return self._log.partitions()

    def read(self, partition: PartitionId) -> PartitionRead:
        """From the oldest base on; the records are fetched as they are asked for, each page in a blocking call.

        Raises `UnknownTopic` where Kafka has no topic with that id, `CorruptLog` where somebody else has removed records,
        `ConnectFailed` where Kafka does not answer in time. The records raise the same, and `CorruptLog` that names the offset
        of a damaged one, or says that the owner cut what was not read yet: then read again.
        """
        place, thread, patience_s = self._log.reaching(partition)
        start, end = ask(place, thread, place.ends(), patience_s)
        base: EventFrame | None = None
        position = START
        if start:
            found = ask(place, thread, base_at(place, start, end), patience_s) if start < end else None
            if found is None:
                raise no_base_at_start(place, start)
            base = decode_event(found[0].frame)
            position = base.position
        records = self._records(place, start, end, has_base=base is not None)
        return PartitionRead(partition, base, position, records, "")

    def _records(self, place: Place, start: int, end: int, *, has_base: bool) -> Iterator[EventFrame]:
        _, thread, patience_s = self._log.reaching(place.partition)
        counting, scan, is_first = Counting(), Scan(place, start, end), has_base
        while not scan.is_done:
            for whole in ask(place, thread, scan.page(), patience_s):
                if not counting.takes(whole.prefix, whole.frame):
                    continue
                if whole.prefix.kind is not Kind.CLAIM and not is_first:
                    yield decode_event(whole.frame)
                is_first = False

    def close(self) -> None:
        """Give back the connections. A second call changes nothing."""
        self._log.close()
