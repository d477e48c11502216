"""Copies in the client of rows that it looks up often, kept fresh by following the topic: a row that is written is dropped.

    client = ps.connect(endpoint, hot_rows="64MiB")     # for each table that is looked up

A copy is used only while the client follows the topic without a gap as far as it is told, and only where it has seen what the look-up
must have seen. So a copy is older than the row by the way of one event from the broker to here, as a replica's rows are; and where the
broker falls silent, by `STALE_S` at most.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...consistency.gate import Ordering
from ...consistency.vector import PartitionId
from ...errors import OutcomeUnknown, ParamstreamError
from ...events.codec import EventFrame
from ...events.kinds import DeleteRows, Gradients, Rows, Table
from ...events.row_keys import Keys
from ...tiers.rows.copies import PIECE_ROWS, RowCopies
from ...transport.calls import DescribePartitions, PartitionRecord, TopicRecord
from ...transport.directory import Directory
from ...transport.lookups import Need
from ...transport.messages import FORMAT, Following, Heartbeat, Hello, Welcome
from ..effects import Deliver, Durable, EpochBegan, Jump, Refetched, Step, Stopped, Undo
from ..feed import Feed
from ..links import MakeLink
from ..scope import time_left
from ..status import STALE_S
from ..subscription_core import SubscriptionCore

RECENT_KEYS = 64 * 1024
"""Keys written last of each table that are remembered: an answer may be of before a write that is known here already."""

AGAIN_S = 5.0
"""How soon a topic that could not be followed is tried again."""

Marks = npt.NDArray[np.bool_]
Copied = tuple[npt.NDArray[Any], Marks, Marks]
"""(values, there, known) of some keys."""


@dataclass(frozen=True, slots=True)
class HotRows:
    """The copies that a client holds, of all tables."""

    rows: int
    hits: int
    """Rows that were looked up and not asked for."""
    misses: int
    dropped: int
    """Copies of rows that were written since."""
    evicted: int


@dataclass(slots=True)
class _Table:
    copies: RowCopies
    recent: deque[tuple[int, int, Keys]] = field(default_factory=deque[tuple[int, int, Keys]])
    """(partition, position, keys) of the last writes, oldest first."""
    count: int = 0
    """Keys in those."""
    floor: dict[int, int] = field(default_factory=dict[int, int])
    """Partition → the last position of which it is not remembered what it wrote."""

    def write(self, number: int, position: int, keys: Keys) -> None:
        self.copies.drop(keys, position)
        self.recent.append((number, position, keys))
        self.count += len(keys)
        while self.count > RECENT_KEYS:
            of, at, forgotten = self.recent.popleft()
            self.floor[of] = at
            self.count -= len(forgotten)

    def keep(
        self,
        keys: Keys,
        partitions: npt.NDArray[np.int64],
        values: npt.NDArray[Any],
        there: Marks,
        seen: Mapping[int, int],
    ) -> None:
        for number, position in seen.items():
            mine = np.flatnonzero(partitions == number)
            mine = mine[~self.is_of_before(number, position, keys[mine])]
            self.copies.keep(keys[mine], values[mine], there[mine], np.full(len(mine), position, np.uint64))

    def is_of_before(self, number: int, position: int, keys: Keys) -> Marks:
        """Which of these keys may have been written behind `position` of their partition."""
        if position < self.floor.get(number, 0):
            return np.ones(len(keys), np.bool_)
        since = [wrote for of, at, wrote in self.recent if of == number and at > position]
        return np.isin(keys, np.concatenate(since)) if since else np.zeros(len(keys), np.bool_)


class HotTopic:
    """A `feed.Sink` that applies events by dropping copies."""

    def __init__(
        self, topic: TopicRecord, nbytes: int, directory: Directory, make_link: MakeLink, deadline: float
    ) -> None:
        """Follows the topic's state from here on. Raises as a subscription does."""
        numbers = tuple(range(topic.partitions))
        found: list[PartitionRecord] = directory.request(
            DescribePartitions(topic.id, numbers), list[PartitionRecord], time_left(deadline)
        )
        if len(found) < len(numbers):
            raise OutcomeUnknown("nobody serves a partition at the moment", topic=topic.name)
        self._topic = topic
        self._nbytes = nbytes
        self._lock = threading.Lock()
        """Guards the core, and that a copy is kept and a write of its row seen in one order."""
        self._core = SubscriptionCore(Ordering.PRAM, {(at.topic, at.partition): at.accepted for at in found})
        self._tables: dict[str, _Table] = {}
        self._heard_at = 0.0
        self.ended = False
        """Nothing more is followed: the topic is gone, or its log damaged."""
        feed = Feed(self._core, self, self._lock)
        self._link = feed.link = make_link(feed, lambda: Hello(FORMAT), f"hot-{topic.name}")
        self._link.start(time_left(deadline))

    def read(
        self, table: str, keys: Keys, partitions: npt.NDArray[np.int64], needs: Mapping[int, Need]
    ) -> tuple[Copied, dict[int, int]] | None:
        """What is known of these rows, and up to where that is true of each partition. None where nothing is."""
        asked: list[int] = np.flatnonzero(np.bincount(partitions)).tolist()
        with self._lock:
            found = self._tables.get(table)
            fresh = {n: at for n in asked if (at := self._fresh_to(n, needs.get(n))) is not None}
        if found is None:
            return None
        usable = np.isin(partitions, list(fresh)) if len(fresh) < len(asked) else np.ones(len(keys), np.bool_)
        # What is written from here on is dropped from these copies, and what is forgotten is gone from them too.
        return found.copies.read(keys, usable), fresh

    def keep(
        self,
        table: str,
        keys: Keys,
        partitions: npt.NDArray[np.int64],
        values: npt.NDArray[Any],
        there: Marks,
        seen: Mapping[int, int],
    ) -> None:
        """Answers, of which each partition's have seen at least `seen`."""
        # Made without the lock: that may take seconds.
        copies = None if table in self._tables else RowCopies(values.shape[1], values.dtype, self._nbytes)
        for at in range(0, len(keys), PIECE_ROWS):
            piece = slice(at, at + PIECE_ROWS)
            with self._lock:
                known = self._tables.get(table) or self._begin(table, copies)
                if known is not None:
                    known.keep(keys[piece], partitions[piece], values[piece], there[piece], seen)

    def _begin(self, table: str, copies: RowCopies | None) -> _Table | None:
        """Under the lock. None where copies were forgotten in between, or nothing is followed any more: the next answer begins anew."""
        if copies is None or self.ended:
            return None
        # What was written before is not remembered.
        positions = self._core.positions()
        floor = {number: positions[self._topic.id, number] for number in range(self._topic.partitions)}
        self._tables[table] = made = _Table(copies, floor=floor)
        return made

    def tables(self) -> list[RowCopies]:
        return [table.copies for table in list(self._tables.values())]

    def close(self, timeout: float) -> None:
        self._link.close(timeout)

    def _fresh_to(self, number: int, need: Need | None) -> int | None:
        """Under the lock: up to where copies of the partition are known to be what the log says; None where that is not enough."""
        partition: PartitionId = (self._topic.id, number)
        position = self._core.positions().get(partition)
        if position is None or time.monotonic() - self._heard_at > STALE_S or not self._core.heads_are_known:
            return None
        if self._core.heads(partition)[0] > position:
            return None
        if need is not None and (need.position > position or not self._core.stands(partition, need.position)):
            return None
        return position

    # --- the feed's sink: in the link's thread ------------------------------------------------------------------------------------

    def step(self, step: Step) -> None:
        with self._lock:
            match step:
                case Deliver():
                    self._wrote(step.partition[1], step.frame)
                case EpochBegan() | Undo():
                    # Answers may have held what was lost with the epoch before, even what never came here; those from before it that
                    # are still to come are not kept, since tables begin anew.
                    self._forget()
                case Jump():
                    pass
            self._core.confirm(step)

    def told(self, effect: Durable | Refetched | Stopped) -> None:
        if isinstance(effect, Stopped):
            with self._lock:
                self.ended = True
                self._forget()

    def connected(self, welcome: Welcome) -> None:
        """The core follows again by itself."""

    def lost(self, error: ParamstreamError) -> None:
        self._heard_at = 0.0

    def heard(self, message: Heartbeat | Following) -> None:
        self._heard_at = time.monotonic()

    def drained(self) -> None:
        """Nobody waits."""

    def tick(self, now: float) -> None:
        """What is stale is seen when it is read."""

    def _wrote(self, number: int, frame: EventFrame) -> None:
        payload = frame.payload
        if isinstance(payload, Rows | Gradients | DeleteRows):
            table = self._tables.get(payload.table)
            if table is not None:
                table.write(number, frame.position, np.frombuffer(frame.bulk, "<i8", payload.count).copy())
        elif isinstance(payload, Table):
            # Rows that are not there may begin with other values from now on.
            altered = self._tables.pop(payload.table, None)
            if altered is not None:
                altered.copies.clear()

    def _forget(self) -> None:
        for table in self._tables.values():
            table.copies.clear()
        self._tables = {}


class HotTopics:
    """Of one client: each topic is followed from its first look-up on. Thread-safe."""

    def __init__(self, nbytes: int, directory: Directory, make_link: MakeLink) -> None:
        """`nbytes`: for the copies of each table."""
        self._nbytes = nbytes
        self._directory = directory
        self._make_link = make_link
        self._lock = threading.Lock()
        self._topics: dict[int, HotTopic] = {}
        self._not_before: dict[int, float] = {}
        """Topics that could not be followed → when that is tried again."""
        self._closed = False

    def of(self, topic: TopicRecord, deadline: float) -> HotTopic | None:
        """None where the topic cannot be followed at the moment: everything is asked for then."""
        with self._lock:
            known, now = self._topics.get(topic.id), time.monotonic()
            if known is not None and not known.ended:
                return known
            if self._closed or now < self._not_before.get(topic.id, now):
                return None
            # One thread at a time: the others go on without.
            self._not_before[topic.id] = now + AGAIN_S
        if known is not None:
            known.close(AGAIN_S)
        try:
            made = HotTopic(topic, self._nbytes, self._directory, self._make_link, min(deadline, now + AGAIN_S))
        except ParamstreamError:
            return None
        with self._lock:
            if not self._closed:
                self._topics[topic.id] = made
                return made
        made.close(AGAIN_S)
        return None

    def counters(self) -> HotRows:
        tables = [table for topic in list(self._topics.values()) for table in topic.tables()]
        counted = [table.counters() for table in tables]
        return HotRows(
            rows=sum(map(len, tables)),
            hits=sum(each.hits for each in counted),
            misses=sum(each.misses for each in counted),
            dropped=sum(each.dropped for each in counted),
            evicted=sum(each.evicted for each in counted),
        )

    def close(self, timeout: float) -> None:
        with self._lock:
            self._closed = True
            topics, self._topics = self._topics, {}
        for topic in topics.values():
            topic.close(timeout)
