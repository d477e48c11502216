"""Reads a log in Kafka without being anybody's owner: for `restore` and `verify`.

Each partition is read to the end that Kafka showed when the reading of it began; all of that is durable. To begin at a time,
compare the stamps in the frames: Kafka's own times follow its clocks, and its lookup by time need not be monotone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Self, TypeVar

from ...consistency.position import START, show
from ...consistency.vector import PartitionId
from ...errors import LogTruncated
from ...events.codec import EventFrame, decode_event
from ...events.kinds import Kind
from ..counting import BEGINNING, Counting
from ..reading import PartitionRead
from .asking import ask
from .index import Entry, OffsetIndex
from .log import KafkaEventLog
from .recovery import find
from .scan import Place, Scan, base_at, newest_mark, no_base_at_start
from .settings import KafkaLog
from .wire import patiently

T = TypeVar("T")


class KafkaReader:
    """Connections for reading, as a context manager. The owners of the partitions are not disturbed."""

    def __init__(self, settings: KafkaLog) -> None:
        """Raises `ConnectFailed` where no server answers, `InvalidEvent` where aiokafka is not installed."""
        self._log = KafkaEventLog(settings)
        self._within_s = settings.request_timeout_s
        self._indices: dict[PartitionId, OffsetIndex] = {}
        self._walked: set[PartitionId] = set()
        """Those whose bases are all in their index."""

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

    def name_of(self, partition: PartitionId) -> str:
        """What Kafka calls it: TOPIC/PARTITION. Raises `UnknownTopic`."""
        place, _, _ = self._log.reaching(partition)
        return f"{place.topic}/{place.number}"

    def read(self, partition: PartitionId, after: int = START) -> PartitionRead:
        """From the oldest base on; the records are fetched as they are asked for, each page in a blocking call.

        With `after` they begin little before the first one behind that position, and there is no base. Raises `UnknownTopic` where
        Kafka has no topic with that id, `LogTruncated` where `after` lies before the log's start, `CorruptLog` where somebody else
        has removed records, `ConnectFailed` where Kafka does not answer in time. The records raise the same, and `CorruptLog` that
        names the offset of a damaged one, or says that the owner cut what was not read yet: then read again.
        """
        place, _, _ = self._log.reaching(partition)
        start, end = self._ask(place, place.ends)
        first, base = Entry(start, BEGINNING, 0), None
        if start:
            found = self._ask(place, lambda: base_at(place, start, end)) if start < end else None
            if found is None:
                raise no_base_at_start(place, start)
            whole, point = found
            first, base = Entry(start, point, whole.mark.nbytes if whole.mark else 0, is_base=True), whole.frame
        position = first.point.reached
        if START < after < position:
            raise LogTruncated(f"the log begins behind {show(position)}", partition=partition[1], position=after)
        if after > position:
            entry = self._ask(place, lambda: self._before(place, first, end, after))
            return PartitionRead(partition, None, position, self._records(place, entry, end), "")
        records = self._records(place, first, end)
        if base is not None:
            next(records)
        return PartitionRead(partition, decode_event(base) if base is not None else None, position, records, "")

    def read_newest(self, partition: PartitionId) -> PartitionRead:
        """From the newest base that counts; raises as `read` does. Holds what comes behind it in memory: a segment."""
        place, _, _ = self._log.reaching(partition)
        found = self._ask(place, lambda: find(place))
        base = decode_event(found.base) if found.base is not None else None
        return PartitionRead(partition, base, found.start, map(decode_event, found.records), "")

    async def _before(self, place: Place, first: Entry, end: int, after: int) -> Entry:
        """Where to begin for what lies behind `after`: goes back from base to base, each of which names the one before it."""
        index = self._indices.setdefault(place.partition, OffsetIndex())
        index.cut(first.offset)
        index.note(first)
        if place.partition not in self._walked:
            mark = await newest_mark(place, first.offset, end)
            while mark is not None and mark.base > first.offset:
                found = await base_at(place, mark.base, end)
                if found is None:
                    break
                whole, point = found
                mark = whole.mark
                index.note(Entry(whole.offset, point, mark.nbytes if mark else 0, is_base=True))
            self._walked.add(place.partition)
        return index.find(after) or first

    def _records(self, place: Place, first: Entry, end: int) -> Iterator[EventFrame]:
        index = self._indices.setdefault(place.partition, OffsetIndex())
        counting, scan, nbytes = Counting(first.point), Scan(place, first.offset, end), first.nbytes
        while not scan.is_done:
            for whole in self._ask(place, scan.page):
                before = counting.point
                if not counting.takes(whole.prefix, whole.frame):
                    continue
                index.note(Entry(whole.offset, before, nbytes, whole.prefix.kind is Kind.BASE))
                nbytes += len(whole.frame)
                if whole.prefix.kind is not Kind.CLAIM:
                    yield decode_event(whole.frame)

    def _ask(self, place: Place, work: Callable[[], Awaitable[T]]) -> T:
        """As `asking.ask`. What may pass, such as a leader that moves, is asked again: there is no owner here who would."""
        _, thread, patience_s = self._log.reaching(place.partition)
        return ask(place, thread, patiently(work, self._within_s), patience_s)

    def close(self) -> None:
        """Give back the connections. A second call changes nothing."""
        self._log.close()
