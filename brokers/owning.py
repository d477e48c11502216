"""From the slots that a broker has to the partitions that it owns: what is opened, given up, and tried again.

One mechanism for all: a broker that has its log for itself has all slots from the start, one that shares a log is given some
in each generation. Its partitions are those that `__meta` knows in those slots. What is missing is opened in a worker, and as
long as anything is missing, the broker is not *settled*: hellos and joins wait.

    revoke(done)     slots may go: events wait, all that was appended becomes durable, a last note leaves every partition
    assign(...)      the slots of a new generation: what went is given up, clients are sent away, what came is opened
    stopped(...)     another broker's claim stands: the partition is given up, and claimed again a while later if it is still ours;
                     or its disk was full: it stays as it is, refuses, and is opened again once there is room
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ..consistency.vector import PartitionId
from ..errors import CorruptLog, Fenced, ParamstreamError, StorageFull
from ..events.codec import Buffer, EventFrame
from ..events.kinds import Note, Payload
from .following import MetaReader
from .holding import Holding
from .opening import META_SETTINGS
from .owned import META, Owned
from .ownership import Ownership
from .partition import PartitionSettings
from .partitions import Partitions
from .state import PartitionState
from .worker import Worker

_log = logging.getLogger(__name__)

CLAIM_AGAIN_S = (0.1, 1.0)
"""A random wait between these before a partition is claimed again that another broker has claimed; it doubles each time."""

LONGEST_WAIT_S = 30.0

LONGEST_WAIT_FOR_ROOM_S = 5.0
"""Between two looks at a disk that was full."""

FORGET_WAIT_S = 60.0
"""A partition that was open for so long since begins with a short wait again."""

Then = Callable[[], None]


class Shell(Protocol):
    """What the loop does for it."""

    def write(self, partition: PartitionId, payload: Payload, bulk: Sequence[Buffer]) -> int:
        """Write the broker's own event; returns its position."""
        ...

    def when_durable(self, needs: dict[PartitionId, int], then: Then) -> None:
        """`then` as soon as all of `needs` is durable; what is taken out of it meanwhile is waited for no longer."""
        ...

    def look_again(self) -> None:
        """Something that is waited for will not become durable here."""
        ...

    def drop_followers(self, partition: PartitionId) -> None:
        """The partition's topic was deleted."""
        ...

    def send_away(self) -> None:
        """All clients connect anew."""
        ...


@dataclass(frozen=True, slots=True)
class _Wait:
    """Before a partition is opened again."""

    seconds: float
    until: float


class Owning:
    """In the loop's thread, but for `start`, which comes before it."""

    def __init__(
        self,
        partitions: Partitions,
        worker: Worker,
        reader: MetaReader | None,
        holding: Holding,
        shell: Shell,
    ) -> None:
        """`reader` reads `__meta` while another broker owns it; None where none can."""
        self._partitions = partitions
        self._worker = worker
        self._reader = reader
        self._holding = holding
        self._shell = shell
        self._opening: set[PartitionId] = set()
        """In the worker."""
        self._waits: dict[PartitionId, _Wait] = {}
        self._held: set[PartitionId] = set()
        """Their events wait since `revoke`, until it is clear that they stay."""
        self._draining: dict[PartitionId, int] = {}
        """What `revoke` waits for."""
        self._full: dict[PartitionId, Owned] = {}
        """Those that a full disk has stopped."""
        self._goes_on = False
        """One of these was opened again, and clients do not know yet."""
        self._when_settled: list[Then] = []
        self._meta_is_read = False
        """Since `__meta` became another broker's."""
        self.is_revoking = False
        self.is_settled = False
        """Every partition of this broker's slots is open."""

    def start(self) -> None:
        """Open everything, in this thread: of a log that one broker has for itself. Raises what the log raises; a partition that is
        damaged stands still, and the others are served.
        """
        partitions = self._partitions
        partitions.take(partitions.opener.open_meta())
        for partition, settings in partitions.wanted().items():
            if partition != META:
                partitions.take(self._opening_of(partition, settings)())
        known = {META[0], *(topic.id for topic in partitions.meta.topics())}
        for topic_id in {topic_id for topic_id, _ in partitions.log.partitions()} - known:
            _log.info("topic %016x is dropped: it was deleted", topic_id)
            partitions.log.drop_topic(topic_id)
        self.is_settled = True

    # --- slots that come and go -----------------------------------------------------------------------------------------

    def revoke(self, done: Then) -> None:
        """Any slot may go to another broker. `done` once nothing that was accepted can be lost by that."""
        self.is_revoking, self.is_settled = True, False
        self._draining = {}
        for partition, owned in self._partitions.owned.items():
            if owned.error is None and partition != META:
                self._hold(partition)
                self._leave(partition, owned)
            if owned.error is None:
                self._draining[partition] = owned.core.sequenced
        self._shell.when_durable(self._draining, done)

    def assign(self, ownership: Ownership) -> None:
        """These are this broker's slots from now on."""
        partitions = self._partitions
        _log.info("generation %d: this broker has %d slots", ownership.generation, len(ownership.slots))
        partitions.ownership, self.is_revoking = ownership, False
        self._shell.send_away()
        for partition in list(partitions.owned):
            if not ownership.has(partition):
                self._give_up(partition)
        for partition in list(self._held):
            # A join writes a record behind the note that left it, and no event is taken before one.
            partitions.owned[partition].core.part_all()
            self._release(partition)
        self._waits.clear()
        if self._reader is not None:
            self._read_meta(self._reader)
        self.reconcile()

    def stopped(self, owned: Owned, error: ParamstreamError) -> None:
        """A partition's log takes nothing more. Where that is because another broker's claim stands, it is given up: what is not
        durable by now never will be.
        """
        partition = owned.core.partition
        if self._partitions.owned.get(partition) is not owned:
            return
        self._draining.pop(partition, None)
        if isinstance(error, Fenced):
            _log.info("partition %016x/%d is given up: %s", *partition, error)
            self._shell.send_away()
            self._give_up(partition)
            self._wait(partition)
            self.reconcile()
        elif isinstance(error, StorageFull) and not self._partitions.log.shared:
            self._full[partition] = owned
            self._wait(partition, LONGEST_WAIT_FOR_ROOM_S)
        self._shell.look_again()

    def leave(self) -> None:
        """The broker closes: a last note in each partition, for whoever owns it next. The caller syncs."""
        for partition, owned in self._partitions.owned.items():
            if owned.error is None and partition != META:
                self._leave(partition, owned)

    # --- what is to be owned --------------------------------------------------------------------------------------------

    def when_settled(self, then: Then) -> None:
        """`then` now, or as soon as every partition of this broker's slots is open."""
        if self.is_settled:
            then()
        else:
            self._when_settled.append(then)

    def read_on(self, then: Then) -> None:
        """`then` with all that stands in `__meta` by now, and every partition of it that is this broker's open."""
        if self._reader is None or not self._reader.is_reading:
            self.when_settled(then)
        else:
            self._reader.ask(lambda: self.when_settled(then))

    def tick(self, now: float) -> None:
        """Try again what is due."""
        if not self.is_settled and any(wait.until <= now for wait in self._waits.values()):
            self.reconcile()
        if self._full:
            self._open_again(now)

    def reconcile(self) -> None:
        """Open what is missing, give up what nobody needs any more: whenever slots or `__meta` have changed."""
        partitions, ownership = self._partitions, self._partitions.ownership
        self.is_settled = False
        if partitions.has_meta or self._meta_is_read:
            self._give_up_deleted()
        if self.is_revoking or (partitions.log.shared and not ownership.generation):
            return
        if not partitions.has_meta:
            if ownership.has(META):
                self._submit(META, META_SETTINGS)
                return
            if not self._meta_is_read:
                return
        wanted = partitions.wanted()
        missing = [partition for partition in wanted if partition not in partitions.owned]
        for partition in missing:
            self._submit(partition, wanted[partition])
        self.is_settled = not missing
        if self.is_settled:
            waiting, self._when_settled = self._when_settled, []
            for then in waiting:
                then()

    # --- inside ---------------------------------------------------------------------------------------------------------

    def _submit(self, partition: PartitionId, settings: PartitionSettings) -> None:
        """Open it in the worker, unless that is under way, or is to wait."""
        wait = self._waits.get(partition)
        if partition in self._opening or (wait is not None and wait.until > time.monotonic()):
            return
        self._opening.add(partition)
        self._worker.do(self._opening_of(partition, settings), partial(self._opened, partition))

    def _opening_of(self, partition: PartitionId, settings: PartitionSettings) -> Callable[[], Owned]:
        opener = self._partitions.opener
        if partition == META:
            return opener.open_meta
        # What is defined now: the worker must not look at what the loop changes.
        tables = self._partitions.meta.tables(partition[0])

        def work() -> Owned:
            try:
                return opener.open(partition, settings, tables)
            except CorruptLog as error:
                return opener.stand_still(partition, settings, error)

        return work

    def _opened(self, partition: PartitionId, result: Owned | ParamstreamError) -> None:
        self._opening.discard(partition)
        partitions = self._partitions
        if partition in self._full:
            self._tried_again(partition, result)
        elif isinstance(result, ParamstreamError):
            _log.info("partition %016x/%d cannot be opened: %s", *partition, result)
            self._wait(partition)
        elif not self.is_revoking and partitions.ownership.has(partition) and partition not in partitions.owned:
            partitions.take(result)
        else:
            partitions.give_up(partition)
        if not self._opening:
            if self._goes_on:
                self._goes_on = False
                self._shell.send_away()
            self.reconcile()

    def _open_again(self, now: float) -> None:
        """What a full disk has stopped, where that is due."""
        due = [partition for partition in self._full if self._waits[partition].until <= now]
        wanted = self._partitions.wanted() if due else {}
        for partition in due:
            if self._partitions.owned.get(partition) is self._full[partition] and partition in wanted:
                self._submit(partition, wanted[partition])
            else:
                del self._full[partition]

    def _tried_again(self, partition: PartitionId, result: Owned | ParamstreamError) -> None:
        if isinstance(result, StorageFull):
            self._wait(partition, LONGEST_WAIT_FOR_ROOM_S)
            return
        full = self._full.pop(partition)
        if isinstance(result, ParamstreamError):
            full.error = result
            return
        _log.info("partition %016x/%d goes on: its disk has room", *partition)
        self._partitions.take(result)
        self._goes_on = True

    def _wait(self, partition: PartitionId, longest_s: float = LONGEST_WAIT_S) -> None:
        now, known = time.monotonic(), self._waits.get(partition)
        lately = known is not None and now < known.until + FORGET_WAIT_S
        seconds = min(2 * known.seconds, longest_s) if known and lately else random.uniform(*CLAIM_AGAIN_S)
        self._waits[partition] = _Wait(seconds, now + seconds)

    def _give_up_deleted(self) -> None:
        """What `revoke` waits for, too: where a topic is gone from the log, nothing becomes durable any more."""
        deleted = self._partitions.owned.keys() - self._partitions.wanted().keys()
        for partition in deleted:
            self._shell.drop_followers(partition)
            self._give_up(partition)
        if deleted:
            self._shell.look_again()

    def _give_up(self, partition: PartitionId) -> None:
        self._release(partition)
        self._partitions.give_up(partition)

    def _hold(self, partition: PartitionId) -> None:
        if partition not in self._held:
            self._held.add(partition)
            self._holding.close([partition])

    def _release(self, partition: PartitionId) -> None:
        if partition in self._held:
            self._held.remove(partition)
            self._holding.open([partition])

    def _leave(self, partition: PartitionId, owned: Owned) -> None:
        """From here on the note says that nothing more was sequenced; so nothing may be, while it is the last record."""
        if owned.lasts and owned.core.state.left != owned.core.sequenced:
            self._shell.write(partition, Note(leaves=True), ())

    def _read_meta(self, reader: MetaReader) -> None:
        if self._partitions.ownership.has(META):
            reader.stop()
            self._meta_is_read = False
        elif not reader.is_reading:
            reader.start(self._meta_told)

    def _meta_told(self, state: PartitionState | None, records: list[EventFrame]) -> None:
        self._meta_is_read = True
        if state is not None:
            self._partitions.read_meta = state
        for record in records:
            self._partitions.read_meta.apply(record, registry=True)
        self.reconcile()
