"""A broker's process over a shared log: the real loop and all behind it, with nothing simulated but what a machine is.

Its one ROUTER is a queue of what has arrived, its threads are turns that the world gives it, its time is the world's.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import msgspec
import zmq

from paramstream.brokers import calls, fetching, following, loop, opening, owning, partition, reports, syncing, trimming
from paramstream.brokers.effects import Append
from paramstream.brokers.membership import SlotMember
from paramstream.brokers.opening import Opener, Opening
from paramstream.brokers.owned import Owned
from paramstream.brokers.partition import PartitionSettings
from paramstream.brokers.partitions import Partitions
from paramstream.brokers.posting import POST_ID, Job, Posting
from paramstream.brokers.worker import Worker
from paramstream.consistency.position import MAX_OFFSET
from paramstream.consistency.vector import PartitionId
from paramstream.errors import ConnectFailed, ParamstreamError
from paramstream.eventlog import counting
from paramstream.eventlog.log import Member
from paramstream.events.codec import MAGIC as EVENT_MAGIC
from paramstream.events.codec import Buffer, EventFrame
from paramstream.events.kinds import Table
from paramstream.transport.messages import UP, Fetch, Welcome, decode_message, encode_message
from paramstream.transport.sockets import Socket
from paramstream.transport.wire import Message

from .clock import Clock
from .network import Connection, FetchedFrames, Item
from .rows import table_of
from .shared_log import ClusterLog, SharedKafka, Tenure

WINDOW_BYTES = 1 << 20
CLAIM_S = 2.0
"""A claim that does not stand for so long is given up; it may still come to stand."""


@contextmanager
def simulated_machine(clock: Clock, chance: random.Random, max_offset: int = MAX_OFFSET) -> Generator[None]:
    """The broker's own modules read this clock and draw from this chance. An epoch is full at `max_offset`."""
    time = SimpleNamespace(monotonic=lambda: clock.now, monotonic_ns=lambda: clock.now_ns)
    with ExitStack() as patches:
        for module in (calls, following, loop, owning, reports, syncing, trimming):
            patches.enter_context(patch.object(module, "time", time))
        patches.enter_context(patch.object(owning, "random", chance))
        patches.enter_context(patch.object(opening, "randbits", chance.getrandbits))
        for module in (partition, counting):
            patches.enter_context(patch.object(module, "MAX_OFFSET", max_offset))
        yield


class SimProcess:
    """From one start to its end. Its name stays the same over its starts, its id does not."""

    def __init__(self, name: str, start: int, kafka: SharedKafka, clock: Clock) -> None:
        self.name = name
        self.member = Member(name, f"{name}/{start}", name)
        self.log = ClusterLog(kafka, name)
        self.partitions = Partitions(self.log, self.member.broker, lambda: clock.wall_s, lambda: clock.now_ns)
        self.partitions.opener = SteppedOpener(
            self.log, self.partitions.memory, self.member.broker, lambda: clock.wall_s, lambda: clock.now_ns
        )
        self.connections: dict[bytes, Connection] = {}
        self.router = Router(self.connections)
        self.posting = Posted(self.router)
        self.worker = SteppedWorker(self.posting.post, clock)
        self.reader = following.MetaReader(self.log, self.posting.post)
        self._closing = threading.Event()
        self.loop = loop.Loop(
            cast("Socket", self.router),
            self.partitions,
            cast("Posting", self.posting),
            cast("Worker", self.worker),
            self.reader,
            Welcome(self.member.broker, "", WINDOW_BYTES, loop.HEARTBEAT_S),
            self._closing,
        )
        self.slots = SlotMember(self.member, self.loop.owning, self.posting.post)
        self.is_leaving = False

    # --- its connections --------------------------------------------------------------------------------------------------

    def received(self, connection: Connection, item: Item) -> None:
        assert isinstance(item, bytes | Message)
        data = item if isinstance(item, bytes) else encode_message(item)
        self.router.inbox.append((_client_id(connection.id) + UP, data))

    def forget(self, connection: Connection) -> None:
        """All that it brought is taken; that it is gone is found when something is sent."""
        self.connections.pop(connection.id, None)

    def fetch(self, connection: Connection, fetch: Fetch, count: int) -> None:
        """As its fetch thread does; `count` events at most, or about that."""
        asked = msgspec.structs.replace(fetch, max_bytes=min(fetch.max_bytes, 400 * count))
        answer, frames = fetching.read_events(self.partitions, asked)
        connection.fetched.append(FetchedFrames(answer, [memoryview(bytes(frame)) for frame in frames]))

    # --- its threads ------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """The loop takes what has arrived."""
        self.loop.turn()

    def go_on(self, chance: random.Random, *, lazy: float) -> None:
        """Each of its threads goes on a little; with the probability `lazy` it does not."""
        for tenure in list(self.log.tenures):
            if chance.random() >= lazy:
                tenure.step(chance)
        if chance.random() >= lazy:
            self.worker.step()
        if self.reader.is_reading and chance.random() >= lazy:
            self.reader.look()
        if chance.random() >= lazy:
            self.loop.syncer.sync_dirty()
        if chance.random() >= lazy:
            self.turn()

    def leave(self) -> None:
        """A clean stop begins: nothing more is accepted. It has ended when `is_drained`."""
        if not self.is_leaving:
            self.is_leaving = True
            self._closing.set()
            self.loop.run()

    @property
    def is_drained(self) -> bool:
        return all(owned.error is not None or is_durable(owned) for owned in self.partitions.owned.values())


def is_durable(owned: Owned) -> bool:
    return owned.core.durable == owned.core.sequenced


def _client_id(connection: bytes) -> bytes:
    return connection.rjust(16, b"0")


class Router:
    """What the loop uses of its socket."""

    def __init__(self, connections: dict[bytes, Connection]) -> None:
        self.inbox: deque[tuple[bytes, bytes]] = deque()
        self._connections = connections

    def poll(self, timeout_ms: int) -> int:
        return bool(self.inbox)

    def recv_multipart(self, flags: int, copy: bool) -> list[zmq.Frame]:
        if not self.inbox:
            raise zmq.Again
        return [zmq.Frame(part) for part in self.inbox.popleft()]

    def send_multipart(self, parts: Sequence[Buffer], flags: int, copy: bool) -> None:
        address, data = parts
        connection = self._connections.get(bytes(address[:16]).lstrip(b"0"))
        if connection is None:
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        is_event = bytes(data[:2]) == EVENT_MAGIC
        if is_event and len(connection.down) >= connection.pipe:
            raise zmq.Again
        connection.answer(bytes(data) if is_event else decode_message(bytes(data)))


class Posted:
    """See `brokers.posting`."""

    def __init__(self, router: Router) -> None:
        self._jobs: deque[Job] = deque()
        self._router = router

    def post(self, job: Job) -> None:
        self._jobs.append(job)
        if len(self._jobs) == 1:
            self._router.inbox.append((POST_ID, b""))

    def run(self) -> None:
        while self._jobs:
            self._jobs.popleft()()


class TakeOver:
    """`Opener.open`, one wait after the other."""

    def __init__(self, opener: Opener, opening: Opening) -> None:
        self._opener = opener
        self._opening = opening
        self._is_claimed = False
        opening.owned.durable.append(opening.claim)

    def step(self) -> Owned | None:
        """None while it waits. Raises what the log raises."""
        log = cast("Tenure", self._opening.owned.durable)
        if not self._is_claimed:
            others = log.others()
            if others is not None:
                self._is_claimed = True
                self._opener.claimed(self._opening, others)
            return None
        if log.sync() < self._opening.waits_for:
            return None
        return self._opener.opened(self._opening)


class SteppedOpener(Opener):
    """Gives a `TakeOver` for what is taken over, which the worker knows what to do with."""

    def claimed(self, opening: Opening, records: Iterable[EventFrame]) -> None:
        """As a call of a user would have it, every state partition has its table from the beginning."""
        super().claimed(opening, records)
        core = opening.owned.core
        for effect in table_of(core, self._monotonic_ns()):
            if isinstance(effect, Append):
                opening.owned.append(effect)
        opening.waits_for = max(opening.waits_for, core.sequenced if opening.owned.lasts else 0)

    def open(self, partition: PartitionId, settings: PartitionSettings, tables: Sequence[Table] = ()) -> Owned:
        return cast("Owned", TakeOver(self, self.begin(partition, settings, tables)))


class SteppedWorker:
    """See `brokers.worker`: as many jobs go on side by side as there are."""

    def __init__(self, post: Callable[[Job], None], clock: Clock) -> None:
        self._post = post
        self._clock = clock
        self._jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self._under_way: list[tuple[TakeOver, float, Callable[[Any], None]]] = []

    def do(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self._jobs.append((job, then))

    def step(self) -> None:
        jobs, self._jobs = self._jobs, []
        for job, then in jobs:
            result = _done(job)
            if isinstance(result, TakeOver):
                self._under_way.append((result, self._clock.now + CLAIM_S, then))
            else:
                self._tell(then, result)
        under_way, self._under_way = self._under_way, []
        for take_over, until, then in under_way:
            result = _done(take_over.step)
            if result is None and self._clock.now > until:
                result = ConnectFailed("the beginning of an epoch does not stand")
            if result is None:
                self._under_way.append((take_over, until, then))
            else:
                self._tell(then, result)

    def _tell(self, then: Callable[[Any], None], result: object) -> None:
        self._post(lambda: then(result))


def _done(job: Callable[[], Any]) -> Any:
    try:
        return job()
    except ParamstreamError as error:
        return error
