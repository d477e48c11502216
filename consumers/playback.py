"""A link that goes nowhere: it plays a log into a replica, up to given places, in the thread that starts it.

A replica asks its link to follow and to fetch, and its directory for what there is. Here both are answered from a `Source`. So a
restore applies a log by the very steps by which a live replica follows one: the same gate, digests and rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..consistency.position import START, epoch_of, offset_of
from ..consistency.vector import PartitionId
from ..errors import InvalidEvent, ParamstreamError
from ..events.codec import Buffer, decode_event, position_of
from ..events.kinds import Commit
from ..transport.calls import Call, DescribePartitions, ListTopics, OpenReplica, PartitionRecord, VersionRecord
from ..transport.link import Handler
from ..transport.messages import (
    Demoted,
    Fetch,
    Fetched,
    FetchFile,
    Follow,
    Following,
    Heads,
    Heartbeat,
    Hello,
    Welcome,
)
from ..transport.wire import Message, WireError
from .followed import Held
from .sources import Progress, Source

MAX_POSITION = (1 << 64) - 1
ROUND_S = 60.0
"""How much of the replica's time passes in a round: past every one of its deadlines."""
IDLE_ROUNDS = 4
"""After so many rounds without a new event nothing will come: what is left waits for what lies outside the cut."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where each partition begins and ends. What is not named in `until` ends where it begins."""

    after: Mapping[int, int]
    """Partition number → the position before the first event to apply."""
    until: Mapping[int, int]
    """Partition number → the last position to apply."""
    version: VersionRecord | None = None
    """What the weights end at, begun with its first event; None where nothing is passed before."""
    grows: bool = False
    """`until` is what a commit rests on, and grows by what the events up to there rest on: to the closed cut."""
    seeded: Collection[int] = ()
    """Partitions that begin with state which is in hand, and in which the log goes on behind `after`."""


class Playback:
    """Answers one replica from a source. Nothing of it runs in another thread."""

    def __init__(self, source: Source, cut: Cut, progress: Progress) -> None:
        self._source = source
        self._cut = cut
        self._progress = progress
        self._until = dict(cut.until)
        self._exhausted: dict[int, int] = {}
        """Partition number → where it ended, when the last read of it found nothing."""

    def ask(self, call: Call, kind: Any, timeout: float) -> Any:
        """What a directory asks a broker."""
        match call:
            case ListTopics():
                return [self._source.record]
            case DescribePartitions():
                return [self._describe(number) for number in range(self._source.record.partitions + 1)]
            case OpenReplica():
                return 1
            case _:
                raise InvalidEvent(f"a log that is read only cannot answer {type(call).__name__}")

    def make_link(self, handler: Handler, hello: Callable[[], Hello], name: str) -> PlaybackLink:
        return PlaybackLink(handler, self)

    def read(self, partition: PartitionId, after: int, max_bytes: int) -> list[memoryview]:
        """Frames behind `after` within the cut, all of one epoch: the record of the next one comes by itself."""
        found: list[memoryview] = []
        end = self._until.get(partition[1], START)
        for frame in self._source.read(partition, after, max_bytes) if after < end else ():
            position = position_of(frame)
            if position > end or (found and offset_of(position) == 0):
                break
            found.append(frame)
            self._progress(len(frame))
            if offset_of(position) == 0:
                break
        if self._cut.grows:
            self._grow(found)
        if not found:
            self._exhausted[partition[1]] = end
        return found

    def grown(self) -> list[PartitionId]:
        """Partitions that were read to their end, and end further on by now. Told once."""
        numbers = [number for number, end in self._exhausted.items() if self._until[number] > end]
        for number in numbers:
            del self._exhausted[number]
        return [(self._source.record.id, number) for number in numbers]

    def _grow(self, frames: Iterable[memoryview]) -> None:
        """What lies within the cut rests on nothing outside of it."""
        seen = b"", b""
        for data in frames:
            frame = decode_event(data)
            vectors = frame.head.own, frame.head.observed
            if vectors == seen and not isinstance(frame.payload, Commit):
                continue
            seen = vectors
            for (topic, number), at in Held(frame, 0).stamp.dependencies().items():
                if topic == self._source.record.id and at > self._until.get(number, START):
                    self._until[number] = at

    def _describe(self, number: int) -> PartitionRecord:
        """`accepted` is 0: the replica's constructor waits for nothing, since all is applied before its link has started.

        A partition that begins with state in hand begins where that says, and weights pass what lies before their version.
        """
        after = START if number in self._cut.seeded else self._cut.after.get(number, START)
        version, latest, context = self._cut.version, START, b""
        if version is not None and number == self._source.record.partitions:
            latest, context = version.position, self._source.context(version)
        return PartitionRecord(self._source.record.id, number, 0, after, 0, 0, after, (), 0, latest, context)


class PlaybackLink:
    """A `ConsumerLink` whose `start` applies everything and returns; from then on it is not connected."""

    def __init__(self, handler: Handler, playback: Playback) -> None:
        self._handler = handler
        self._playback = playback
        self._asked: deque[Follow | Fetch] = deque()
        self._furthest: dict[PartitionId, int] = {}
        """How far each partition was handed out."""
        self._durable: dict[PartitionId, int] = {}
        """How far the replica was told that nothing can be lost."""
        self.connected = False

    def start(self, timeout: float) -> Welcome:
        """Plays until nothing more can be applied, however long that takes: a log ends."""
        welcome = Welcome("playback", "", 0, 0.0)
        self.connected = True
        self._handler.connected(welcome)
        now, idle_rounds = 0.0, 0
        while self._asked and idle_rounds < IDLE_ROUNDS:
            before = dict(self._furthest)
            while self._asked:
                self._answer(self._asked.popleft())
            self._handler.drained()
            for partition in self._playback.grown():
                # It follows by now, as far as it knows: let it fetch again.
                self._handler.message(Demoted(*partition, self._furthest[partition], MAX_POSITION))
            # What waited for room, or was answered with an error, asks again at once: no real time passes here.
            now += ROUND_S
            self._handler.tick(now)
            idle_rounds = idle_rounds + 1 if self._furthest == before else 0
        self.connected = False
        return welcome

    def send(self, frame: Buffer | Message) -> bool:
        if isinstance(frame, Follow):
            self._asked.append(frame)
        return self.connected

    def fetch(self, message: Fetch | FetchFile) -> None:
        assert isinstance(message, Fetch), "a log that is read only has no keeper"
        self._asked.append(message)

    def request_async(self, call: Call, kind: Any, done: Callable[[Any, ParamstreamError | None], None]) -> None:
        done(None, InvalidEvent("a restored replica has no broker to ask"))

    def close(self, timeout: float) -> None:
        self.connected = False

    def _answer(self, asked: Follow | Fetch) -> None:
        partition = asked.topic, asked.partition
        if isinstance(asked, Fetch):
            self._fetch(asked, partition)
        elif partition not in self._furthest:
            self._furthest[partition] = asked.after
            # Let it fetch; a fetch that finds nothing more makes it ask to follow again.
            self._handler.message(Demoted(*partition, asked.after, MAX_POSITION))
        else:
            # What is here is all there will ever be, and all of it is durable. Time stands still: nothing expires any more.
            self._handler.message(Following(*partition, asked.after, asked.after, asked.after, (), 0))

    def _fetch(self, asked: Fetch, partition: PartitionId) -> None:
        error: WireError | None = None
        frames: list[memoryview] = []
        try:
            frames = self._playback.read(partition, asked.after, asked.max_bytes)
        except ParamstreamError as problem:
            error = WireError.of(problem)
        end = position_of(frames[-1]) if frames else asked.after
        self._furthest[partition] = max(end, self._furthest.get(partition, 0))
        self._tell_durable(partition, end if epoch_of(end) == epoch_of(asked.after) else asked.after)
        self._handler.fetched(Fetched(asked.id, *partition, len(frames), end, 0, error), frames)

    def _tell_durable(self, partition: PartitionId, durable: int) -> None:
        """What is handed out can no longer be lost: a replica waits for that with definitions of tables, and where it has no room for what
        it may have to take back. It is told of one epoch at a time, the one that it has reached: of a later one the head would say nothing
        of what waits before that.
        """
        if durable > self._durable.get(partition, START):
            self._durable[partition] = durable
            self._handler.message(Heartbeat((Heads(*partition, MAX_POSITION, durable, 0, 0),)))
