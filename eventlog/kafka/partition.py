"""One partition in Kafka while its owner lives: append, ack, read back, read, cut.

A task in the Kafka thread does what `core.OwnerCore` asks for; all else happens in the caller's thread. `_changed` guards the
fields and is held for moments only, never over a request.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterator
from threading import Condition
from typing import Any, TypeVar

from ...consistency.position import show
from ...consistency.vector import PartitionId
from ...errors import ConnectFailed, CorruptLog, Fenced, LogTruncated, ParamstreamError
from ...events.codec import Buffer, EventFrame, decode_event, read_prefix
from ...events.kinds import LOG_ONLY_KINDS, Kind
from ..counting import Counting
from ..log import Batch, Recovered
from ..tally import Tally
from .asking import ask, refused
from .core import OwnerCore, Reread, Send, Stood
from .index import Entry, OffsetIndex
from .lookup import Lookup
from .recovery import Found, find
from .scan import Place, Scan, base_at
from .thread import KafkaThread
from .wire import OutOfRange, Refused, TooLarge, TopicUnknown, Trouble

_log = logging.getLogger(__name__)
T = TypeVar("T")

SYNC_WAIT_S = 0.2
"""`sync` returns after so long at the latest, with how far it has come."""

RETRY_S = 0.2
"""Between two tries while Kafka is in trouble."""


class KafkaPartition:
    """See `log.PartitionLog`. A frame that is given is kept until it is durable, not copied, and must not change."""

    def __init__(
        self,
        place: Place,
        *,
        thread: KafkaThread,
        segment_nbytes: int,
        tally: Tally,
        patience_s: float,
        owned: Callable[[KafkaPartition], None],
    ) -> None:
        """`patience_s`: how long a call that waits for Kafka asks again. `owned` is called before the first append."""
        self._place = place
        self._thread = thread
        self._segment_nbytes = segment_nbytes
        self._tally = tally
        self._patience_s = patience_s
        self._changed = Condition()
        self._core = OwnerCore(place.partition, Counting().point, 0)
        self._index = OffsetIndex()
        self._lookup = Lookup(place, self._index, self._changed)
        self._start, self._start_nbytes = 0, 0
        self._base_nbytes = 0
        """`OwnerCore.nbytes` behind the last base that was appended."""
        self._recovered = False
        self._owned = owned
        self._is_owned = False
        """Something was appended: from then on this broker writes it, or is fenced."""
        self._broken: ParamstreamError | None = None
        """Why nothing more can be written, once that is so."""
        self._wake = asyncio.Event()
        self._is_woken = False
        self._task: asyncio.Task[None] | None = None
        self._trouble = ""
        self._began = self._looked = -math.inf
        """When the present work began; and when the last one did by which all that stood then is known."""
        self._is_released = False
        self._counted = 0
        """What of the tally is this partition's: its bytes, while it is owned here."""

    @property
    def partition(self) -> PartitionId:
        return self._place.partition

    @property
    def start(self) -> int:
        return self._start

    @property
    def nbytes(self) -> int:
        return self._core.nbytes - self._start_nbytes

    @property
    def wants_base(self) -> bool:
        return self._core.nbytes - self._base_nbytes >= self._segment_nbytes

    @property
    def trouble(self) -> str:
        """Why nothing becomes durable just now, or ever again; empty where all is well."""
        return self._trouble if self._broken is None else str(self._broken)

    # Opening.

    def recover(self) -> Recovered:
        assert not self._recovered, "a partition is recovered once, before the first append"
        found = self._ask(find(self._place))
        with self._changed:
            self._recovered = True
            self._take(found)
        base = decode_event(found.base) if found.base is not None else None
        return Recovered(base, map(decode_event, found.records), found.point.epoch, "")

    def _take(self, found: Found) -> None:
        self._core = OwnerCore(self.partition, found.point, found.end, found.base_offset, found.nbytes)
        self._index = found.index
        self._lookup = Lookup(self._place, found.index, self._changed)
        self._start, self._start_nbytes = found.start, found.start_nbytes
        last = found.index.last_base
        self._base_nbytes = found.start_nbytes
        if last is not None and found.base is not None:
            self._base_nbytes = last.nbytes + len(found.base)

    def _begin(self) -> None:
        """The first append: from now on a task sends, and the bytes count here."""
        self._owned(self)
        with self._changed:
            self._is_owned = True
            self._count(self.nbytes)
        self._thread.call(self._start_task(), self._patience_s)

    async def _start_task(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"{self._place.topic}/{self._place.number}")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """What nobody foresaw stops the partition as well: it must not look as if Kafka were slow."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("%s: the task that writes it failed", task.get_name(), exc_info=error)
            problem = f"writing the Kafka topic {self._place.topic} failed: {error!r}"
            self._break(
                CorruptLog(problem, partition=self._place.number, remedy="Report this, and start the broker again")
            )

    def claim(self, frame: Buffer) -> Iterator[EventFrame]:
        """Raises `ConnectFailed` where Kafka does not answer in time; then the claim may stand, and count."""
        self.append(frame)
        deadline = time.monotonic() + self._patience_s
        with self._changed:
            while self._core.stood < self._core.appended:
                self._check()
                if not self._changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    raise ConnectFailed(
                        f"no claim stands in the Kafka topic {self._place.topic}: {self._trouble or 'no answer in time'}",
                        partition=self._place.number,
                    )
            others, self._core.others = self._core.others, []
            self._count(self.nbytes)
        return map(decode_event, others)

    # Writing.

    def append(self, frame: Buffer) -> None:
        view = memoryview(frame)
        if not self._is_owned:
            self._check()
            self._begin()
        with self._changed:
            self._check()
            prefix = self._core.append(view)
            if prefix is None:
                return
            if prefix.kind is Kind.BASE:
                self._base_nbytes = self._core.nbytes
            is_woken, self._is_woken = self._is_woken, True
            self._count(self.nbytes)
        if not is_woken:
            self._thread.soon(self._wake.set)

    def sync(self) -> int:
        deadline = time.monotonic() + SYNC_WAIT_S
        with self._changed:
            goal = self._core.appended
            while True:
                self._check()
                left = deadline - time.monotonic()
                if self._core.stood >= goal or left <= 0:
                    return self._core.known.reached
                self._changed.wait(left)

    def look(self, since: float) -> bool:
        with self._changed:
            self._check()
            if self._looked >= since:
                return True
            self._core.look()
        self._thread.soon(self._wake.set)
        return False

    def _check(self) -> None:
        assert self._recovered, "recover a partition before the first append"
        if self._broken is not None:
            raise self._broken

    # In the Kafka thread.

    async def _run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                with self._changed:
                    self._is_woken = False
                await self._work()
        except ParamstreamError as error:
            self._break(error)

    async def _work(self) -> None:
        """All that there is to do now."""
        while True:
            with self._changed:
                self._began = time.monotonic()
                work = self._core.work()
            try:
                match work:
                    case Send():
                        await self._send(work)
                    case Reread():
                        await self._reread(work)
                    case None:
                        return
            except Trouble as trouble:
                await self._wait_out(trouble)
            else:
                self._trouble = ""

    async def _send(self, work: Send) -> None:
        try:
            offset = await self._place.wire.produce(self._place.topic, self._place.number, work.records)
        except TooLarge as error:
            with self._changed:
                is_smaller = self._core.too_large()
            if not is_smaller:
                raise await self._too_large(work, error) from error
        except Refused as error:
            raise refused(self._place, error) from error
        except Trouble:
            with self._changed:
                self._core.unsure()
            raise
        else:
            with self._changed:
                stood = self._core.acked(offset)
                self._note(stood)
                self._seen(stood is not None)

    async def _reread(self, work: Reread) -> None:
        """From the last record known to stand to the log's end as it is now."""
        try:
            start, end = await self._place.ends()
            if not start <= work.offset <= end:
                raise OutOfRange
            scan = Scan(self._place, work.offset, end)
            while not scan.is_done:
                wholes = await scan.page()
                with self._changed:
                    for whole in wholes:
                        self._note(self._core.met(whole))
            with self._changed:
                self._core.reread_to(scan.offset)
                self._seen(True)
        except Refused as error:
            raise refused(self._place, error) from error
        except TopicUnknown as error:
            raise CorruptLog(
                f"the Kafka topic {self._place.topic} is gone: somebody deleted it",
                partition=self._place.number,
                remedy="Delete the topic here too, or restore it from a snapshot",
            ) from error
        except OutOfRange as error:
            raise CorruptLog(
                f"the Kafka topic {self._place.topic} no longer holds offset {work.offset}, which it has acknowledged before",
                partition=self._place.number,
                remedy="It was made anew, or lost records in an unclean election: restore from a snapshot",
            ) from error

    def _seen(self, is_all: bool) -> None:
        """What stands was read to the log's end, or was found to follow directly. The lock is held."""
        if is_all:
            self._looked = self._began

    def _note(self, stood: Stood | None) -> None:
        """The lock is held."""
        if stood is not None:
            first = stood.frames[0]
            self._index.note(Entry(stood.offset, stood.before, first.nbytes_before, first.prefix.kind is Kind.BASE))
            self._changed.notify_all()

    async def _wait_out(self, trouble: Trouble) -> None:
        if not self._trouble:
            _log.warning(
                "%s/%d: Kafka is in trouble, and is asked again: %s", self._place.topic, self._place.number, trouble
            )
        self._trouble = str(trouble)
        await asyncio.sleep(RETRY_S)

    async def _too_large(self, work: Send, error: TooLarge) -> ParamstreamError:
        nbytes = sum(len(value) for _, value in work.records)
        limit = "?"
        try:
            described = await self._place.wire.describe(self._place.topic)
        except (Trouble, Refused) as failure:
            _log.debug("the topic's limit is not known: %s", failure)
        else:
            limit = described.settings.get("max.message.bytes", "?") if described is not None else "?"
        return CorruptLog(
            f"Kafka refuses a record of {nbytes} bytes: the topic {self._place.topic} has max.message.bytes={limit}",
            partition=self._place.number,
            position=self._core.known.reached,
            remedy="Set max.message.bytes of the topic to 1048588 or more, and start the broker again",
        )

    def _break(self, error: ParamstreamError) -> None:
        with self._changed:
            self._broken = self._broken or error
            self._changed.notify_all()

    # Reading.

    def read(self, after: int, max_bytes: int) -> Batch:
        with self._changed:
            if after < self._start:
                raise self._truncated(after)
            end, known = self._core.next_offset, self._core.known.reached
            pending = [] if after >= self._core.ahead.reached else self._core.pending()
        frames, nbytes, is_full = list[memoryview](), 0, False
        if after < known:
            frames, is_full = self._ask(self._read(after, max_bytes, end))
            nbytes = sum(map(len, frames))
        at = after if not frames else read_prefix(frames[-1]).position
        for each in pending:
            if is_full or each.prefix.position <= at or each.prefix.kind in LOG_ONLY_KINDS:
                continue
            if frames and nbytes + len(each.frame) > max_bytes:
                break
            frames.append(each.frame)
            at, nbytes = each.prefix.position, nbytes + len(each.frame)
        return Batch(frames, at)

    async def _read(self, after: int, max_bytes: int, end: int) -> tuple[list[memoryview], bool]:
        try:
            return await self._lookup.read(after, max_bytes, end)
        except OutOfRange as error:
            start, end = await self._place.ends()
            with self._changed:
                if after < self._start:
                    raise self._truncated(after) from error
            raise LogTruncated(
                f"the Kafka topic {self._place.topic} holds offsets {start} to {end}: somebody else removed what lay before",
                partition=self._place.number,
                position=after,
            ) from error

    def _truncated(self, after: int) -> LogTruncated:
        return LogTruncated(
            f"the log begins behind {show(self._start)}, and {show(after)} lies before that",
            partition=self._place.number,
            position=after,
        )

    # Cutting.

    def cut(self, before: int) -> int:
        with self._changed:
            self._check()
            base, end = self._index.base_before(before), self._core.next_offset
        if base is None and before > self._start:
            # What lies before the base that recovery began at is found only now.
            self._ask(self._lookup.entry_before(before - 1, end))
            with self._changed:
                base = self._index.base_before(before)
        if base is not None and base.point.reached > self._start:
            self._ask(self._cut(base))
            with self._changed:
                self._index.cut(base.offset)
                self._start, self._start_nbytes = base.point.reached, base.nbytes
                self._count(self.nbytes)
        return self._start

    async def _cut(self, base: Entry) -> None:
        """Only directly before a base that reads back as counting."""
        found = await base_at(self._place, base.offset, self._core.next_offset)
        if found is None or found[1] != base.point:
            raise CorruptLog(
                f"no base reads back at offset {base.offset} of the Kafka topic {self._place.topic}",
                partition=self._place.number,
                position=base.point.reached,
            )
        await self._place.wire.delete_records(self._place.topic, self._place.number, base.offset)

    def _count(self, nbytes: int) -> None:
        """The lock is held. Of one that was given up nothing counts, though a cut may be under way."""
        nbytes = 0 if self._is_released else nbytes
        self._tally.add(nbytes - self._counted)
        self._counted = nbytes

    # The end.

    def settle(self, timeout_s: float) -> bool:
        """Wait until all that was appended is durable. False where it is not in time.

        Where nothing can be written any more there is nothing to wait for: `sync` has said, or will say, why.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._core.stood < self._core.appended and self._broken is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def release(self) -> None:
        """Nothing more is taken. What was not durable may become so, or not. A second call changes nothing."""
        self._break(Fenced("the partition was given up", partition=self._place.number))
        with self._changed:
            task, self._task = self._task, None
            self._is_released = True
            self._count(0)
        if task is not None:
            self._thread.soon(task.cancel)

    def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        return ask(self._place, self._thread, work, self._patience_s)
