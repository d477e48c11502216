"""How weights and values come back from SSD: by themselves when they are read, or all that is served at once; and from the log where
SSD has damaged them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from ..consistency.vector import PartitionId
from ..errors import CorruptTier, InvalidEvent, ParamstreamError, StorageFull
from ..tiers.entries import Entry
from ..tiers.store import TieredStore
from .applying import TopicState
from .links import MakeLink
from .pinning import Pinning
from .refetch import refetch_value
from .scope import time_left
from .versions import Sealed

MEND_S = 5.0
"""How long a look-up of a value that SSD has damaged waits for the log."""


class Resting:
    """Moves a replica's weights between the tiers of its store. Any thread; blocks for the disk."""

    def __init__(self, store: TieredStore, pinning: Pinning, make_link: MakeLink) -> None:
        self._store = store
        self._pinning = pinning
        self._make_link = make_link

    def demote(self, topics: Iterable[TopicState]) -> None:
        """As `Replica.demote`."""
        spill = self._store.spill
        if spill is None:
            raise InvalidEvent("the store has no ssd tier", remedy='Make it with TieredStore(ssd="DIR:SIZE")')
        for topic in topics:
            topic.rests = True
            topic.demote()
            self._store.trim()
            if spill.full and any(each.dense.is_resident and not each.dense.is_read for each in topic.all_held):
                raise StorageFull(spill.full, topic=topic.record.name, remedy="Make room there, or take a larger ssd=")

    def promote(self, topics: Iterable[TopicState], timeout: float) -> None:
        """As `Replica.promote`."""
        for topic in topics:
            topic.rests = False
            while (served := topic.served) is not None:
                if served.dense.retain():
                    try:
                        self.bring_back(topic, served, timeout)
                    finally:
                        served.dense.release()
                    break

    def bring_back(self, topic: TopicState, sealed: Sealed, timeout: float) -> None:
        """A version that the caller holds, to DRAM: from SSD or, where that is damaged, from the log or a snapshot."""
        try:
            sealed.dense.promote()
        except CorruptTier as damaged:
            damaged.topic = topic.record.name
            try:
                self._pinning.mend(topic, sealed, time.monotonic() + timeout)
            except ParamstreamError as error:
                raise damaged from error

    def value(self, topic: TopicState, partition: PartitionId, key: bytes, entry: Entry, *, mend: bool) -> bytes:
        """Of an entry that the partition's table has just given; with `mend` from the log, where SSD has damaged it."""
        table = self._store.entries(partition)
        try:
            return table.read(key, entry)
        except CorruptTier as damaged:
            damaged.topic, damaged.partition = topic.record.name, partition[1]
            if not mend:
                raise
            deadline = time.monotonic() + MEND_S
            try:
                value = refetch_value(
                    self._make_link, topic.record, partition[1], key, entry.position, lambda: time_left(deadline)
                )
            except ParamstreamError as error:
                raise damaged from error
        table.refill(key, entry, value)
        return value
