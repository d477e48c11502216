"""A log that several brokers share, in memory: what stands, and for each broker what it knows of that and has not written yet.

    store = SharedStore()
    one, two = store.open("one"), store.open("two")        # `SharedLog`s
    store.freeze("one")                                     # nothing that broker one appends stands, until
    store.thaw("one")                                       # it all arrives, however late

Records stand in the order in which they arrive, as in Kafka, and which of them count is decided by reading them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from paramstream.consistency.vector import PartitionId
from paramstream.errors import ConnectFailed, CorruptLog, Fenced, UnknownTopic
from paramstream.eventlog.counting import Counting
from paramstream.eventlog.log import Batch, Member, Membership, Recovered, SlotListener
from paramstream.eventlog.memory import MemoryPartition
from paramstream.eventlog.tally import Tally, segment_nbytes_for
from paramstream.events.codec import Buffer, EventFrame, decode_event, read_prefix
from paramstream.events.kinds import LOG_ONLY_KINDS, Kind

from .slot_group import SlotGroup

LIMIT = 1 << 30
SYNC_WAIT_S = 0.1
CLAIM_WAIT_S = 10.0
TOPICS_WAIT_S = 30.0


@dataclass
class _Records:
    """What stands of a partition."""

    first: int = 0
    """Of the first frame here: those before it were cut."""
    frames: list[bytes] = field(default_factory=list[bytes])

    def since(self, at: int) -> list[bytes]:
        assert at >= self.first, "it was cut while somebody read it"
        return self.frames[at - self.first :]

    @property
    def end(self) -> int:
        return self.first + len(self.frames)


class SharedStore:
    """What stands, of all partitions. `changed` guards everything."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.records: dict[PartitionId, _Records] = {}
        self.group = SlotGroup()
        self._frozen: set[str] = set()
        self.makes_topics = threading.Event()
        """Making and dropping a topic takes until this is set."""
        self.makes_topics.set()
        self.topic_calls = 0
        """How often making or dropping one was begun."""

    def open(self, broker: str, limit: int = LIMIT) -> FakeSharedLog:
        return FakeSharedLog(self, broker, limit)

    def freeze(self, broker: str) -> None:
        """Nothing that it appends arrives."""
        with self.changed:
            self._frozen.add(broker)

    def thaw(self, broker: str) -> None:
        with self.changed:
            self._frozen.discard(broker)
            self.changed.notify_all()

    def is_frozen(self, broker: str) -> bool:
        return broker in self._frozen

    def wait_for_topics(self) -> None:
        self.topic_calls += 1
        assert self.makes_topics.wait(TOPICS_WAIT_S), "no topic may be made or dropped"

    def counting(self, partition: PartitionId) -> list[EventFrame]:
        """What counts of a partition that was never cut: claims, bases, events and all."""
        counting, found = Counting(), list[EventFrame]()
        with self.changed:
            records = self.records.get(partition, _Records())
            assert records.first == 0
            for data in records.frames:
                frame = decode_event(data)
                if counting.counts(frame):
                    found.append(frame)
        return found

    def void(self, partition: PartitionId) -> int:
        """How many records stand that do not count."""
        with self.changed:
            frames = len(self.records[partition].frames)
        return frames - len(self.counting(partition))


class FakeSharedLog:
    """One broker's handle. See `eventlog.log.SharedLog`."""

    def __init__(self, store: SharedStore, broker: str, limit: int) -> None:
        self.store = store
        self.broker = broker
        self._limit = limit
        self._segment_nbytes = segment_nbytes_for(limit)
        self._tally = Tally()
        self._open: dict[PartitionId, FakeSharedPartition] = {}
        self._lock = threading.Lock()

    @property
    def shared(self) -> bool:
        return True

    @property
    def durable_on_append(self) -> bool:
        return False

    @property
    def boot(self) -> str:
        return ""

    @property
    def failed_writes(self) -> int:
        return 0

    @property
    def segment_nbytes(self) -> int:
        return self._segment_nbytes

    @property
    def nbytes(self) -> int:
        return self._tally.nbytes

    @property
    def limit(self) -> int:
        return self._limit

    def partitions(self) -> list[PartitionId]:
        with self.store.changed:
            held = {key for key, records in self.store.records.items() if records.frames}
        return sorted(held | {key for key, each in self._open.items() if each.nbytes})

    def create_topic(self, topic: int, name: str, partitions: int) -> None:
        self.store.wait_for_topics()
        with self.store.changed:
            for number in range(partitions):
                self.store.records.setdefault((topic, number), _Records())

    def describe_topic(self, topic: int) -> Mapping[str, str]:
        return {}

    def open(self, partition: PartitionId) -> FakeSharedPartition:
        self.release(partition)
        opened = FakeSharedPartition(self, partition, self._segment_nbytes, self._tally)
        with self._lock:
            self._open[partition] = opened
        return opened

    def release(self, partition: PartitionId) -> None:
        with self._lock:
            released = self._open.pop(partition, None)
        if released is not None:
            released.release()

    def join(self, member: Member, slots: int, listener: SlotListener) -> Membership:
        return self.store.group.join(member, slots, listener)

    def changelogs(self) -> bytes:
        return b""

    def follow(self, partition: PartitionId) -> FakeTail:
        return FakeTail(self.store, partition)

    def drop_topic(self, topic: int) -> None:
        self.store.wait_for_topics()
        for partition in [each for each in list(self._open) if each[0] == topic]:
            self.release(partition)
        with self.store.changed:
            for partition in [each for each in self.store.records if each[0] == topic]:
                del self.store.records[partition]

    def close(self) -> None:
        for partition in list(self._open):
            self.release(partition)


class FakeSharedPartition:
    """One tenure. Its view of what stands is a `MemoryPartition`, which is fed with all that arrives."""

    def __init__(self, log: FakeSharedLog, partition: PartitionId, segment_nbytes: int, tally: Tally) -> None:
        self._store, self._broker, self._tally = log.store, log.broker, tally
        self._partition = partition
        self._view = MemoryPartition(partition, segment_nbytes, tally)
        self._counting = Counting()
        self._at = 0
        """The number of the next record to read."""
        self._pending: list[memoryview] = []
        self._nonces: set[int] = set()
        """Of all that was appended here."""
        self._between: list[EventFrame] = []
        self._is_released = False

    @property
    def partition(self) -> PartitionId:
        return self._partition

    @property
    def start(self) -> int:
        return self._view.start

    @property
    def nbytes(self) -> int:
        return self._view.nbytes + sum(map(len, self._pending))

    @property
    def trouble(self) -> str:
        return ""

    @property
    def wants_base(self) -> bool:
        self._work()
        return self._view.wants_base

    def recover(self) -> Recovered:
        with self._store.changed:
            if self._partition not in self._store.records:
                raise UnknownTopic(f"no topic {self._partition[0]:x}")
            self._at = self._store.records[self._partition].first
        self._catch_up()
        return self._view.recover()

    def claim(self, frame: Buffer) -> Iterator[EventFrame]:
        self._between.clear()
        self.append(frame)
        deadline = time.monotonic() + CLAIM_WAIT_S
        with self._store.changed:
            while self._store.is_frozen(self._broker):
                if not self._store.changed.wait(max(0.0, deadline - time.monotonic())):
                    raise ConnectFailed("no claim stands")
        self._work()
        if self._counting.point.nonce != read_prefix(frame).nonce:
            raise Fenced("another broker has claimed the partition", partition=self._partition[1])
        return iter([each for each in self._between if each.kind not in LOG_ONLY_KINDS])

    def append(self, frame: Buffer) -> None:
        view = memoryview(frame)
        prefix = read_prefix(view)
        if prefix.nbytes != len(view):
            raise CorruptLog(f"a frame says {prefix.nbytes} bytes and has {len(view)}", position=prefix.position)
        with self._store.changed:
            self._check()
            self._nonces.add(prefix.nonce)
            self._pending.append(view)
        self._tally.add(len(view))
        self._work()

    def sync(self) -> int:
        deadline = time.monotonic() + SYNC_WAIT_S
        with self._store.changed:
            while self._store.is_frozen(self._broker) and self._store.changed.wait(
                max(0.0, deadline - time.monotonic())
            ):
                pass
        self._work()
        self._check()
        return self._counting.reached

    def read(self, after: int, max_bytes: int) -> Batch:
        self._work()
        with self._store.changed:
            batch = self._view.read(after, max_bytes)
            nbytes, counting = sum(map(len, batch.frames)), Counting(self._counting.point)
            for frame in self._pending:
                prefix = read_prefix(frame)
                if not counting.takes(prefix, frame) or prefix.kind in LOG_ONLY_KINDS or prefix.position <= after:
                    continue
                if batch.frames and nbytes + len(frame) > max_bytes:
                    break
                batch.frames.append(frame)
                batch, nbytes = Batch(batch.frames, prefix.position), nbytes + len(frame)
        return batch

    def look(self, since: float) -> bool:
        self._work()
        self._check()
        return True

    def cut(self, before: int) -> int:
        self._work()
        start = self._view.cut(before)
        with self._store.changed:
            records = self._store.records[self._partition]
            counting = Counting()
            for index, data in enumerate(records.frames):
                frame = decode_event(data)
                if counting.counts(frame) and frame.kind is Kind.BASE and frame.position == start:
                    del records.frames[:index]
                    records.first += index
                    break
        return start

    def release(self) -> None:
        if not self._is_released:
            self._is_released = True
            self._tally.add(-sum(map(len, self._pending)))
            self._view.free()

    def _check(self) -> None:
        if self._is_released:
            raise Fenced("the partition was given up", partition=self._partition[1])
        if self._partition not in self._store.records:
            raise UnknownTopic(f"no topic {self._partition[0]:x}", partition=self._partition[1])
        if self._nonces and not self._pending and self._counting.point.nonce not in self._nonces:
            raise Fenced("another broker has claimed the partition", partition=self._partition[1])

    def _work(self) -> None:
        """Let arrive what is appended, and take in what others have written; nothing while the broker is frozen."""
        with self._store.changed:
            records = self._store.records.get(self._partition)
            if records is None or self._is_released or self._store.is_frozen(self._broker):
                return
            pending, self._pending = self._pending, []
            # The view takes them in by itself, and counts their bytes.
            self._tally.add(-sum(map(len, pending)))
            records.frames += [bytes(frame) for frame in pending]
            self._catch_up()

    def _catch_up(self) -> None:
        with self._store.changed:
            records = self._store.records.get(self._partition)
            if records is None or self._is_released:
                return
            frames: Iterable[bytes] = records.since(self._at)
            self._at = records.end
            for data in frames:
                frame = decode_event(data)
                if self._counting.counts(frame):
                    self._between.append(frame)
                self._view.append(data)


class FakeTail:
    """See `eventlog.log.Tail`."""

    def __init__(self, store: SharedStore, partition: PartitionId) -> None:
        self._store = store
        self._partition = partition
        self._counting = Counting()
        self._at = 0

    def recover(self) -> Recovered:
        with self._store.changed:
            self._at = self._store.records[self._partition].first
        base: EventFrame | None = None
        records: list[EventFrame] = []
        for frame in self._counted():
            if frame.kind is Kind.BASE:
                base, records = frame, []
            else:
                records.append(frame)
        return Recovered(base, iter(records), self._counting.last_claim, "")

    def read(self) -> Iterator[EventFrame]:
        return (frame for frame in self._counted() if frame.kind not in LOG_ONLY_KINDS)

    def _counted(self) -> list[EventFrame]:
        with self._store.changed:
            records = self._store.records[self._partition]
            frames = [decode_event(data) for data in records.since(self._at)]
            self._at = records.end
        return [frame for frame in frames if self._counting.counts(frame)]
