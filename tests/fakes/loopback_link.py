"""A link to a `PartitionOwner` in the same process: frames wait until the test lets them through, in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from paramstream.consistency.vector import PartitionId, VersionVector
from paramstream.errors import ConnectFailed, OutcomeUnknown, ParamstreamError, ParamstreamTimeout, UnknownTopic
from paramstream.events.kinds import Table
from paramstream.producers.session import Session
from paramstream.transport.calls import (
    AwaitDurable,
    Call,
    Join,
    JoinedPartition,
    ListVersions,
    OpenProducer,
    PrepareCommit,
    TopicRecord,
    VersionRecord,
)
from paramstream.transport.messages import Ack, Refused, Welcome

from .partition_owner import PartitionOwner


class LoopbackLink:
    """`auto`: every frame is answered at once, before `send` returns; otherwise by `deliver`."""

    def __init__(self, owner: PartitionOwner, *, auto: bool = True) -> None:
        self.owner = owner
        self.auto = auto
        self.connected = True
        self.refuse_sends = 0
        """So many frames are not taken: the pipe is full."""
        self.sent: list[bytes] = []
        self.wire: deque[bytes] = deque()
        self.sessions: list[Session] = []
        self.versions: list[VersionRecord] = []
        """What the broker says is sealed."""
        self.asked: list[Call] = []
        self.breaks = 0
        """So many questions are lost with their connection."""
        self.waiting: list[tuple[AwaitDurable, Callable[[Any, ParamstreamError | None], None]]] = []
        """Asked with `request_async`, for the test to answer."""

    def send(self, frame: Any) -> bool:
        if not self.connected:
            return False
        if self.refuse_sends:
            self.refuse_sends -= 1
            return False
        self.sent.append(bytes(frame))
        self.wire.append(bytes(frame))
        if self.auto:
            self.deliver()
        return True

    def deliver(self, count: int | None = None) -> int:
        """Let `count` frames through (all of them) and hand out their answers; returns how many there were."""
        done = 0
        while self.wire and (count is None or done < count):
            self._answer(self.owner.offer(self.wire.popleft()))
            done += 1
        return done

    def _answer(self, answer: Ack | Refused) -> None:
        for session in self.sessions:
            if session.incarnation == answer.incarnation:
                session.answered(answer)

    def heartbeat(self) -> None:
        message = self.owner.sync()
        for session in self.sessions:
            session.heartbeat(message)

    def request(self, call: Call, kind: Any, timeout: float) -> Any:
        self.asked.append(call)
        if self.breaks:
            self.breaks -= 1
            raise OutcomeUnknown("the connection went before the answer")
        if not self.connected:
            raise ConnectFailed("no broker")
        if isinstance(call, AwaitDurable):
            return self._wait_durable(call, timeout)
        return self._call(call)

    def _wait_durable(self, call: AwaitDurable, timeout: float) -> list[tuple[int, int, int]]:
        deadline = time.monotonic() + timeout
        while (lost := self.owner.await_durable(call)) is None:
            if time.monotonic() > deadline:
                raise ParamstreamTimeout("the broker did not answer AwaitDurable")
            time.sleep(0.001)
        return lost

    def request_async(self, call: Call, kind: Any, done: Callable[[Any, ParamstreamError | None], None]) -> None:
        if not self.connected:
            done(None, OutcomeUnknown("there is no connection"))
            return
        if isinstance(call, AwaitDurable):
            self.waiting.append((call, done))
            return
        try:
            answer = self._call(call)
        except ParamstreamError as error:
            done(None, error)
        else:
            done(answer, None)

    def _call(self, call: Call) -> Any:
        match call:
            case OpenProducer(name):
                return self.owner.open(name)
            case Join():
                return self.owner.join(call)
            case PrepareCommit():
                return self.owner.prepare(call)
            case ListVersions():
                return self.versions
            case _:
                raise AssertionError(call)

    def drop(self, arrived: int = 0) -> None:
        """The connection breaks; of what was on the wire, the first `arrived` frames have arrived, their answers not."""
        for _ in range(min(arrived, len(self.wire))):
            self.owner.offer(self.wire.popleft())
        self.wire.clear()
        self.connected = False
        for session in self.sessions:
            session.lost(OutcomeUnknown("the connection is gone"))

    def welcome(self) -> Welcome:
        return Welcome("fake", "", 1 << 20, 0.5)

    def connect(self) -> None:
        self.connected = True
        for session in self.sessions:
            session.connected(self.welcome())


class FakeDirectory:
    """Knows the topics it was given."""

    def __init__(self, *topics: TopicRecord, tables: Mapping[int, Mapping[str, Table]] | None = None) -> None:
        self._topics = {topic.id: topic for topic in topics}
        self._tables = tables or {}

    def name_of(self, topic: int) -> str | None:
        record = self._topics.get(topic)
        return record.name if record is not None else None

    def topic(self, name: str) -> TopicRecord:
        for record in self._topics.values():
            if record.name == name:
                return record
        raise UnknownTopic("no such topic", topic=name)

    def tables(self, topic: int) -> Mapping[str, Table]:
        return self._tables.get(topic, {})

    def learn_tables(self, partitions: Iterable[JoinedPartition]) -> None:
        """What it knows is given."""

    def to_names(self, vector: Mapping[PartitionId, int]) -> VersionVector[str]:
        known = {(self._topics[topic].name, n): at for (topic, n), at in vector.items() if topic in self._topics}
        return VersionVector(known)

    def to_ids(self, vector: Mapping[tuple[str, int], int]) -> VersionVector[int]:
        ids = {record.name: record.id for record in self._topics.values()}
        for name, _ in vector:
            if name not in ids:
                raise UnknownTopic("no such topic", topic=name)
        return VersionVector({(ids[name], n): at for (name, n), at in vector.items()})

    def standing_ids(self, vector: Mapping[tuple[str, int], int], *, must_be_known: bool = False) -> VersionVector[int]:
        known = {record.name for record in self._topics.values()}
        return self.to_ids({at: position for at, position in vector.items() if must_be_known or at[0] in known})
