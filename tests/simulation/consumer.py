"""A replica of the simulation, which dies and begins again: from nothing, from its own snapshots or from somebody else's."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from paramstream.consistency.gate import Ordering
from paramstream.consistency.vector import PartitionId
from paramstream.consumers.applying import TopicState
from paramstream.consumers.changelog.seeding import seed_of
from paramstream.consumers.effects import Deliver, EpochBegan
from paramstream.consumers.snapshots.seeding import Seed
from paramstream.errors import EventLost, LogTruncated, OutcomeUnknown, ParamstreamError, ParamstreamTimeout
from paramstream.events.codec import decode_event
from paramstream.transport.calls import PartitionRecord
from paramstream.transport.directory import Ask
from paramstream.transport.messages import Demoted, Following, Heartbeat, Welcome

from .changelogs import SimChangelogs
from .life import Home, Life
from .network import Connection, FetchedFrames, Item, Told
from .recorded import History
from .seen import Seen
from .snapshot_disk import SnapshotDisk
from .states import Entries, States
from .topics import SimTopic


class SimConsumer:
    """One replica's name. What it has of one life is gone with it, but for its snapshots."""

    def __init__(
        self,
        name: str,
        ordering: Ordering,
        topics: Mapping[SimTopic, Sequence[int]],
        states: States,
        note: Callable[[str], None],
        history: History,
        *,
        durable_only: bool,
    ) -> None:
        """`topics`: those followed, with the numbers of their state partitions that are. `note` is told of every step applied."""
        self.name = name
        self.ordering = ordering
        self.durable_only = durable_only
        self._home = Home(
            name,
            ordering,
            durable_only,
            {topic.name: numbers for topic, numbers in topics.items()},
            states,
            note,
            history,
        )
        self.topics = list(topics)
        self.follows: list[PartitionId] = sorted(
            (topic.id, number) for topic, numbers in topics.items() for number in (*numbers, topic.partitions)
        )
        self.inboxes: dict[PartitionId, deque[Item]] = {partition: deque() for partition in self.follows}
        """What has come of each partition and waits: each has its own delays, as if it came from a broker of its own."""
        self.life: Life | None = None
        self.lives: list[Life] = []
        """All of them, in order; the present one too."""
        self.problems: list[str] = []
        """Of its beginnings. What was wrong in a life stands there."""
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.starts: list[str] = []
        """How each life began."""
        self.snapshots: list[SimTopic] = []
        """That were made whole."""

    # --- lives ------------------------------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """Of its snapshots."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="paramstream-simulation-")
        return Path(self._folder.name)

    def has_snapshots_for(self, other: SimConsumer) -> bool:
        """Of every topic that the other one follows."""
        return set(other.topics) <= set(self.snapshots)

    @property
    def is_running(self) -> bool:
        return self.life is not None

    @property
    def is_ready(self) -> bool:
        return self.life is not None and self.life.is_ready

    @property
    def is_copying(self) -> bool:
        """A snapshot or a flush is on its way."""
        return self.life is not None and bool(self.life.asides)

    def start(self, start: str, ask: Ask, changelogs: SimChangelogs) -> bool:
        """Begin a life as `start` says. False, and none is begun, where what it says leads nowhere, or nobody can tell yet."""
        assert self.life is None
        try:
            if start == "changelogs":
                lasting = [topic for topic in self.topics if topic.persistence != "none"]
                life = Life(self._home, ask, "latest", seeds=[self._seed(topic, changelogs) for topic in lasting])
            else:
                life = Life(self._home, ask, start, self.folder if start == "resume" else None)
        except (LogTruncated, ParamstreamTimeout):
            return False
        except EventLost as error:
            self.problems.append(f"{self.name} cannot begin with {start.partition(':')[0]}: {error}")
            return False
        self.life = life
        self.lives.append(life)
        self.starts.append(start.partition(":")[0])
        return True

    def crash(self) -> None:
        """The process ends, and with it all but the snapshots that are whole. Its connections are the world's to end."""
        if self.life is not None:
            self.life.close()
            self.life = None

    def close(self) -> None:
        self.crash()
        if self._folder is not None:
            self._folder.cleanup()

    def fill_store(self, leaves: int) -> bool:
        """The tier has no room for more than `leaves` bytes, until `free_store`. False where it is not there."""
        if self.life is not None:
            self.life.fill_store(leaves)
        return self.life is not None

    def free_store(self) -> None:
        if self.life is not None:
            self.life.free_store()

    def begin_snapshot(self, topic: SimTopic) -> bool:
        """False where it cannot, or another one is on its way."""
        life = self.life
        if life is None or "snapshot" in life.asides or not life.is_ready or topic not in self.topics:
            return False
        life.take_snapshot(topic, self.folder, SnapshotDisk())
        return True

    def begin_flush(self, topic: SimTopic, changelogs: SimChangelogs) -> bool:
        """As `begin_snapshot`. Only who shows what is durable alone writes changelogs."""
        life = self.life
        if life is None or "write back" in life.asides or not life.is_ready or not self.may_flush(topic):
            return False
        life.write_back(topic, changelogs)
        return True

    def may_flush(self, topic: SimTopic) -> bool:
        return self.durable_only and topic.persistence != "none" and bool(self._home.numbers.get(topic.name))

    def go_on(self, steps: int) -> None:
        """A snapshot and a flush on their way move on."""
        life = self.life
        for name, aside in list(life.asides.items()) if life is not None else ():
            for _ in range(steps):
                if not aside.step():
                    break
            if aside.is_over:
                assert life is not None
                del life.asides[name]
                if aside.error is not None:
                    raise aside.error
                if name == "snapshot":
                    self.snapshots.append(life.copied)

    def _seed(self, topic: SimTopic, changelogs: SimChangelogs) -> Seed:
        return seed_of(changelogs, topic.record, self._home.numbers[topic.name])

    # --- its end of a connection ------------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        life = self._living()
        life.link.connection = connection
        life.feed.connected(Welcome(connection.broker_name, "", 1 << 20, 0.5))

    def lost(self) -> None:
        for inbox in self.inboxes.values():
            inbox.clear()
        if self.life is not None:
            self.life.link.lost()
            self.life.feed.lost(OutcomeUnknown("the connection is gone"))

    def received(self, item: Item) -> None:
        life = self.life
        match item:
            case _ if life is None:
                pass
            case bytes():
                self.inboxes[decode_event(item).partition_id].append(item)
            case FetchedFrames(answer, frames):
                life.feed.fetched(answer, frames)
            case Told():
                life.link.told(item)
                life.feed.run()
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
            feed = self._living().feed
            if isinstance(item, bytes):
                feed.event(memoryview(item))
            else:
                assert isinstance(item, Following | Demoted | Heartbeat)
                feed.message(item)
        return bool(taken)

    def tick(self, now: float) -> None:
        if self.life is not None:
            self.life.feed.tick(now)
            self.life.look()

    def jump(self, at: PartitionRecord) -> bool:
        """The owner has said where the newest version stands: go on with that one, if it lies ahead."""
        life = self.life
        partition = at.topic, at.partition
        if life is None or at.latest_start <= life.core.received(partition):
            return False
        if life.core.jumping_to(partition) is not None:
            return False
        life.sink.jumps.begin(at)
        life.feed.run()
        life.jumps += 1
        return True

    def _living(self) -> Life:
        assert self.life is not None
        return self.life

    # --- what it has ------------------------------------------------------------------------------------------------------

    def read(self) -> Seen:
        """What its user sees; nothing while it is not there."""
        return self.life.read() if self.life is not None else Seen()

    def topic_states(self) -> list[TopicState]:
        return list(self._living().applier.topics.values())

    def held(self, partition: PartitionId) -> Entries:
        """Entries and rows of a state partition."""
        return self._living().held(partition)

    def position(self, partition: PartitionId) -> int:
        """What is applied of it; 0 while it is not there."""
        return self.life.core.position(partition) if self.life is not None else 0

    @property
    def is_connected(self) -> bool:
        return self.life is not None and self.life.link.connected

    @property
    def undone(self) -> list[Deliver | EpochBegan]:
        return [line for life in self.lives for line in life.undone]

    @property
    def applied(self) -> list[Deliver | EpochBegan]:
        return [line for life in self.lives for line in life.applied]

    @property
    def jumps(self) -> int:
        return sum(life.jumps for life in self.lives)

    @property
    def stopped(self) -> Mapping[PartitionId, ParamstreamError]:
        return {} if self.life is None else self.life.sink.stopped

    def told_problems(self) -> Iterable[str]:
        """What was seen to be wrong while it went on."""
        yield from self.problems
        for life in self.lives:
            yield from life.problems
