"""The producer session that threads use: a lock around the core, and the connection.

A calling thread sends by itself whatever the core lets go, under the session's lock; what has to wait its turn is sent by
the link's thread when answers come. All publishers of one producer name in a client share one session.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from threading import Condition, RLock
from typing import Any

from ..consistency.vector import PartitionId, VersionVector
from ..errors import (
    BackpressureTimeout,
    ConnectFailed,
    Fenced,
    InvalidEvent,
    OutcomeUnknown,
    ParamstreamError,
    ParamstreamTimeout,
    StorageFull,
    UnknownTopic,
)
from ..events.codec import Buffer
from ..events.kinds import Table
from ..events.recording import HistoryFile, Token
from ..transport.calls import Call as Question
from ..transport.calls import (
    DescribePartitions,
    Join,
    Joined,
    LastEvent,
    OpenProducer,
    PartitionRecord,
    TopicRecord,
)
from ..transport.messages import Ack, Heartbeat, Refused, Welcome
from ..transport.waiting import bounded
from .calls import Call, Draft, Event
from .directory import Directory, Uplink
from .effects import Dropped, Effect, FencedOut, JoinAgain, Send, Settled
from .leftover import describe_leftover
from .partition_state import PartitionState
from .receipt import Receipt, named_error
from .recording import SessionRecorder
from .session_core import SessionCore

JOIN_RETRY_S = 0.5

DEFAULT_WINDOW_BYTES = 8 * 1024 * 1024
"""Until a `Welcome` says what the broker grants."""


class Session:
    """One producer name's live session.

    `answered`, `deleted`, `heartbeat`, `connected`, `lost` and `tick` belong to the link's thread and never block for long;
    everything else may be called from any thread but that one.
    """

    def __init__(
        self,
        name: str,
        link: Uplink,
        directory: Directory,
        window_bytes: int = DEFAULT_WINDOW_BYTES,
        *,
        halts: bool = False,
        again: bool = False,
        history: HistoryFile | None = None,
    ) -> None:
        """`halts`: once an event is lost or refused nothing more is sent. `again`: what is lost goes again (`SessionCore`).
        `history`: where it is recorded what the session does.
        """
        self.name = name
        self.directory = directory
        self.lock = RLock()
        self._link = link
        self._window_bytes = window_bytes
        self._halts = halts
        self.again = again
        self.last_events: Mapping[PartitionId, LastEvent] = {}
        """The name's last event in each partition that has one, as the join that opened the session was told."""
        self._changed = Condition(self.lock)
        self._waiting = 0
        self._core: SessionCore | None = None
        self._history = history
        self._recorder: SessionRecorder | None = None
        self._connections = 0
        """Counts connections and losses, so that an answer of an older connection is known as such."""
        self._join_at: float | None = None
        """When to ask for a join again, after one that failed."""
        self._listeners: deque[Callable[[], None]] = deque()
        self._closed = False
        """No more calls are taken."""
        self._opening = False
        self._over = False
        """The session is not joined again: it is closed, and what had no answer is given up."""
        self._users = 0

    # --- life -------------------------------------------------------------------------------------------------------------

    def open(self, timeout: float) -> None:
        """Take the next incarnation and join it everywhere. Blocks; a lost connection is tried again until `timeout`."""
        self._closed = self._opening = True
        try:
            self._open(timeout)
        finally:
            self._opening = False

    def _open(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            left = _left(deadline, f"opening producer {self.name!r}")
            connection = self._connections
            try:
                incarnation: int = self._link.request(OpenProducer(self.name), int, left)
                answer: Joined = self._link.request(Join(self.name, incarnation), Joined, left)
            except (ConnectFailed, OutcomeUnknown):
                continue
            self.directory.learn_tables(answer.partitions)
            with self._doing():
                if connection == self._connections:
                    self._core = SessionCore(
                        self.name, incarnation, self._window_bytes, halts=self._halts, again=self.again
                    )
                    found = (((at.topic, at.partition), at.last) for at in answer.partitions)
                    self.last_events = {partition: last for partition, last in found if last is not None}
                    if self._history is not None:
                        self._recorder = SessionRecorder(
                            self._history, self.name, incarnation, self.directory.name_of
                        )  # fmt: skip
                    self._closed = False
                    self._run(self._core.joined(answer, fresh=True))
                    return

    @property
    def incarnation(self) -> int:
        """0 until the session is open."""
        return self._core.incarnation if self._core is not None else 0

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def settled(self) -> bool:
        """It is closed or fenced, and everything has its outcome: the link need not tell it anything more."""
        core = self._core
        if core is None:
            return self._closed and not self._opening
        return (self._closed or core.fenced is not None) and not core.outcomes.unfinished

    @property
    def fenced(self) -> Fenced | None:
        return self._core.fenced if self._core is not None else None

    @property
    def failed(self) -> ParamstreamError | None:
        """The first error that an event has ended with since the last `flush`, if there was one."""
        with self.lock:
            call = self._live.outcomes.failed
            return (
                named_error(call, call.error, self.directory) if call is not None and call.error is not None else None
            )

    def retain(self) -> None:
        """One more publisher uses the session."""
        with self.lock:
            self._users += 1

    def release(self, timeout: float) -> None:
        """A publisher is done with the session; the last one closes it."""
        with self.lock:
            self._users -= 1
            last = self._users <= 0
        if last:
            self.close(timeout)

    def has_joined(self, topic: TopicRecord) -> bool:
        """Every partition of the topic is joined, its weight partition too."""
        with self.lock:
            return all((topic.id, number) in self._usable().partitions for number in range(topic.partitions + 1))

    def check_joined(self, topic: TopicRecord) -> None:
        """Raises `UnknownTopic` where no partition of the topic is joined. One that has stopped is found when it is used."""
        with self.lock:
            core, partitions = self._usable(), [(topic.id, number) for number in range(topic.partitions + 1)]
            if not any(partition in core.partitions for partition in partitions):
                self._must_know(core, partitions)

    def join(self, timeout: float = 30.0) -> None:
        """Join a second time in the midst: partitions that are new get known, and schema and tables are taken anew.

        Blocks; tried again until `timeout` where the connection goes meanwhile.
        """
        deadline = time.monotonic() + timeout
        while True:
            with self.lock:
                core, connection = self._usable(), self._connections
                join = Join(self.name, core.incarnation, core.unconfirmed())
            left = _left(deadline, f"joining of producer {self.name!r}")
            try:
                answer: Joined = self._link.request(join, Joined, left)
            except (ConnectFailed, OutcomeUnknown):
                continue
            self.directory.learn_tables(answer.partitions)
            with self._doing():
                if connection == self._connections:
                    self._run(core.refresh(answer))
                    return

    def flush(self, timeout: float = 30.0) -> None:
        """Wait until everything called before is durable (accepted, under persistence "none").

        Raises the first error that any event has ended with since the last `flush`; `ParamstreamTimeout` names what is left.
        """
        deadline = time.monotonic() + timeout
        with self.lock:
            core = self._usable()
            mark = next(reversed(core.outcomes.unfinished), 0)
            while core.outcomes.failed is None and next(iter(core.outcomes.unfinished), mark + 1) <= mark:
                if not self._wait(deadline):
                    raise ParamstreamTimeout(
                        f"producer {self.name!r} was not flushed within {timeout:.3g} s: {describe_leftover(core, self.directory)}"
                    )
                self._usable()
            failed = core.outcomes.take_failed()
        if failed is not None and failed.error is not None:
            raise named_error(failed, failed.error, self.directory)

    def close(self, timeout: float = 30.0) -> None:
        """Wait until everything is answered, then end the session. Closing it again does nothing.

        Returns within `timeout`. What then has no answer is given up: `OutcomeUnknown` names the sequences that were on
        the wire and those that were never sent.
        """
        deadline = time.monotonic() + timeout
        with self.lock:
            if self._closed:
                return
            self._closed = True
            core = self._core
            while core is not None and core.fenced is None and not core.answered:
                if not self._wait(deadline):
                    break
            self._over = True
            if core is None or core.fenced is not None or core.answered:
                return
            error = OutcomeUnknown(
                f"producer {self.name!r} was closed after {timeout:.3g} s: {describe_leftover(core, self.directory)}",
                remedy="Open the producer again: joining tells what stands",
            )
        with self._doing():
            self._run(core.give_up(error))
        raise error

    def end(self) -> None:
        """The link is closed for good, after `close`: what was accepted and is not known to be durable stays unknown."""
        with self._doing():
            if self._core is not None:
                error = OutcomeUnknown(
                    f"the client of producer {self.name!r} was closed before this was known to be durable",
                    remedy="Flush before you close",
                )
                self._run(self._core.end(error))

    # --- publishing ---------------------------------------------------------------------------------------------------------

    def publish(self, call: Call, drafts: Sequence[Draft], timeout: float) -> Receipt:
        """Send a call that is known whole, or queue it in its turn. Every value is copied before this returns.

        A full window blocks up to `timeout`, then raises `BackpressureTimeout`: nothing of the call was sent. A call larger
        than the window goes event by event; where that stalls, `ParamstreamTimeout` says what was accepted.
        """
        nbytes = sum(draft.nbytes for draft in drafts)
        if nbytes > self._window_bytes and len(drafts) > 1:
            return self._publish_in_turn(call, drafts, timeout)
        deadline = time.monotonic() + timeout
        with self._doing():
            core = self._usable()
            while not core.has_room(nbytes):
                if not self._wait(deadline):
                    raise self._full(timeout)
                core = self._usable()
            self._must_know(core, call.partitions)
            self._run(core.submit(call, drafts))
        return Receipt(self, call)

    def begin(self, call: Call) -> None:
        """Queue a call whose events come one by one with `add`; `finish` or `abandon` must follow."""
        with self._doing():
            core = self._usable()
            self._must_know(core, call.partitions)
            self._run(core.begin(call))

    def add(self, call: Call, draft: Draft, timeout: float) -> int:
        """Send the next event of an open call, once it is the call's turn and the window has room: its sequence.

        0 where the call has failed meanwhile. Raises `BackpressureTimeout` where nothing of the call was sent before, else
        `ParamstreamTimeout`; the call is abandoned then.
        """
        deadline = time.monotonic() + timeout
        with self._doing():
            core = self._usable()
            while not call.given_up and not core.its_turn(call, draft.nbytes):
                if not self._wait(deadline):
                    error = self._stalled(call, timeout)
                    self._run(core.abandon(call, error))
                    raise error
                core = self._usable()
            sequence, effects = core.add(call, draft)
            self._run(effects)
            return sequence

    def finish(self, call: Call) -> Receipt:
        with self._doing():
            self._run(self._live.finish(call))
        return Receipt(self, call)

    @contextmanager
    def streaming(self, call: Call) -> Generator[None]:
        """Whatever ends this block early ends the open call too: what it has sent stays, what is left is not sent."""
        whole = False
        try:
            yield
            whole = True
        finally:
            if not whole and call.open:
                error = ParamstreamError("the call ended early; what is left of it was not sent", version=call.version)
                with self._doing():
                    self._run(self._live.abandon(call, error))

    def already(self, partition: PartitionId, persistence: str, position: int, version: int) -> Receipt:
        """The receipt of a version that is sealed at `position` with the same digest."""
        with self._doing():
            call, effects = self._usable().already(partition, persistence, position, version)
            self._run(effects)
        return Receipt(self, call)

    def withdraw(self, call: Call) -> None:
        """End an open call of which nothing was sent, because there is nothing to send."""
        with self._doing():
            self._run(self._live.abandon(call, ParamstreamError("there was nothing to send", version=call.version)))

    def ask(self, question: Question, kind: Any, timeout: float) -> Any:
        """Ask the broker something that changes nothing, again where the connection went before the answer.

        Raises the broker's error, or `ParamstreamTimeout`.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self._link.request(question, kind, _left(deadline, f"the answer to {type(question).__name__}"))
            except (ConnectFailed, OutcomeUnknown):
                continue

    @property
    def records(self) -> bool:
        """What it observes is told with a token, where whoever is observed records too."""
        return self._recorder is not None

    def observe(self, vector: VersionVector[int], token: Token | None = None) -> None:
        with self.lock:
            self._usable().past.observe(vector)
            if self._recorder is not None and token is not None:
                self._recorder.observes(token, vector)

    def partition(self, partition: PartitionId, timeout: float = 30.0) -> PartitionState:
        """What the session knows of a partition; one that is new to it is joined first.

        Raises `UnknownTopic`, or `CorruptLog` for one that stands still because its log is damaged.
        """
        with self.lock:
            core = self._usable()
            if partition in core.partitions:
                return core.partitions[partition]
        self.join(timeout)
        with self.lock:
            self._must_know(core, (partition,))
            return core.partitions[partition]

    def partition_again(self, partition: PartitionId, timeout: float = 30.0) -> PartitionState:
        """`partition` with schema and tables asked for anew."""
        self.join(timeout)
        return self.partition(partition, timeout)

    def table(self, topic: TopicRecord, table: str, timeout: float = 30.0, *, takes_gradients: bool = False) -> Table:
        """The definition of one of the topic's tables; asked for anew where it is not known. Raises `UnknownTopic`; `InvalidEvent`
        where it `takes_gradients` and has no optimizer.
        """
        first = topic.id, 0

        def usable(known: Mapping[str, Table]) -> Table | None:
            found = known.get(table)
            return None if found is None or (found.optimizer is None and takes_gradients) else found

        found = usable(self.partition(first, timeout).tables) or usable(self.directory.tables(topic.id))
        known = self.partition_again(first, timeout).tables if found is None else {}
        found = found or usable(known)
        if found is not None:
            return found
        if table in known:
            raise InvalidEvent(
                "the table has no optimizer, and takes no gradients",
                topic=topic.name, item=table, remedy="Give it one with client.alter_table(..., optimizer=ps.SGD(lr))",
            )  # fmt: skip
        raise UnknownTopic(
            "the topic has no such table", topic=topic.name, item=table, remedy="Make it with client.create_table"
        )

    def wait_for_schema(self, partition: PartitionId, timeout: float = 30.0) -> None:
        """Wait while an own commit on the wire may still set the topic's schema, so that the next publish is checked by it."""
        core = self._live
        self._wait_until(lambda: not core.schema_in_flight(partition), "the answer to the commit before", timeout)

    def _wait_until(self, ready: Callable[[], bool], what: str, timeout: float) -> None:
        """Wait until `ready`, which is asked under the lock whenever an outcome has changed."""
        deadline = time.monotonic() + timeout
        with self.lock:
            while not ready():
                if not self._wait(deadline):
                    raise ParamstreamTimeout(f"{what} did not come within {timeout} s")
                self._usable()

    # --- the link's thread ----------------------------------------------------------------------------------------------------

    def connected(self, welcome: Welcome) -> None:
        """A new connection: join, and settle what the old one left open."""
        with self.lock:
            self._connections += 1
            self._window_bytes = welcome.window_bytes
            core = self._core
            if core is None:
                return
            core.window_bytes = welcome.window_bytes
        self._ask(fresh=True)

    def lost(self, error: ParamstreamError) -> None:
        """The connection is gone: what was on the wire is unknown."""
        with self._doing():
            self._connections += 1
            self._join_at = None
            if self._core is not None:
                self._run(self._core.disconnected())

    def answered(self, message: Ack | Refused) -> None:
        """Events of this session that are accepted, or one that was turned down."""
        with self._doing():
            if self._core is not None:
                self._run(self._acked(message) if isinstance(message, Ack) else self._refused(message))
        self.tick(time.monotonic())

    def deleted(self, topic: int) -> None:
        """The topic was deleted: everything of it that is not durable has its outcome, and nobody waits for it."""
        with self._doing():
            if self._core is not None:
                if self._recorder is not None:
                    self._recorder.begins_anew()
                self._run(self._core.forget_topic(topic))

    def heartbeat(self, message: Heartbeat) -> None:
        with self._doing():
            if self._core is not None:
                if self._recorder is not None:
                    self._recorder.durable(message.heads)
                self._run(self._core.heads(message))
        self.tick(time.monotonic())

    def tick(self, now: float) -> None:
        """Do again what could not be done: a join that failed, sends that found no room. `now`: time.monotonic()."""
        if self._core is not None and self._core.congested:
            with self._doing():
                self._run(self._core.retry())
        if self._join_at is not None and now >= self._join_at:
            self._join_at = None
            if self._core is not None:
                self._ask(fresh=not self._core.is_joined)

    # --- inside ---------------------------------------------------------------------------------------------------------------

    @contextmanager
    def _doing(self) -> Generator[None]:
        """Hold the lock; what users hang on futures runs after it is given back."""
        with self.lock:
            yield
        while self._listeners:
            try:
                listener = self._listeners.popleft()
            except IndexError:
                return
            listener()

    def _run(self, effects: Iterable[Effect]) -> None:
        core = self._live
        full = False
        for effect in effects:
            match effect:
                case Send(event, frame):
                    # Behind one that could not be sent nothing is tried: the order within a partition would be broken.
                    full = full or not self._leaves(event, frame)
                    if full:
                        core.unsent(event)
                case Dropped(event):
                    if self._recorder is not None:
                        self._recorder.dropped(event)
                case Settled(call):
                    if call.listener is not None:
                        self._listeners.append(call.listener)
                case JoinAgain():
                    self._join_at = 0.0
                case FencedOut():
                    self._join_at = None
        if self._waiting:
            self._changed.notify_all()

    def _leaves(self, event: Event, frame: Buffer) -> bool:
        """False where it could not be sent, or not be recorded before that."""
        return (self._recorder is None or self._recorder.sends(event)) and self._link.send(frame)

    def _acked(self, message: Ack) -> list[Effect]:
        if self._recorder is not None:
            self._recorder.accepted((message.topic, message.partition), message.answers)
        return self._live.acked(message)

    def _refused(self, message: Refused) -> list[Effect]:
        core = self._live
        observed = core.past.observed
        effects = core.refused(message)
        if self._recorder is not None and not observed <= core.past.observed:
            self._recorder.begins_anew()
        return effects

    def _ask(self, *, fresh: bool) -> None:
        """Join; a session that is closed or fenced only asks what became of its accepted events."""
        if self._over or self._live.fenced is not None:
            self._ask_what_stands()
        else:
            self._ask_to_join(fresh=fresh)

    def _ask_what_stands(self) -> None:
        with self.lock:
            topics = self._live.unsettled_topics()
        for topic in topics:
            self._ask_about(topic)

    def _ask_about(self, topic: int) -> None:
        def done(found: list[PartitionRecord] | None, error: ParamstreamError | None) -> None:
            with self._doing():
                core = self._live
                if found is not None:
                    if self._recorder is not None:
                        self._recorder.stand(found)
                    self._run(core.stand(found))
                elif isinstance(error, UnknownTopic):
                    self._run(core.forget_topic(topic))
                if core.unsettled_topics():
                    self._join_at = time.monotonic() + JOIN_RETRY_S

        self._link.request_async(DescribePartitions(topic), list[PartitionRecord], done)

    def _ask_to_join(self, *, fresh: bool) -> None:
        """Runs in the link's thread, and so does the answer."""
        with self.lock:
            core, connection = self._live, self._connections
            join = Join(self.name, core.incarnation, core.unconfirmed())

        def done(answer: Joined | None, error: ParamstreamError | None) -> None:
            with self._doing():
                if connection != self._connections:
                    return
                if answer is not None:
                    self.directory.learn_tables(answer.partitions)
                    if self._recorder is not None:
                        self._recorder.stand(answer.partitions)
                    self._run(core.joined(answer, fresh=fresh))
                elif isinstance(error, Fenced):
                    self._run(core.fence(error, fresh=fresh))
                else:
                    self._join_at = time.monotonic() + JOIN_RETRY_S

        self._link.request_async(join, Joined, done)

    @property
    def _live(self) -> SessionCore:
        assert self._core is not None, "open() comes first"
        return self._core

    def _usable(self) -> SessionCore:
        core = self._live
        if core.fenced is not None:
            # A new object for each caller: threads would share one's traceback.
            raise Fenced(core.fenced.problem, remedy=core.fenced.remedy)
        if self._closed:
            raise ParamstreamError(f"producer {self.name!r} is closed", remedy="Open a new publisher")
        if self._recorder is not None and self._recorder.error is not None:
            raise StorageFull(f"the history takes nothing, so nothing is sent: {self._recorder.error}")
        return core

    def _must_know(self, core: SessionCore, partitions: Iterable[PartitionId]) -> None:
        for partition in partitions:
            stopped = core.stopped.get(partition)
            if partition not in core.partitions or stopped is not None:
                topic = self.directory.name_of(partition[0])
                if stopped is not None:
                    error = stopped.raised()
                    error.topic = error.topic or topic
                    raise error
                raise UnknownTopic(
                    "no broker has this partition",
                    topic=topic,
                    partition=partition[1],
                    remedy="Where its topic was deleted, create it again, and open a new publisher",
                )

    def _wait(self, deadline: float) -> bool:
        """Give the lock back until something changes; False once the deadline has passed."""
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        self._waiting += 1
        try:
            self._changed.wait(bounded(left))
        finally:
            self._waiting -= 1
        return True

    def _full(self, timeout: float) -> BackpressureTimeout:
        return BackpressureTimeout(
            f"the window of {self._window_bytes} bytes of producer {self.name!r} stayed full for {timeout} s",
            remedy="Nothing of this call was sent; publish it again, or publish less",
        )

    def _stalled(self, call: Call, timeout: float) -> ParamstreamTimeout:
        if not (call.started or call.unsettled or call.positions):
            return BackpressureTimeout(
                f"earlier events of producer {self.name!r} in other partitions were not accepted for {timeout} s",
                remedy="Nothing of this call was sent: it may only depend on what is accepted; publish it again",
            )
        if not (call.unsettled or call.positions):
            return self._full(timeout)
        accepted = self.directory.to_names(VersionVector(call.positions))
        return ParamstreamTimeout(
            f"producer {self.name!r} got no room for the next event of a call for {timeout} s",
            remedy="A version counts for nothing before its commit; of other calls a part is accepted",
            version=call.version,
            accepted=accepted,
        )

    def _publish_in_turn(self, call: Call, drafts: Sequence[Draft], timeout: float) -> Receipt:
        self.begin(call)
        for draft in drafts:
            self.add(call, draft, timeout)
        return self.finish(call)


def _left(deadline: float, what: str) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise ParamstreamTimeout(f"{what} was not done in time")
    return left
