"""Opening a partition is a takeover each time: claim, reread, epoch record and base, and only then events are accepted.

It blocks for the log, and changes nothing that others see: `Partitions.take` makes this broker its owner.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from secrets import randbits

from ..consistency.position import epoch_of, position
from ..consistency.vector import PartitionId
from ..errors import CorruptLog, ParamstreamTimeout
from ..eventlog.log import EventLog, PartitionLog
from ..eventlog.memory import MemoryLog
from ..events.codec import EventFrame
from ..events.kinds import Table
from .effects import Append
from .fanout import FanOutCore
from .owned import META, Owned
from .partition import PartitionCore, PartitionSettings
from .takeover import claim_record

_log = logging.getLogger(__name__)

OPENING_S = 30.0
"""How long the log may take for the first records of an epoch."""

META_SETTINGS = PartitionSettings(role="meta", persistence="write_back")


class Opener:
    """Opens partitions of one event log. Thread-safe, as the log is."""

    def __init__(
        self,
        log: EventLog,
        memory: MemoryLog,
        owner: str,
        clock_s: Callable[[], float],
        monotonic_ns: Callable[[], int],
    ) -> None:
        self._log = log
        self._memory = memory
        self._owner = owner
        self._clock_s = clock_s
        self._monotonic_ns = monotonic_ns

    def open_meta(self) -> Owned:
        make_room_for_meta(self._log)
        return self.open(META, META_SETTINGS)

    def open(self, partition: PartitionId, settings: PartitionSettings, tables: Sequence[Table] = ()) -> Owned:
        """Take the partition over. `tables` are those of its topic in `__meta`: under persistence "none" a partition's own
        records do not last, and its definitions stand first in each epoch.

        Raises what the log raises; `Fenced` where another broker has claimed it meanwhile.
        """
        durable = self._log.open(partition)
        log = durable if settings.persistence != "none" else self._memory.anew(partition)
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
        self._open_epoch(owned, tables)
        _log.debug("partition %016x/%d is opened: epoch %d", *partition, core.epoch)
        if owned.cut:
            _log.info("partition %016x/%d: a torn tail was cut: %s", *partition, owned.cut)
        return owned

    def stand_still(self, partition: PartitionId, settings: PartitionSettings, error: CorruptLog) -> Owned:
        """The partition without its being opened: whoever asks for it is told `error`, and its log is left as it is."""
        _log.error("partition %016x/%d stands still: %s", *partition, error)
        error.topic = error.topic or settings.topic_name
        log = self._log.open(partition)
        return Owned(PartitionCore(partition, settings), FanOutCore(), log, log, error)

    def _open_epoch(self, owned: Owned, tables: Sequence[Table]) -> None:
        core, now_ns = owned.core, self._monotonic_ns()
        effects = core.open(int(self._clock_s() * 1e9), now_ns, self._log.boot, self._log.failed_writes)
        if not owned.lasts and core.settings.role == "state":
            for table in tables:
                effects += core.write(table, (), now_ns)
        for effect in effects:
            if isinstance(effect, Append):
                owned.append(effect)
        self._sync(owned.durable, core.sequenced if owned.lasts else position(core.epoch, 0))
        core.synced(core.sequenced)
        core.trimmed(owned.log.start)

    def _sync(self, log: PartitionLog, at: int) -> None:
        deadline_ns = self._monotonic_ns() + int(OPENING_S * 1e9)
        while log.sync() < at:
            if self._monotonic_ns() > deadline_ns:
                raise ParamstreamTimeout(
                    f"the log did not take the beginning of an epoch within {OPENING_S:g} s",
                    partition=log.partition[1],
                    remedy="Look at the log; it is tried again",
                )


def make_room_for_meta(log: EventLog) -> None:
    log.create_topic(META[0], "__meta", 1)
