"""A Kafka that the brokers of a world share: appends are requests under way, which land late, twice, or never.

What Kafka holds is `fakes.kafka_wire`'s; what an owner believes of it is the real `OwnerCore`; how it is read is the real
`recovery`, `scan` and `lookup`. A `Tenure` is the little between them that `eventlog.kafka.partition` does with a thread.
"""

from __future__ import annotations

import math
import random
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass
from threading import Condition
from typing import Any, TypeVar, cast

from fakes.kafka_wire import Batch, KafkaInMemory, at_once
from paramstream.consistency.vector import PartitionId
from paramstream.errors import ConnectFailed, Fenced, ParamstreamError, ParamstreamTimeout
from paramstream.eventlog import log as logs
from paramstream.eventlog.counting import BEGINNING
from paramstream.eventlog.kafka.core import OwnerCore, Reread, Send, Stood
from paramstream.eventlog.kafka.index import Entry, OffsetIndex
from paramstream.eventlog.kafka.lookup import Lookup
from paramstream.eventlog.kafka.recovery import find
from paramstream.eventlog.kafka.scan import Place, Scan
from paramstream.eventlog.kafka.tail import Tail
from paramstream.eventlog.kafka.thread import KafkaThread
from paramstream.events.codec import MAGIC, Buffer, EventFrame, decode_event, read_prefix
from paramstream.events.kinds import LOG_ONLY_KINDS, Kind

from .clock import Clock

T = TypeVar("T")

LIMIT = 1 << 30
SEGMENT_NBYTES = 6_000
"""Small, so that bases come often."""

REQUEST_S = 1.0
"""A request that has no answer for so long is given up; it may still land."""


@dataclass(eq=False)
class Request:
    """A batch on its way."""

    kafka: KafkaInMemory
    sender: str
    batch: Batch
    sent_at: float
    offset: int = -1
    """Where it has landed, the last time."""
    is_answered: bool = False


@dataclass(frozen=True)
class Weather:
    """How often, of a request's moves, which thing happens to it."""

    lands: float = 0.5
    lost: float = 0.0
    """It never comes."""
    repeated: float = 0.0
    """It lands, and will land once more."""
    ack_lost: float = 0.0
    strangers: float = 0.0
    """Somebody else writes: a record, or the marker of a transaction."""


FAIR = Weather(lands=1.0)


class SharedKafka:
    """All partitions, and all requests under way."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.weather = FAIR
        self.frozen_until = 0.0
        """Until then nothing lands, nothing is answered, nothing can be read."""
        self.cut_until: dict[str, float] = {}
        """Broker → until when it does not reach Kafka, nor Kafka it."""
        self.claims: list[tuple[float, EventFrame]] = []
        """When each of them landed."""
        self._partitions: dict[PartitionId, KafkaInMemory] = {}
        self._flying: list[Request] = []
        self._landed: list[Request] = []
        """Their acks are under way."""

    def partition(self, partition: PartitionId) -> KafkaInMemory:
        return self._partitions.setdefault(partition, KafkaInMemory())

    @property
    def partitions(self) -> Mapping[PartitionId, KafkaInMemory]:
        return self._partitions

    def reaches(self, broker: str) -> bool:
        now = self.clock.now
        return now >= self.frozen_until and now >= self.cut_until.get(broker, 0.0)

    @property
    def is_busy(self) -> bool:
        return bool(self._flying or self._landed)

    def send(self, request: Request) -> None:
        self._flying.append(request)

    def move(self, chance: random.Random) -> None:
        """Each request moves on a little, or does not."""
        weather = self.weather
        for request in [each for each in self._flying if self.reaches(each.sender)]:
            x = chance.random()
            if x < weather.lost:
                self._flying.remove(request)
            elif x < weather.lost + weather.repeated:
                self._land(request)
            elif x < weather.lost + weather.repeated + weather.lands:
                self._flying.remove(request)
                self._land(request)
        for request in [each for each in self._landed if self.reaches(each.sender)]:
            if chance.random() < weather.lands:
                self._landed.remove(request)
                request.is_answered = chance.random() >= weather.ack_lost
        if self._partitions and chance.random() < weather.strangers:
            kafka = self._partitions[chance.choice(sorted(self._partitions))]
            if chance.random() < 0.5:
                kafka.land([(None, memoryview(b"a stranger's record"))])
            else:
                kafka.land_marker()

    def _land(self, request: Request) -> None:
        request.offset = request.kafka.land(request.batch)
        for _, value in request.batch:
            if bytes(value[:2]) == MAGIC and read_prefix(value).kind is Kind.CLAIM:
                self.claims.append((self.clock.now, decode_event(value)))
        if request not in self._landed:
            self._landed.append(request)


class Thread:
    """What reads do in the Kafka thread, done at once; or not at all, where Kafka does not answer."""

    def __init__(self, kafka: SharedKafka, broker: str) -> None:
        self._kafka = kafka
        self._broker = broker

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        if not self._kafka.reaches(self._broker):
            work.close()
            raise ParamstreamTimeout(f"Kafka did not answer within {timeout_s:g} s")
        return at_once(work)


class ClusterLog:
    """One broker's handle. See `eventlog.log.SharedLog`."""

    shared = True
    durable_on_append = False
    boot = ""
    failed_writes = 0
    segment_nbytes = SEGMENT_NBYTES
    nbytes = 0
    limit = LIMIT

    def __init__(self, kafka: SharedKafka, broker: str) -> None:
        self.kafka = kafka
        self.broker = broker
        self.thread = Thread(kafka, broker)
        self.tenures: list[Tenure] = []
        """Those that were appended to and not given up."""
        self._owned: dict[PartitionId, Tenure] = {}

    def place(self, partition: PartitionId) -> Place:
        return self.kafka.partition(partition).place(partition)

    def partitions(self) -> list[PartitionId]:
        return sorted(self.kafka.partitions)

    def create_topic(self, topic: int, name: str, partitions: int) -> None:
        if not self.kafka.reaches(self.broker):
            raise ConnectFailed("Kafka cannot be used")

    def describe_topic(self, topic: int) -> Mapping[str, str]:
        return {}

    def changelogs(self) -> bytes:
        return b""

    def open(self, partition: PartitionId) -> Tenure:
        return Tenure(self, partition)

    def own(self, tenure: Tenure) -> None:
        """It is appended to for the first time."""
        former = self._owned.get(tenure.partition)
        self._owned[tenure.partition] = tenure
        self.tenures.append(tenure)
        if former is not None:
            former.release()

    def release(self, partition: PartitionId) -> None:
        released = self._owned.pop(partition, None)
        if released is not None:
            released.release()

    def join(self, member: logs.Member, slots: int, listener: logs.SlotListener) -> logs.Membership:
        raise AssertionError("the world's group knows its members")

    def follow(self, partition: PartitionId) -> Tail:
        return Tail(self.place(partition), cast("KafkaThread", self.thread), REQUEST_S)

    def drop_topic(self, topic: int) -> None:
        raise AssertionError("no topic of the simulation is deleted")

    def close(self) -> None:
        for tenure in list(self.tenures):
            tenure.release()


class Tenure:
    """One partition while its owner lives, moved on step by step. See `eventlog.log.PartitionLog`."""

    start = 0
    trouble = ""

    def __init__(self, log: ClusterLog, partition: PartitionId) -> None:
        self.partition = partition
        self._log = log
        self._kafka = log.kafka.partition(partition)
        self._place = log.place(partition)
        self._core = OwnerCore(partition, BEGINNING, 0)
        self._index = OffsetIndex()
        self._lookup = Lookup(self._place, self._index, Condition())
        self._base_nbytes = 0
        self._is_owned = False
        self._broken: ParamstreamError | None = None
        self._request: Request | None = None
        self._began = self._looked = -math.inf
        self._scan: Scan | None = None
        """A reread under way."""

    @property
    def nbytes(self) -> int:
        return self._core.nbytes

    @property
    def wants_base(self) -> bool:
        return self._core.nbytes - self._base_nbytes >= SEGMENT_NBYTES

    # --- what its broker asks ---------------------------------------------------------------------------------------------

    def recover(self) -> logs.Recovered:
        self._must_reach()
        found = at_once(find(self._place))
        self._core = OwnerCore(self.partition, found.point, found.end, found.base_offset, found.nbytes)
        self._index = found.index
        self._lookup = Lookup(self._place, self._index, Condition())
        base = decode_event(found.base) if found.base is not None else None
        return logs.Recovered(base, map(decode_event, found.records), found.point.epoch, "")

    def claim(self, frame: Buffer) -> Iterator[EventFrame]:
        raise AssertionError("a takeover of the simulation is done step by step")

    def append(self, frame: Buffer) -> None:
        self._check()
        if not self._is_owned:
            self._is_owned = True
            self._log.own(self)
        prefix = self._core.append(frame)
        if prefix is not None and prefix.kind is Kind.BASE:
            self._base_nbytes = self._core.nbytes

    def sync(self) -> int:
        """How far it has come; it does not wait."""
        self._check()
        return self._core.known.reached

    def read(self, after: int, max_bytes: int) -> logs.Batch:
        frames, nbytes, is_full = list[memoryview](), 0, False
        if after < self._core.known.reached:
            self._must_reach()
            frames, is_full = at_once(self._lookup.read(after, max_bytes, self._core.next_offset))
            nbytes = sum(map(len, frames))
        at = decode_event(frames[-1]).position if frames else after
        for each in self._core.pending():
            if is_full or each.prefix.position <= at or each.prefix.kind in LOG_ONLY_KINDS:
                continue
            if frames and nbytes + len(each.frame) > max_bytes:
                break
            frames.append(each.frame)
            at, nbytes = each.prefix.position, nbytes + len(each.frame)
        return logs.Batch(frames, at)

    def look(self, since: float) -> bool:
        self._check()
        if self._looked >= since:
            return True
        self._core.look()
        return False

    def cut(self, before: int) -> int:
        return self.start

    def release(self) -> None:
        """Nothing more is sent. What is under way may land."""
        self._broken = self._broken or Fenced("the partition was given up", partition=self.partition[1])
        if self in self._log.tenures:
            self._log.tenures.remove(self)

    def others(self) -> list[EventFrame] | None:
        """Once the claim stands: what earlier owners had written before it since `recover`. Raises why it never will."""
        self._check()
        if self._core.stood < self._core.appended:
            return None
        others, self._core.others = self._core.others, []
        return [decode_event(frame) for frame in others]

    # --- what its task does -----------------------------------------------------------------------------------------------

    def step(self, chance: random.Random) -> None:
        """One thing that the core asks for, as far as it can be done now."""
        if self._broken is not None or not self._is_owned:
            return
        try:
            if self._request is not None:
                self._wait(self._request)
            else:
                self._work(chance)
        except ParamstreamError as error:
            self._broken = error

    def _work(self, chance: random.Random) -> None:
        match self._core.work():
            case Send(records):
                self._scan = None
                clock = self._log.kafka.clock
                self._began = clock.now
                self._request = Request(self._kafka, self._log.broker, records, clock.now)
                self._log.kafka.send(self._request)
            case Reread(offset):
                if self._log.kafka.reaches(self._log.broker):
                    self._reread(offset, chance)
            case None:
                pass

    def _wait(self, request: Request) -> None:
        if request.is_answered:
            self._request = None
            stood = self._core.acked(request.offset)
            self._note(stood)
            self._seen(stood is not None)
        elif self._log.kafka.clock.now - request.sent_at > REQUEST_S:
            self._request = None
            self._core.unsure()

    def _reread(self, offset: int, chance: random.Random) -> None:
        """A page: more comes while it reads."""
        scan = self._scan if chance.random() < 0.9 else None  # Else a request failed, and it begins anew.
        if scan is None or scan.offset < offset:
            scan = self._scan = Scan(self._place, offset, self._kafka.end)
            self._began = self._log.kafka.clock.now
        if not scan.is_done:
            for whole in at_once(scan.page(chance.choice([1, 1 << 20]))):
                self._note(self._core.met(whole))
        if scan.is_done:
            self._scan = None
            self._core.reread_to(scan.offset)
            self._seen(True)

    def _seen(self, is_all: bool) -> None:
        if is_all:
            self._looked = self._began

    def _note(self, stood: Stood | None) -> None:
        if stood is not None:
            first = stood.frames[0]
            self._index.note(Entry(stood.offset, stood.before, first.nbytes_before, first.prefix.kind is Kind.BASE))

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _must_reach(self) -> None:
        if not self._log.kafka.reaches(self._log.broker):
            raise ConnectFailed("Kafka cannot be used")
