"""A broker without a network: one thread-less link whose test says what arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feeding.writer import Writer
from paramstream.consistency.vector import PartitionId
from paramstream.errors import ParamstreamError
from paramstream.events.codec import Buffer
from paramstream.transport.calls import Call, DescribePartitions, ListTopics, OpenReplica, PartitionRecord, TopicRecord
from paramstream.transport.directory import Directory
from paramstream.transport.link import Handler
from paramstream.transport.messages import (
    Demoted,
    Fetch,
    Fetched,
    FetchFile,
    Follow,
    Following,
    Heads,
    Heartbeat,
    Hello,
    Unfollow,
    Welcome,
)
from paramstream.transport.wire import Message, WireError


class FakeBroker:
    """Topics and their partitions' writers. Calls its one client's handler in the calling thread."""

    def __init__(self, partitions: int = 1, persistence: str = "write_back") -> None:
        self.name = "broker-1"
        self.topic = TopicRecord("model", 77, partitions, persistence, 8)
        self.writers: dict[PartitionId, Writer] = {(77, n): Writer((77, n)) for n in range(partitions + 1)}
        self.follows: dict[PartitionId, int] = {}
        self.durable: dict[PartitionId, int] = {}
        self.latest: dict[PartitionId, tuple[int, int]] = {}
        """Partition → (where a reader of the newest durable version starts, its commit)."""
        self.rewinds: tuple[tuple[int, int], ...] = ()
        """(position, version) of commits with `rewind`, as the owner tells them of the weight partition."""
        self.starts: dict[PartitionId, int] = {}
        """Where logs begin; 0 unless they were cut."""
        self.told_ends: dict[PartitionId, int] = {}
        """Where logs end as whoever need not prove it tells it: one that was taken over, and does not know it yet."""
        self.sent: list[Message] = []
        self.fetches: list[Fetch] = []
        self.replica_incarnations = 0
        self.connected = False
        self.directory = Directory(self.ask)
        self.handler: Handler
        self.frames_per_fetch = 1 << 30
        self._answered: set[int] = set()

    @property
    def state(self) -> Writer:
        return self.writers[self.topic.id, 0]

    @property
    def weights(self) -> Writer:
        return self.writers[self.topic.id, self.topic.partitions]

    # --- what a client calls ------------------------------------------------------------------------------------------

    def ask(self, call: Call, kind: Any, timeout: float) -> Any:
        match call:
            case ListTopics():
                return [self.topic]
            case DescribePartitions():
                asked = [p for p in self.writers if call.partitions is None or p[1] in call.partitions]
                ends = {} if call.proved else self.told_ends
                return [self._describe(p, ends.get(p, self.writers[p].position)) for p in asked if p[0] == call.topic]
            case OpenReplica():
                self.replica_incarnations += 1
                return self.replica_incarnations
            case _:
                raise AssertionError(call)

    def make_link(self, handler: Handler, hello: Callable[[], Hello], name: str) -> FakeBroker:
        self.handler = handler
        return self

    def start(self, timeout: float) -> Welcome:
        return self.connect()

    def send(self, frame: Buffer | Message) -> bool:
        assert isinstance(frame, Message)
        if not self.connected:
            return False
        self.sent.append(frame)
        match frame:
            case Follow():
                self.follows[frame.topic, frame.partition] = frame.after
            case Unfollow():
                self.follows.pop((frame.topic, frame.partition), None)
            case _:
                pass
        return True

    def fetch(self, message: Fetch | FetchFile) -> None:
        assert isinstance(message, Fetch)
        if self.connected:
            self.fetches.append(message)

    def request_async(self, call: Call, kind: Any, done: Callable[[Any, ParamstreamError | None], None]) -> None:
        done(self.ask(call, kind, 1.0), None)

    def close(self, timeout: float) -> None:
        self.connected = False

    # --- what a test does -----------------------------------------------------------------------------------------------

    def connect(self) -> Welcome:
        welcome = Welcome(self.name, "", 1 << 20, 0.5)
        self.connected = True
        self.handler.connected(welcome)
        self.settle()
        return welcome

    def disconnect(self) -> None:
        self.connected = False
        self.follows.clear()
        self.fetches.clear()
        self.handler.lost(ParamstreamError("cut"))

    def demote(self, partition: PartitionId) -> None:
        """The client fetches the partition from now on, and is not let in again before `settle` has answered."""
        after = self.follows.pop(partition)
        self.handler.message(Demoted(*partition, after, self.writers[partition].position))

    def replace_topic(self) -> None:
        """As after a restart over a memory log: the name stands for a new, empty topic."""
        self.name = "broker-2"
        old = self.topic
        self.topic = TopicRecord(old.name, old.id + 1, old.partitions, old.persistence, old.retain_versions)
        numbers = range(old.partitions + 1)
        self.writers = {(self.topic.id, n): Writer((self.topic.id, n), epoch=9) for n in numbers}

    def settle(self) -> None:
        """Answer follows with all that the log has, and fetches, until nothing moves."""
        moved = True
        while moved:
            moved = self._fan_out() | self._answer_fetches()
        self.handler.drained()

    def beat(self, now: float = 0.0) -> None:
        heads = tuple(
            Heads(*p, w.position, self.durable.get(p, 0), self.follows.get(p, 0), w.time)
            for p, w in self.writers.items()
        )
        self.handler.message(Heartbeat(heads))
        self.settle()
        self.handler.tick(now)
        self.settle()

    def _fan_out(self) -> bool:
        moved = False
        for partition, after in list(self.follows.items()):
            writer = self.writers.get(partition)
            if writer is None:
                del self.follows[partition]
                gone = WireError("UnknownTopic", "no such topic", "", {})
                self.handler.message(Demoted(*partition, after, 0, gone))
                continue
            followed = next(m for m in reversed(self.sent) if isinstance(m, Follow) and m.partition == partition[1])
            if followed.after == after and (id(followed)) not in self._answered:
                self._answered.add(id(followed))
                durable = self.durable.get(partition, 0)
                self.handler.message(Following(*partition, after, writer.position, durable, (), writer.time))
            for frame in writer.after(after):
                moved = True
                self.handler.event(frame)
            if partition in self.follows:
                self.follows[partition] = max(self.follows[partition], writer.position)
        return moved

    def _answer_fetches(self) -> bool:
        fetches, self.fetches = self.fetches, []
        for fetch in fetches:
            writer = self.writers[fetch.topic, fetch.partition]
            frames = writer.after(fetch.after, self.frames_per_fetch)
            error = None
            if fetch.after < self.starts.get(writer.partition, 0):
                frames, error = [], WireError("LogTruncated", "the log begins behind that", "", {})
            answer = Fetched(
                fetch.id, fetch.topic, fetch.partition, len(frames), writer.position, writer.position, error
            )
            self.handler.fetched(answer, frames)
        return bool(fetches)

    def _describe(self, partition: PartitionId, accepted: int) -> PartitionRecord:
        durable = self.durable.get(partition, 0)
        cut = self.starts.get(partition, 0)
        start, commit = self.latest.get(partition, (cut, 0))
        return PartitionRecord(
            *partition, 5, cut, accepted, durable, start, (), self.writers[partition].time, commit, rewinds=self.rewinds
        )
