"""Weights that rest on SSD, and how they come back: by themselves when they are read, or all that is served at once."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ..errors import CorruptTier, InvalidEvent, ParamstreamError, StorageFull
from ..tiers.store import TieredStore
from .applying import TopicState
from .pinning import Pinning
from .versions import Sealed


class Resting:
    """Moves a replica's weights between the tiers of its store. Any thread; blocks for the disk."""

    def __init__(self, store: TieredStore, pinning: Pinning) -> None:
        self._store = store
        self._pinning = pinning

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
