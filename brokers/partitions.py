"""The partitions that this broker owns: for each its core, its logs, and what is to be done when it moves.

Opening a partition is a takeover each time: claim, reread, epoch record and base, and only then events are accepted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import randbits
from typing import cast

from ..consistency.position import epoch_of, show
from ..consistency.vector import PartitionId
from ..errors import CorruptLog, InvalidEvent, ParamstreamError
from ..eventlog.log import EventLog, PartitionLog
from ..eventlog.memory import MemoryLog
from ..events.codec import EventFrame, Head, decode_vector
from ..events.kinds import Commit, Payload
from ..transport.calls import TopicRecord
from ..transport.messages import Heads
from .checks import Role
from .effects import Append
from .fanout import FanOutCore, ring_share
from .load import Load
from .meta import MetaState
from .partition import PartitionCore, PartitionSettings, Persistence
from .takeover import claim_record

_log = logging.getLogger(__name__)

META: PartitionId = (0, 0)
"""The partition that holds topics, tables, incarnations and announced snapshots."""

MAX_CHECKED = 4096
"""Vectors remembered as checked: neighbours carry the same ones."""


@dataclass(slots=True)
class Owned:
    """A partition that this broker owns."""

    core: PartitionCore
    fanout: FanOutCore
    log: PartitionLog
    """Where events are appended and fetched from: under persistence "none" the broker's memory."""
    durable: PartitionLog
    """Where claims and epoch records go: the same log, but for "none"."""
    error: ParamstreamError | None = None
    """Why the partition stopped, if it did."""
    cut: str = ""
    """What a torn tail lost at the opening."""
    load: Load = field(default_factory=Load)

    def append(self, effect: Append) -> None:
        """To the log that readers read; claims and epoch records of a "none" topic also to the one that lasts."""
        self.log.append(effect.frame)
        self.load.appended(len(effect.frame))
        if effect.lasting and self.log is not self.durable:
            self.durable.append(effect.frame)

    def append_base_if_due(self) -> None:
        """Behind all that the core has returned to append: a full segment is closed by a base, which opens the next one."""
        if self.log.wants_base:
            self.log.append(self.core.base())

    def heads(self, monotonic_ns: int, sent: int = 0) -> Heads:
        core = self.core
        return Heads(*core.partition, core.accepted, core.durable, sent, core.time(monotonic_ns))


class Partitions:
    """All that this broker owns, over one event log and the memory for persistence "none"."""

    def __init__(
        self, log: EventLog, owner: str, clock_s: Callable[[], float], monotonic_ns: Callable[[], int]
    ) -> None:
        self._log = log
        self._memory = MemoryLog(limit=log.limit)
        self._owner = owner
        self._clock_s = clock_s
        self._monotonic_ns = monotonic_ns
        self.owned: dict[PartitionId, Owned] = {}
        self.logs: dict[PartitionId, PartitionLog] = {}
        """For the fetch thread: replaced by item, never rebuilt."""
        self.shown: dict[PartitionId, int] = {}
        """The last position that readers may see."""
        self._checked: dict[bytes, None] = {}
        """Encoded vectors that have passed `check_past`: what was sequenced once stays so."""

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

    @property
    def nbytes(self) -> int:
        return self._log.nbytes + self._memory.nbytes

    @property
    def limit(self) -> int:
        return self._log.limit

    @property
    def durable_on_append(self) -> bool:
        return self._log.durable_on_append

    @property
    def meta(self) -> MetaState:
        return self.owned[META].core.meta

    def open_meta(self) -> Owned:
        self._log.create_topic(META[0], "__meta", 1)
        return self._open(META, PartitionSettings(role="meta", persistence="write_back"))

    def open_topic(self, topic: TopicRecord, *, or_none: bool = False) -> None:
        """Open the topic's partitions. One whose log is damaged stands still, with the reason; the others are served.

        `or_none`: raise that reason instead, as for a topic that is new.
        """
        self._log.create_topic(topic.id, topic.name, topic.partitions + 1)
        for number in range(topic.partitions + 1):
            role: Role = "weights" if number == topic.partitions else "state"
            persistence = cast("Persistence", topic.persistence)
            settings = PartitionSettings(role, persistence, topic.retain_versions, topic.name)
            try:
                owned = self._open((topic.id, number), settings)
            except ParamstreamError as error:
                error.topic = error.topic or topic.name
                if or_none or not isinstance(error, CorruptLog):
                    raise
                self._stand_still((topic.id, number), settings, error)
                continue
            if persistence == "none" and role == "state":
                self._define_tables(owned)

    def open_new_topic(self, topic: TopicRecord) -> None:
        """All partitions of the topic, or none. Raises what the log raises."""
        try:
            self.open_topic(topic, or_none=True)
        except ParamstreamError:
            with suppress(ParamstreamError):
                self.drop_topic(topic)
            raise

    def drop_topic(self, topic: TopicRecord) -> None:
        for number in range(topic.partitions + 1):
            partition = (topic.id, number)
            self.owned.pop(partition, None)
            self.logs.pop(partition, None)
            self.shown.pop(partition, None)
        self._log.drop_topic(topic.id)
        self._memory.drop_topic(topic.id)
        self._share_rings()

    def close(self) -> None:
        self._memory.close()
        self._log.close()

    def _define_tables(self, owned: Owned) -> None:
        """Under "none" a partition's own records do not last: its definitions stand first in each epoch, from `__meta`."""
        for table in self.meta.tables(owned.core.partition[0]):
            for effect in owned.core.write(table, (), self._monotonic_ns()):
                if isinstance(effect, Append):
                    owned.append(effect)
        self.shown[owned.core.partition] = owned.core.accepted

    def _stand_still(self, partition: PartitionId, settings: PartitionSettings, error: CorruptLog) -> None:
        """Own the partition without opening it: whoever asks for it is told `error`, and its log is left as it is."""
        _log.error("partition %016x/%d stands still: %s", *partition, error)
        log = self._log.open(partition)
        self.owned[partition] = Owned(PartitionCore(partition, settings), FanOutCore(), log, log, error)

    def _open(self, partition: PartitionId, settings: PartitionSettings) -> Owned:
        durable = self._log.open(partition)
        log = self._memory.open(partition) if settings.persistence == "none" else durable
        core = PartitionCore(partition, settings)
        recovered = durable.recover()
        records: Iterable[EventFrame] = recovered.records
        if log is not durable:
            log.recover()
            records = list(records)
            for record in records:
                # Readers that were away find every epoch record between, as in a log that lasts.
                log.append(claim_record(partition, epoch_of(record.position), record.nonce, self._owner))
                log.append(record.buffer)
        core.recover(recovered.base, records)
        claim = core.claim(recovered.last_claim, self._clock_s(), randbits(32), self._owner)
        core.reread(durable.claim(claim))
        if log is not durable:
            log.append(claim)
        owned = Owned(core, FanOutCore(), log, durable, cut=recovered.cut)
        opening = core.open(int(self._clock_s() * 1e9), self._monotonic_ns(), self._log.boot, self._log.failed_writes)
        for effect in opening:
            if isinstance(effect, Append):
                owned.append(effect)
        durable.sync()
        core.synced(core.sequenced)
        core.trimmed(log.start)
        _log.debug("partition %016x/%d is opened: epoch %d", *partition, core.epoch)
        if owned.cut:
            _log.info("partition %016x/%d: a torn tail was cut: %s", *partition, owned.cut)
        self.owned[partition] = owned
        self.logs[partition] = log
        self.shown[partition] = core.accepted
        self._share_rings()
        return owned

    def _share_rings(self) -> None:
        """However many partitions there are, what is kept of recent events stays bounded."""
        share = ring_share(len(self.owned))
        for owned in self.owned.values():
            owned.fanout.ring_bytes = share
