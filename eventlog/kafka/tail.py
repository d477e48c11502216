"""Reads a partition without owning it, and goes on reading what comes: for a broker that needs what another one owns."""

from __future__ import annotations

from collections.abc import Iterator

from ...consistency.vector import PartitionId
from ...events.codec import EventFrame, decode_event
from ...events.kinds import LOG_ONLY_KINDS
from ..counting import Counting
from ..log import Recovered
from .asking import ask
from .recovery import find
from .scan import Place, Scan
from .thread import KafkaThread


class Tail:
    """One partition as it stands in Kafka. Not thread-safe. Holds nothing that must be given back.

    tail = log.follow(partition)
    recovered = tail.recover()          # the newest base, and what counts behind it
    for frame in tail.read(): ...       # what has come since, to the log's end as of this call
    """

    def __init__(self, place: Place, thread: KafkaThread, patience_s: float) -> None:
        self._place = place
        self._thread = thread
        self._patience_s = patience_s
        self._counting = Counting()
        self._offset = 0

    @property
    def partition(self) -> PartitionId:
        return self._place.partition

    @property
    def reached(self) -> int:
        """The position of the last record that was read and counts."""
        return self._counting.reached

    def recover(self) -> Recovered:
        """Blocks. Raises as `PartitionLog.recover` does."""
        found = ask(self._place, self._thread, find(self._place), self._patience_s)
        self._counting, self._offset = Counting(found.point), found.end
        base = decode_event(found.base) if found.base is not None else None
        return Recovered(base, map(decode_event, found.records), found.point.epoch, "")

    def read(self) -> Iterator[EventFrame]:
        """Events, notes and epoch records that count, from where the last call ended. Blocks as it is read.

        Raises `ConnectFailed` where Kafka does not answer in time; what was given till then counts as read.
        """
        _, end = ask(self._place, self._thread, self._place.ends(), self._patience_s)
        scan = Scan(self._place, self._offset, end)
        while not scan.is_done:
            wholes = ask(self._place, self._thread, scan.page(), self._patience_s)
            for whole in wholes:
                counts = self._counting.takes(whole.prefix, whole.frame)
                if counts and whole.prefix.kind not in LOG_ONLY_KINDS:
                    yield decode_event(whole.frame)
            # Where a base has begun and not ended it is passed over: it would be given to nobody.
            self._offset = scan.offset
