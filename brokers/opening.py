"""Opening a partition is a takeover each time: claim, reread, epoch record and base, and only then events are accepted.

It blocks for the log, and changes nothing that others see: `Partitions.take` makes this broker its owner.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from secrets import randbits

from ..consistency.position import epoch_of, position
from ..consistency.vector import PartitionId
from ..errors import CorruptLog, ParamstreamTimeout
from ..eventlog.log import EventLog
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


@dataclass(slots=True)
class Opening:
    """A takeover under way."""

    owned: Owned
    claim: bytearray
    tables: Sequence[Table]
    waits_for: int = 0
    """The last position of the epoch's beginning."""


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
        opening = self.begin(partition, settings, tables)
        owned = opening.owned
        self.claimed(opening, owned.durable.claim(opening.claim))
        deadline_ns = self._monotonic_ns() + int(OPENING_S * 1e9)
        while owned.durable.sync() < opening.waits_for:
            if self._monotonic_ns() > deadline_ns:
                raise ParamstreamTimeout(
                    f"the log did not take the beginning of an epoch within {OPENING_S:g} s",
                    partition=partition[1],
                    remedy="Look at the log; it is tried again",
                )
        return self.opened(opening)

    def stand_still(self, partition: PartitionId, settings: PartitionSettings, error: CorruptLog) -> Owned:
        """The partition without its being opened: whoever asks for it is told `error`, and its log is left as it is."""
        _log.error("partition %016x/%d stands still: %s", *partition, error)
        error.topic = error.topic or settings.topic_name
        log = self._log.open(partition)
        return Owned(PartitionCore(partition, settings), FanOutCore(), log, log, error)

    # --- the same step by step, for whoever must not wait ------------------------------------------------------------------

    def begin(self, partition: PartitionId, settings: PartitionSettings, tables: Sequence[Table] = ()) -> Opening:
        """Read what stands. `Opening.claim` is to be appended to `Opening.owned.durable` next."""
        durable = self._log.open(partition)
        log = durable if settings.persistence != "none" else self._memory.anew(partition)
        core = PartitionCore(partition, settings)
        recovered = durable.recover()
        if log is durable:
            core.recover(recovered.base, recovered.records)
        else:
            log.recover()
            for record in core.recover_epochs(recovered.records):
                # Readers that were away find every epoch record between, as in a log that lasts.
                log.append(claim_record(partition, epoch_of(record.position), record.nonce, self._owner))
                log.append(record.buffer)
        claim = core.claim(recovered.last_claim, self._clock_s(), randbits(32), self._owner)
        return Opening(Owned(core, FanOutCore(), log, durable, cut=recovered.cut), claim, tables)

    def claimed(self, opening: Opening, records: Iterable[EventFrame]) -> None:
        """The claim stands, behind these records: append the beginning of the epoch. `Opening.waits_for` is to be durable next."""
        owned, now_ns = opening.owned, self._monotonic_ns()
        core = owned.core
        core.reread(records)
        if not owned.lasts:
            owned.log.append(opening.claim)
        effects = core.open(int(self._clock_s() * 1e9), now_ns, self._log.boot, self._log.failed_writes)
        if not owned.lasts and core.settings.role == "state":
            for table in opening.tables:
                effects += core.write(table, (), now_ns)
        for effect in effects:
            if isinstance(effect, Append):
                owned.append(effect)
        opening.waits_for = core.sequenced if owned.lasts else position(core.epoch, 0)

    def opened(self, opening: Opening) -> Owned:
        """The beginning of the epoch is durable: events may be accepted."""
        owned = opening.owned
        core = owned.core
        core.synced(core.sequenced)
        core.trimmed(owned.log.start)
        _log.debug("partition %016x/%d is opened: epoch %d", *core.partition, core.epoch)
        if owned.cut:
            _log.info("partition %016x/%d: a torn tail was cut: %s", *core.partition, owned.cut)
        return owned


def make_room_for_meta(log: EventLog) -> None:
    log.create_topic(META[0], "__meta", 1)
