"""What a producer needs to know of topics, and the connection it sends on: both are handed in by the client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from ..consistency.vector import PartitionId, VersionVector
from ..errors import ParamstreamError
from ..events.codec import Buffer
from ..events.kinds import Table
from ..transport.calls import Call, JoinedPartition, TopicRecord
from ..transport.wire import Message


class Directory(Protocol):
    """Topics by name and by id. Every method may be called from any thread; `topic`, `to_ids` and `standing_ids` may ask a broker."""

    def name_of(self, topic: int) -> str | None:
        """The name of a topic id, or None where the topic is gone. Answers from memory: it never asks a broker."""
        ...

    def topic(self, name: str) -> TopicRecord:
        """The topic of that name; asks a broker where it is not known. Raises `UnknownTopic`."""
        ...

    def tables(self, topic: int) -> Mapping[str, Table]:
        """The tables of a topic by name, as newly as the client knows them."""
        ...

    def learn_tables(self, partitions: Iterable[JoinedPartition]) -> None:
        """What a join has told of tables."""
        ...

    def to_names(self, vector: Mapping[PartitionId, int]) -> VersionVector[str]:
        """The same vector as users see it. Entries of topics that are gone are left out. Answers from memory."""
        ...

    def to_ids(self, vector: Mapping[tuple[str, int], int]) -> VersionVector[int]:
        """The same vector as events carry it. Raises `UnknownTopic` for a topic that there is not."""
        ...

    def standing_ids(self, vector: Mapping[tuple[str, int], int], *, must_be_known: bool = False) -> VersionVector[int]:
        """The same without topics that were deleted. `must_be_known`: `UnknownTopic` for a name that never was a topic's."""
        ...


class Uplink(Protocol):
    """The part of `transport.link.Link` that a session uses."""

    def send(self, frame: Buffer | Message) -> bool:
        """Send at once from the calling thread. False while not connected: nothing was sent."""
        ...

    def request(self, call: Call, kind: Any, timeout: float) -> Any:
        """Ask and wait. Raises the broker's error, or `ParamstreamTimeout`. Not from the link's own thread."""
        ...

    def request_async(self, call: Call, kind: Any, done: Callable[[Any, ParamstreamError | None], None]) -> None:
        """Ask; `done` is called in the link's thread."""
        ...
