"""The partitions that this broker owns, and what it knows of the others: what stands in `__meta`, and who has which slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from ..consistency.position import show
from ..consistency.vector import PartitionId
from ..errors import CorruptLog, InvalidEvent, NotOwner, ParamstreamError, UnknownTopic
from ..eventlog.log import EventLog, PartitionLog, SharedLog
from ..eventlog.memory import MemoryLog
from ..events.codec import Head, decode_vector
from ..events.kinds import Commit, Payload
from ..transport.calls import TopicRecord
from .checks import Role
from .fanout import ring_share
from .meta import MetaState
from .opening import META_SETTINGS, Opener
from .owned import META, Owned
from .ownership import EVERYTHING, NOTHING, Ownership
from .partition import PartitionSettings, Persistence
from .state import PartitionState

MAX_CHECKED = 4096
"""Vectors remembered as checked: neighbours carry the same ones."""


class Partitions:
    """All that this broker owns, over one event log and the memory for persistence "none".

    The loop's thread changes it. Others may read `logs`, `shown` and `ownership`, and ask `absent`.
    """

    def __init__(
        self, log: EventLog, owner: str, clock_s: Callable[[], float], monotonic_ns: Callable[[], int]
    ) -> None:
        self.log = log
        self.memory = MemoryLog(limit=log.limit)
        self.shared_log = cast("SharedLog", log) if log.shared else None
        self.opener = Opener(log, self.memory, owner, clock_s, monotonic_ns)
        self.ownership: Ownership = NOTHING if log.shared else EVERYTHING
        self.owned: dict[PartitionId, Owned] = {}
        self.keeper = ""
        """What names the keeper of this broker, whose announced snapshots let state leave the log; empty where there is none."""
        self.logs: dict[PartitionId, PartitionLog] = {}
        """For the fetch thread: replaced by item, never rebuilt."""
        self.shown: dict[PartitionId, int] = {}
        """The last position that readers may see."""
        self.read_meta = PartitionState()
        """`__meta` as it was last read from the log, where another broker owns it."""
        self._checked: dict[bytes, None] = {}
        """Encoded vectors that have passed `check_past`: what was sequenced once stays so."""

    # --- what is owned ---

    def take(self, owned: Owned) -> None:
        """Be the owner of a partition that was opened."""
        partition = owned.core.partition
        self.owned[partition] = owned
        if owned.error is None:
            self.shown[partition] = owned.core.accepted
            self.logs[partition] = owned.log
        self._share_rings()

    def give_up(self, partition: PartitionId) -> Owned | None:
        """Be its owner no longer; nothing where this broker is not."""
        owned = self.owned.pop(partition, None)
        self.logs.pop(partition, None)
        self.shown.pop(partition, None)
        if owned is not None and not owned.lasts:
            self.memory.drop(partition)
        if self.shared_log is not None:
            self.shared_log.release(partition)
        self._checked.clear()
        self._share_rings()
        return owned

    def wanted(self) -> dict[PartitionId, PartitionSettings]:
        """Every partition of this broker's slots that `__meta` knows."""
        found: dict[PartitionId, PartitionSettings] = {}
        for topic in self.meta.topics():
            found |= self.settings_of(topic)
        if self.ownership.has(META):
            found[META] = META_SETTINGS
        return found

    def settings_of(self, topic: TopicRecord) -> dict[PartitionId, PartitionSettings]:
        """Those of the topic's partitions that are this broker's."""
        found: dict[PartitionId, PartitionSettings] = {}
        for number in range(topic.partitions + 1):
            partition = (topic.id, number)
            if self.ownership.has(partition):
                role: Role = "weights" if number == topic.partitions else "state"
                persistence = cast("Persistence", topic.persistence)
                found[partition] = PartitionSettings(role, persistence, topic.retain_versions, topic.name)
        return found

    def is_here(self, partition: PartitionId) -> bool:
        """It is this broker's, if there is such a partition."""
        return partition in self.owned or self.ownership.has(partition)

    def absent(self, partition: PartitionId) -> ParamstreamError:
        """Why this broker does not have the partition."""
        _, number = partition
        if not self.ownership.has(partition):
            return NotOwner("another broker owns the partition", partition=number, remedy="Look up its owner again")
        return UnknownTopic(f"this broker has no partition {number} of topic {partition[0]:016x}")

    def healthy(self, partition: PartitionId) -> Owned:
        """Raises why this broker does not have the partition, or why it stopped."""
        owned = self.owned.get(partition)
        if owned is None:
            raise self.absent(partition)
        if owned.error is not None:
            raise owned.error
        return owned

    # --- what `__meta` says ---

    @property
    def has_meta(self) -> bool:
        return META in self.owned

    @property
    def meta(self) -> MetaState:
        owned = self.owned.get(META)
        return owned.core.meta if owned is not None else MetaState(self.read_meta.entries)

    # --- bytes ---

    @property
    def nbytes(self) -> int:
        return self.log.nbytes + self.memory.nbytes

    @property
    def limit(self) -> int:
        return self.log.limit

    @property
    def durable_on_append(self) -> bool:
        return self.log.durable_on_append

    def close(self) -> None:
        self.memory.close()
        self.log.close()

    # --- what events rest on ---

    def check_past(self, head: Head, payload: Payload) -> None:
        """Raises `InvalidEvent` where an event depends on a position that its partition has not reached: whoever applies it
        in order would wait for ever. Partitions that this broker does not own, or that stand still, are not judged.
        """
        vectors = (head.own, head.observed, payload.needs) if isinstance(payload, Commit) else (head.own, head.observed)
        for data in vectors:
            if data not in self._checked:
                self._check_vector(data)
                if len(self._checked) >= MAX_CHECKED:
                    self._checked.clear()
                self._checked[data] = None

    def _check_vector(self, data: bytes) -> None:
        try:
            vector = decode_vector(data)
        except CorruptLog as error:
            raise InvalidEvent(f"the event's vector cannot be decoded: {error.problem}") from error
        for (topic, number), at in vector.items():
            owned = self.owned.get((topic, number))
            if owned is not None and owned.error is None and at > owned.core.sequenced:
                raise InvalidEvent(
                    f"it depends on {show(at)}, which is not sequenced yet: the partition stands at {show(owned.core.sequenced)}",
                    topic=owned.core.settings.topic_name,
                    partition=number,
                    position=at,
                    remedy="Observe what replicas, receipts and events say, of this log",
                )

    def _share_rings(self) -> None:
        """However many partitions there are, what is kept of recent events stays bounded."""
        share = ring_share(len(self.owned))
        for owned in self.owned.values():
            owned.fanout.ring_bytes = share
