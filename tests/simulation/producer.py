"""A producer of the simulation: the real session core, and the little that its shell adds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar, cast

from paramstream.consistency.vector import PartitionId
from paramstream.errors import Fenced
from paramstream.events.kinds import Delete, Put, PutItem, ValidFor
from paramstream.events.recording import HistoryFile
from paramstream.producers.calls import Call, Draft
from paramstream.producers.effects import Dropped, Effect, FencedOut, JoinAgain, Send, Settled
from paramstream.producers.recording import SessionRecorder
from paramstream.producers.session_core import SessionCore
from paramstream.transport.calls import (
    DescribePartitions,
    Join,
    Joined,
    OpenProducer,
    PartitionRecord,
)
from paramstream.transport.messages import Ack, Heartbeat, Refused

from .network import Asked, Connection, Item, Told
from .recorded import History
from .rows import RowHow, row_draft
from .seen import Seen
from .topics import SimTopic
from .versions import after, new_call, publishing
from .writes import Part, Write, name_of_delete, value_of, version_of

K = TypeVar("K", bytes, int)

WINDOW_BYTES = 4_000
"""Small, so that calls wait for it."""

TTL_NS = 2_000_000_000

How = Literal["put", "with a deadline", "for a version", "twice", "delete"]
"""What is done to a key. "twice": one event writes it, and then once more with a deadline."""


def draft_of(partition: PartitionId, key: bytes, write: Write, how: How) -> Draft:
    """An event that can be known by its write."""
    if how == "delete":
        return Draft.of(partition, Delete((key, name_of_delete(write, partition))), (), len(key) + 40)
    value = value_of(write)
    plain, ends = PutItem(key, len(value)), PutItem(key, len(value), TTL_NS)
    items = {
        "put": (plain,),
        "with a deadline": (ends,),
        "for a version": (PutItem(key, len(value), None, ValidFor(write[2] + 1, write[2])),),
        "twice": (plain, ends),
    }[how]
    return Draft.of(partition, Put(items), (value,) * len(items), (len(key) + 16) * len(items))


@dataclass
class Made:
    """A call as its user sees it."""

    write: Write
    call: Call
    keys: Collection[PartitionId]
    """Where it goes."""
    reads: frozenset[Part]
    """What its writer had read before."""
    outcomes: list[str] = field(default_factory=list[str])


class SimProducer:
    """One process under a producer name. A crash forgets its session; the next one has the next incarnation."""

    def __init__(
        self, name: str, open_name: Callable[[str], int], note: Callable[[str], None], history: History,
        topics: Collection[SimTopic],
    ) -> None:  # fmt: skip
        """`open_name` gives the next incarnation; 0 where the session asks for one over its connection. `note` is told of outcomes."""
        self.name = name
        self._note = note
        self._open_name = open_name
        self._history = cast("HistoryFile", history)
        self._name_of = {topic.id: topic.name for topic in topics}.get
        self._recorder: SessionRecorder
        """Of the present session."""
        self.core: SessionCore | None = None
        self.incarnation = 0
        self.connection: Connection | None = None
        self.made: list[Made] = []
        self.live: list[Made] = []
        """Calls of the present session."""
        self.fenced = False
        self.pipe_is_full = False
        self._stream: tuple[Call, Generator[Draft, int, None], Draft] | None = None
        """A publish under way, its events to come, and the next one."""
        self._by_call: dict[int, Made] = {}
        self._join_wanted = False
        self._opens = False
        """It has asked for an incarnation, and knows of none."""
        self.left_opening = False
        """A process of the name died so. What it asked for may come late, and then its successor is the older one."""
        self.joins: list[tuple[int, dict[PartitionId, int]]] = []
        """(incarnation, partition → epoch joined) of every join that was answered."""

    @property
    def is_running(self) -> bool:
        """One that crashed is started at once."""
        return True

    # --- the connection ---------------------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        self.connection = connection
        self._join_wanted = False
        if self.core is None:
            self.incarnation = self._open_name(self.name)
        self._ask()

    def lost(self) -> None:
        self.connection = None
        self._join_wanted = False
        if self.core is not None:
            self._do(self.core.disconnected())

    def received(self, item: Item) -> None:
        core = self.core
        match item:
            case Told(call=Join() as join, answer=Joined() as joined):
                self._joined(join, joined)
            case Told(call=OpenProducer(), answer=int() as incarnation):
                if core is None:
                    self._opens = False
                    self.incarnation = incarnation
                    self._ask()
            case Told(call=DescribePartitions(), answer=list()) if core is not None:
                found = cast("list[PartitionRecord]", item.answer)
                self._recorder.stand(found)
                self._do(core.stand(found))
            case Told(answer="Fenced" | Fenced()) if core is None:
                self.fenced = True
            case Told(answer="Fenced" | Fenced()):
                assert core is not None
                self._do(core.fence(Fenced("a newer session"), fresh=not core.is_joined))
            case Told():
                self._join_wanted = True
            case Ack() if core is not None:
                self._recorder.accepted((item.topic, item.partition), item.answers)
                self._do(core.acked(item))
            case Refused() if core is not None:
                observed = core.past.observed
                effects = core.refused(item)
                if not observed <= core.past.observed:
                    self._recorder.begins_anew()
                self._do(effects)
            case Heartbeat() if core is not None:
                self._recorder.durable(item.heads)
                self._do(core.heads(item))
            case _:
                pass

    def tick(self) -> None:
        core = self.core
        if core is not None:
            if core.congested and not self.pipe_is_full:
                self._do(core.retry())
            self._go_on()
        if self.fenced:
            self._ask_what_stands()
        elif self._join_wanted and self.connection is not None:
            self._join_wanted = False
            self._ask()

    def crash(self) -> None:
        """The process ends, and what it had not sent with it."""
        self.left_opening, self._opens = self.left_opening or self._opens, False
        self.core = None
        self.fenced = False
        self.live = []
        self._stream = None
        self._join_wanted = False

    # --- calls --------------------------------------------------------------------------------------------------------------

    def can_call(self, nbytes: int = 400) -> bool:
        return self.core is not None and not self.fenced and self.core.has_room(nbytes)

    def put(self, topic: SimTopic, keys: Mapping[PartitionId, bytes], seen: Seen, how: How = "put") -> None:
        """One event in each partition of `keys`."""
        self._submit(topic, keys, seen, lambda partition, key, write: draft_of(partition, key, write, how))

    def change_rows(self, topic: SimTopic, keys: Mapping[PartitionId, int], seen: Seen, how: RowHow) -> None:
        """One event in each partition of `keys`."""
        self._submit(topic, keys, seen, lambda partition, key, write: row_draft(partition, key, write, how))

    def publish(self, topic: SimTopic, count: int, seen: Seen) -> None:
        """A whole version, whose number goes up with `count`; its events go as their turn comes."""
        core = self.core
        if core is None or self._stream is not None or topic.weights not in core.partitions:
            return
        self._observe(core, seen)
        version = version_of(count, (self.name, self.incarnation, len(self.made)))
        call = new_call(topic, version)
        self._made(call, [topic.weights], seen.parts)
        events = publishing(topic, version, self.name, self.incarnation)
        self._stream = call, events, next(events)
        self._do(core.begin(call))
        self._go_on()

    def _submit(
        self,
        topic: SimTopic,
        keys: Mapping[PartitionId, K],
        seen: Seen,
        draft: Callable[[PartitionId, K, Write], Draft],
    ) -> None:
        core = self.core
        assert core is not None
        if not core.partitions.keys() >= keys.keys():
            return  # A partition has stopped: the call raises at once.
        self._observe(core, seen)
        call = Call(tuple(keys), topic.persistence)
        write = self._made(call, keys, seen.parts)
        self._do(core.submit(call, [draft(partition, key, write) for partition, key in keys.items()]))

    def _go_on(self) -> None:
        core = self.core
        while core is not None and self._stream is not None:
            call, events, draft = self._stream
            if not call.given_up and not core.its_turn(call, draft.nbytes):
                return
            sequence, effects = core.add(call, draft)
            self._do(effects)
            following = after(events, sequence) if sequence else None
            if following is not None:
                self._stream = call, events, following
            else:
                self._stream = None
                self._do(core.finish(call))

    def _observe(self, core: SessionCore, seen: Seen) -> None:
        core.past.observe(seen.vector)
        if seen.token is not None:
            self._recorder.observes(seen.token, seen.vector)

    def _made(self, call: Call, keys: Collection[PartitionId], reads: Collection[Part]) -> Write:
        write = self.name, self.incarnation, len(self.made)
        made = Made(write, call, tuple(keys), frozenset(reads))
        self.made.append(made)
        self.live.append(made)
        self._by_call[id(call)] = made
        return write

    def _joined(self, join: Join, joined: Joined) -> None:
        if join.incarnation != self.incarnation:
            return
        if self.core is None and joined.stopped:
            return  # Nobody can tell what the name has written there: its user opens it again once all is well.
        self.joins.append((join.incarnation, {(each.topic, each.partition): each.epoch for each in joined.partitions}))
        if self.core is None:
            self.core = SessionCore(self.name, self.incarnation, WINDOW_BYTES)
            self._recorder = SessionRecorder(self._history, self.name, self.incarnation, self._name_of)
        self._recorder.stand(joined.partitions)
        self._do(self.core.joined(joined, fresh=not self.core.is_joined))

    def _ask(self) -> None:
        """For an incarnation, where the session has none yet; then to join."""
        assert self.connection is not None
        if self.fenced:
            self._ask_what_stands()
            return
        if not self.incarnation:
            self._opens = True
            self.connection.send(Asked(OpenProducer(self.name)))
            return
        unconfirmed = self.core.unconfirmed() if self.core is not None else ()
        self.connection.send(Asked(Join(self.name, self.incarnation, unconfirmed)))

    def _ask_what_stands(self) -> None:
        """Of what was accepted before it was fenced."""
        if self.core is not None and self.connection is not None:
            for topic in sorted(self.core.unsettled_topics()):
                self.connection.send(Asked(DescribePartitions(topic)))

    def _do(self, effects: list[Effect]) -> None:
        core = self.core
        assert core is not None
        full = self.pipe_is_full
        for effect in effects:
            match effect:
                case Send(event, frame):
                    connection = self.connection
                    full = full or connection is None or not self._recorder.sends(event) or not connection.send(frame)
                    if full:
                        core.unsent(event)
                case Dropped(event):
                    self._recorder.dropped(event)
                case Settled(call):
                    made = self._by_call.get(id(call))
                    if made is not None:
                        made.outcomes.append(call.outcome())
                        self._note(f"{made.write} is {made.outcomes[-1]}")
                case JoinAgain():
                    self._join_wanted = True
                case FencedOut():
                    self.fenced = True
