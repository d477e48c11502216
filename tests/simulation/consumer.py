"""A consumer of the simulation: the real feed, subscription core and apply step, and a log of what was applied."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from paramstream.consistency.gate import Ordering
from paramstream.consistency.vector import EMPTY, PartitionId, VersionVector
from paramstream.consumers.applying import Applier
from paramstream.consumers.effects import Deliver, Durable, EpochBegan, Jump, Refetched, Step, Stopped, Undo
from paramstream.consumers.feed import Feed
from paramstream.consumers.subscription_core import SubscriptionCore
from paramstream.consumers.versions import Missing
from paramstream.errors import OutcomeUnknown, ParamstreamError
from paramstream.events.codec import Buffer, decode_event, decode_vector
from paramstream.tiers.store import TieredStore
from paramstream.transport.calls import PartitionRecord
from paramstream.transport.messages import Demoted, Fetch, FetchFile, Following, Heartbeat, Welcome
from paramstream.transport.wire import Message

from .network import Connection, FetchedFrames, Item
from .topics import SimTopic
from .writes import Part, write_of, write_of_version


class SimLink:
    """What the feed uses of a link, over a connection of the simulation."""

    def __init__(self) -> None:
        self.connection: Connection | None = None

    @property
    def connected(self) -> bool:
        return self.connection is not None

    def start(self, timeout: float) -> Welcome:
        raise AssertionError("the simulation connects")

    def send(self, frame: Buffer | Message) -> bool:
        return self.connection is not None and self.connection.send(frame)

    def fetch(self, message: Fetch | FetchFile) -> None:
        assert isinstance(message, Fetch)
        if self.connection is not None:
            self.connection.fetches.append(message)

    def request_async(self, call: Message, kind: Any, done: Callable[[Any, ParamstreamError | None], None]) -> None:
        raise AssertionError(f"a consumer of the simulation asks nothing: {call}")

    def close(self, timeout: float) -> None:
        self.connection = None


class SimConsumer:
    """A replica without its public face: what it applied, in order, and what it holds."""

    def __init__(
        self,
        name: str,
        ordering: Ordering,
        topics: list[SimTopic],
        partitions: Collection[PartitionId],
        *,
        durable_only: bool,
    ) -> None:
        self.name = name
        self.ordering = ordering
        self.durable_only = durable_only
        self.store = TieredStore("64MiB")
        self.link = SimLink()
        self.applied: list[Deliver | EpochBegan] = []
        """What stands of what was applied, in order: an undo takes its lines out again."""
        self.problems: list[str] = []
        self.stopped: dict[PartitionId, ParamstreamError] = {}
        self.follows = sorted(partitions)
        self.applier = Applier(self.store, keep_versions=2)
        for topic in topics:
            numbers = [number for t, number in self.follows if t == topic.id and number < topic.partitions]
            self.applier.add(topic.record, numbers)
        self.core = SubscriptionCore(ordering, dict.fromkeys(self.follows, 0), durable_only=durable_only)
        self.feed = Feed(self.core, SimSink(self), threading.Lock())
        self.feed.link = self.link
        self.inboxes: dict[PartitionId, deque[Item]] = {partition: deque() for partition in self.follows}
        """What has come of each partition and waits: each has its own delays, as if it came from a broker of its own."""
        self.undone: list[Deliver | EpochBegan] = []
        """What was applied and taken back."""
        self.jumps = 0
        self._at: dict[PartitionId, int] = dict.fromkeys(self.follows, 0)
        """What is applied, or passed by a jump."""

    # --- its end of a connection ------------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        self.link.connection = connection
        self.feed.connected(Welcome("broker", "", 1 << 20, 0.5))

    def lost(self) -> None:
        self.link.connection = None
        for inbox in self.inboxes.values():
            inbox.clear()
        self.feed.lost(OutcomeUnknown("the connection is gone"))

    def received(self, item: Item) -> None:
        match item:
            case bytes():
                self.inboxes[decode_event(item).partition_id].append(item)
            case FetchedFrames(answer, frames):
                self.feed.fetched(answer, frames)
            case Following() | Demoted():
                self.inboxes[item.topic, item.partition].append(item)
            case Heartbeat():
                for heads in item.heads:
                    self.inboxes[heads.topic, heads.partition].append(Heartbeat((heads,)))
            case _:
                raise AssertionError(item)

    def take(self, partition: PartitionId, most: int) -> bool:
        """Let up to `most` of what waits of a partition through; False where nothing waits."""
        inbox = self.inboxes[partition]
        taken = [inbox.popleft() for _ in range(min(most, len(inbox)))]
        for item in taken:
            if isinstance(item, bytes):
                self.feed.event(memoryview(item))
            else:
                assert isinstance(item, Following | Demoted | Heartbeat)
                self.feed.message(item)
        return bool(taken)

    def tick(self, now: float) -> None:
        self.feed.tick(now)

    def jump(self, at: PartitionRecord) -> bool:
        """The owner has said where the newest version stands: go on with that one, if it lies ahead."""
        partition = at.topic, at.partition
        if at.latest_start <= self.core.received(partition) or self.core.jumping_to(partition) is not None:
            return False
        target = max(at.latest, at.latest_start)
        self.core.jump(partition, at.latest_start, target, decode_vector(at.context), at.ends)
        self.feed.run()
        self.jumps += 1
        return True

    def read(self) -> tuple[VersionVector[int], frozenset[Part]]:
        """(the closed vector, the writes whose values its user sees)."""
        writes = {
            (write_of(entry.value), partition)
            for partition in self.follows
            for _, entry in self.store.entries(partition).items()
        }  # fmt: skip
        for topic in self.applier.topics.values():
            if topic.served is not None:
                writes.add((write_of_version(topic.served.version), topic.weight_partition))
        return self.core.vector(), frozenset(writes)

    def entries(self, partition: PartitionId) -> dict[bytes, tuple[bytes, int]]:
        return {key: (entry.value, entry.position) for key, entry in self.store.entries(partition).items()}

    def close(self) -> None:
        self.applier.close()
        self.store.close()

    # --- its delivery log -------------------------------------------------------------------------------------------------

    def record(self, step: Step) -> None:
        """Each step, checked as it is applied: no gap, no repeat, nothing before what it rests on."""
        at = self._at[step.partition]
        match step:
            case Deliver():
                position = step.frame.position
                self._must(position == at + 1, f"{step.partition} went from {at:x} to {position:x}")
                if step.passed:
                    # Nobody sees it; what it rests on is asked of the jump's target.
                    self._at[step.partition] = position
                    return
                vectors = [step.stamp.own, step.stamp.observed if self.ordering is Ordering.CAUSAL else EMPTY]
                for other, needed in (item for vector in vectors for item in vector.items()):
                    if other in self._at and other != step.partition:
                        problem = f"{step.partition} {position:x} before {other} {needed:x}"
                        self._must(self._at[other] >= needed, problem)
                self._at[step.partition] = position
                self.applied.append(step)
            case EpochBegan():
                self._must(step.end == at, f"{step.partition}: an epoch that ended at {step.end:x} was left at {at:x}")
                self._at[step.partition] = step.position
                self.applied.append(step)
            case Undo():
                self._must(step.end < at, f"{step.partition}: nothing to undo above {step.end:x} at {at:x}")
                self._at[step.partition] = step.end
                gone = [
                    line for line in self.applied if line.partition == step.partition and position_of(line) > step.end
                ]
                self.undone += gone
                self.applied = [line for line in self.applied if line not in gone]
            case Jump():
                self._must(step.start > at, f"{step.partition} jumped back from {at:x} to {step.start:x}")
                self._at[step.partition] = step.start

    def _must(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(f"{self.name}: {problem}")

    def _never(self) -> Any:
        raise AssertionError("a consumer asks nothing that blocks")


class SimSink:
    """Applies what the feed says, as a replica does: real tiers, and nobody who reads beside it."""

    def __init__(self, consumer: SimConsumer) -> None:
        self._consumer = consumer

    def step(self, step: Step) -> None:
        consumer, applier = self._consumer, self._consumer.applier
        match step:
            case Deliver():
                self._deliver(step)
                return
            case EpochBegan():
                applier.began(step.partition, step.position, step.time)
            case Undo():
                applier.undo(step.partition, step.end)
            case Jump():
                applier.jump(step)
        consumer.core.confirm(step)
        consumer.record(step)

    def told(self, effect: Durable | Refetched | Stopped) -> None:
        match effect:
            case Durable():
                self._consumer.applier.settle(effect.partition, effect.position)
            case Refetched():
                self._consumer.applier.refetched(effect.partition, effect.frame)
            case Stopped():
                self._consumer.stopped[effect.partition] = effect.error

    def _deliver(self, step: Deliver) -> None:
        consumer = self._consumer
        try:
            sealed = consumer.applier.prepare(step, consumer.core.vector)
        except Missing as missing:
            consumer.core.hold(step.partition, missing.after)
            return
        consumer.applier.show(step, sealed)
        consumer.core.confirm(step)
        consumer.record(step)

    def connected(self, welcome: Welcome) -> None: ...
    def lost(self, error: ParamstreamError) -> None: ...
    def heard(self, message: Heartbeat | Following) -> None: ...
    def drained(self) -> None: ...
    def tick(self, now: float) -> None: ...


def position_of(line: Deliver | EpochBegan) -> int:
    return line.frame.position if isinstance(line, Deliver) else line.position
