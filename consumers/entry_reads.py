"""What users read of a replica's entries. Any thread, and no lock of the replica but where it is recorded."""

from __future__ import annotations

import time

from ..consistency.vector import PartitionId
from ..errors import InvalidEvent
from ..events.digest import partition_of
from ..events.validate import key_bytes
from .applying import TopicState
from .live_state import LiveState
from .resting import Resting


class EntryReads:
    """Of the state partitions that one replica follows."""

    def __init__(self, live: LiveState, resting: Resting) -> None:
        self._live = live
        self._resting = resting

    def get(self, topic: TopicState, key: bytes | str) -> bytes | None:
        """As `Replica.get`. Raises `InvalidEvent` for a key of a state partition that is not followed."""
        raw = key_bytes(key)
        number, followed = partition_of(raw, topic.record.partitions), self._live.scope.partitions
        if followed is not None and number not in followed:
            raise InvalidEvent(
                "the key belongs to a state partition that this replica does not follow",
                topic=topic.record.name,
                partition=number,
                item=repr(raw[:64]),
            )
        partition = topic.record.id, number
        if self._live.recorder is None:
            return self._value(topic, partition, raw)
        with self._live.sink.changed:
            return self._value(topic, partition, raw)

    def _value(self, topic: TopicState, partition: PartitionId, key: bytes) -> bytes | None:
        live = self._live
        at, heard, _ = live.sink.clock.get(partition, (0, 0.0, 0))
        now = at + int((time.monotonic() - heard) * 1e9) if at else 0
        entry = live.store.entries(partition).get(key, now)
        if entry is not None and entry.valid_for is not None:
            served = topic.served
            if served is None or not served.may_be_read_beside(partition, entry.position, *entry.valid_for):
                return None
        if live.recorder is not None and not live.topics.closed:  # What a close has given back already is no miss.
            live.recorder.reads_entry(partition, key, entry)
        if entry is None:
            return None
        # A recorded read is made under the lock, under which nothing may be waited for.
        return self._resting.value(topic, partition, key, entry, mend=live.recorder is None)
