"""One producer on a topic of two state partitions, over a link that answers at once or when the test says so."""

from __future__ import annotations

from dataclasses import dataclass

from paramstream.events.codec import EventFrame
from paramstream.events.kinds import Optimizer, Table
from paramstream.events.recording import HistoryFile
from paramstream.producers.publisher import Publisher
from paramstream.producers.session import Session
from paramstream.transport.calls import TopicRecord

from .loopback_link import FakeDirectory, LoopbackLink
from .partition_owner import PartitionOwner

TOPIC = TopicRecord("m", 7, 2, "write_back", 8)
FAST = TopicRecord("fast", 8, 1, "none", 8)
WINDOW_BYTES = 2 * 1024 * 1024


@dataclass
class Stage:
    owner: PartitionOwner
    link: LoopbackLink
    directory: FakeDirectory
    session: Session
    publisher: Publisher

    def events(self, number: int) -> list[EventFrame]:
        """What stands in a partition of the topic."""
        return [event for _, event in self.owner.partitions[TOPIC.id, number].events]


def open_stage(window_bytes: int = WINDOW_BYTES, *, again: bool = False, history: HistoryFile | None = None) -> Stage:
    owner = PartitionOwner((7, 0), (7, 1), (7, 2), (8, 0), (8, 1))
    table = Table("emb", 3, "float32", Optimizer("sgd", {"lr": 0.1}))
    for number in range(2):
        owner.partitions[7, number].tables = (table,)
    link, directory = LoopbackLink(owner), FakeDirectory(TOPIC, FAST)
    session = Session("trainer", link, directory, window_bytes, again=again, history=history)
    link.sessions.append(session)
    session.open(1.0)
    return Stage(owner, link, directory, session, Publisher(session, TOPIC, directory))
