"""The producer session as a pure state machine: calls, acks, refusals and joins in; sends and settled outcomes out.

The rules it keeps:

- Rule 1: a call that goes to partition q waits for the acks of unacknowledged events in other partitions, and later calls
  wait behind it in the order they were made. Only the parts of one call go side by side, and only when nothing else is
  unacknowledged. Within one partition everything is pipelined.
- Every event names the epoch joined, the session's event before it in the partition, and up to where there are answers.
- A sequence is never given twice. What is sent again by itself keeps its sequence; new events go above every one given.
- After a join every event without an answer is settled: it stands, or goes again, or is lost.

No clock, socket, thread or random call is in here. Encoding a frame is arithmetic, so the core does it: an event's head can
only be written when its turn has come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..consistency.epochs import EpochEnds
from ..consistency.position import epoch_of, show
from ..consistency.vector import EMPTY, PartitionId, VersionVector
from ..errors import EventLost, Fenced, InvalidEvent, ParamstreamError, UnknownTopic
from ..events.codec import Head, decode_vector, encode_event, encode_vector
from ..events.kinds import Commit, Put, PutItem
from ..events.limits import MAX_CHUNK_BYTES
from ..transport.messages import Ack, Heartbeat, Joined, JoinedPartition, Refused, SealedVersion, Unconfirmed
from .calls import Call, Draft, Event
from .partition_state import PartitionState

PUTS_BEFORE_JOINING = 16
"""While fewer events are in flight a put goes out at once on its own; from there on queued puts share events."""


@dataclass(frozen=True, slots=True)
class Send:
    """Put `frame` on the wire; if nothing could be sent, tell the core `unsent(event)`."""

    event: Event
    frame: bytearray


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome of `call` has changed."""

    call: Call


@dataclass(frozen=True, slots=True)
class JoinAgain:
    """Ask for a join, naming `SessionCore.unconfirmed()`."""


@dataclass(frozen=True, slots=True)
class FencedOut:
    """A newer session of the name is served. Nothing is sent any more."""

    error: Fenced


Effect = Send | Settled | JoinAgain | FencedOut


class SessionCore:
    """One incarnation of a producer name, over all its partitions."""

    def __init__(self, producer: str, incarnation: int, window_bytes: int) -> None:
        self.producer = producer
        self.incarnation = incarnation
        self.window_bytes = window_bytes
        self.partitions: dict[PartitionId, PartitionState] = {}
        self.fenced: Fenced | None = None
        self.flight_bytes = 0
        """Bytes of events that are not answered: at most the window, but for one event at a time."""
        self.queued_bytes = 0
        """Bytes of drafts whose turn has not come."""
        self.unfinished: dict[int, Call] = {}
        """Calls that are not final, by serial, oldest first."""
        self.failure: ParamstreamError | None = None
        """The first error since somebody took it (`take_failure`)."""
        self._serial = 0
        self._calls: deque[Call] = deque()
        self._busy: set[PartitionId] = set()
        self._joined = False
        """A join of this connection is answered: events may go."""
        self._joining = False
        self._own: dict[PartitionId, int] = {}
        self._observed: VersionVector[int] = EMPTY
        self._observed_bytes = b""
        self._own_cache: dict[PartitionId, tuple[VersionVector[int], bytes]] = {}
        self._effects: list[Effect] = []

    @property
    def is_joined(self) -> bool:
        """A join of the present connection is answered."""
        return self._joined

    @property
    def answered(self) -> bool:
        """Nothing waits for its turn or for an answer."""
        return not self._busy and not self._calls

    @property
    def waiting_calls(self) -> int:
        """Calls with events that have no sequence yet."""
        return sum(1 for call in self._calls if call.drafts)

    # --- calls ----------------------------------------------------------------------------------------------------------

    def has_room(self, nbytes: int) -> bool:
        """A whole call of `nbytes` may be submitted: with all that is held it is within the window, or nothing is held."""
        held = self.flight_bytes + self.queued_bytes
        return held + nbytes <= self.window_bytes or not held

    def submit(self, call: Call, drafts: Iterable[Draft]) -> list[Effect]:
        """A call that is known whole takes its place in the queue. What does not go out at once is copied."""
        self._queue(call)
        for draft in drafts:
            self._take_draft(call, draft)
        return self.finish(call)

    def begin(self, call: Call) -> list[Effect]:
        """A call whose events come one by one (`add`) takes its place in the queue; later calls wait behind it."""
        self._queue(call)
        return self._pump()

    def its_turn(self, call: Call, nbytes: int) -> bool:
        """An event of `nbytes`, added to the open `call` now, gets its sequence at once."""
        at_head = bool(self._calls) and self._calls[0] is call and not call.drafts
        return at_head and (call.started or self._may_start(call)) and self._fits(nbytes)

    def add(self, call: Call, draft: Draft) -> tuple[int, list[Effect]]:
        """The next event of an open call whose turn it is: (its sequence, effects). (0, …) where the call has failed."""
        if call.given_up:
            return 0, self._take()
        self._take_draft(call, draft)
        effects = self._pump()
        assert not call.drafts, "add() is for a call whose turn it is"
        return self.partitions[draft.partition].next_sequence - 1, effects

    def finish(self, call: Call) -> list[Effect]:
        """No more events come for `call`."""
        call.open = False
        self._review(call)
        return self._pump()

    def abandon(self, call: Call, error: ParamstreamError) -> list[Effect]:
        """The caller of an open call gives up: what it has not sent is dropped, and it fails with `error`."""
        if call.error is None:
            call.error = error
        call.whole = True
        self._drop_drafts(call)
        return self.finish(call)

    def already(
        self, partition: PartitionId, persistence: str, position: int, version: int
    ) -> tuple[Call, list[Effect]]:
        """A call that was accepted before it was made: the same version with the same digest is sealed at `position`."""
        call = Call((partition,), persistence, version=version)
        self._register(call)
        call.unsettled, call.started, call.open = 1, True, False
        self._stands(self.partitions[partition], call, position)
        return call, self._take()

    def observe(self, vector: VersionVector[int]) -> None:
        """Later events depend on `vector`, which is closed."""
        if not vector <= self._observed:
            self._observed = self._observed.merge(vector)
            self._observed_bytes = encode_vector(self._observed)

    def take_failure(self) -> ParamstreamError | None:
        """The first error since the last look, if there was one."""
        failure, self.failure = self.failure, None
        return failure

    def schema_in_flight(self, partition: PartitionId) -> bool:
        """A commit without an answer may set the topic's schema."""
        known = self.partitions.get(partition)
        return known is not None and any(
            isinstance(event.payload, Commit) and (known.schema is None or event.payload.schema == "replace")
            for event in known.flight.values()
        )

    # --- the connection ---------------------------------------------------------------------------------------------------

    def disconnected(self) -> list[Effect]:
        """The connection is gone: what was on the wire is unknown until the next join."""
        self._joined = self._joining = False
        for partition in self.partitions.values():
            for event in partition.unanswered():
                for call in event.calls:
                    call.unknown = True
        return self._take()

    def unsent(self, event: Event) -> list[Effect]:
        """`Send` found no connection. The event goes with the next join."""
        event.sends -= 1
        self._joined = False
        return self._take()

    def unconfirmed(self) -> tuple[Unconfirmed, ...]:
        """What was on the wire and has no answer: what a join asks about."""
        found: list[Unconfirmed] = []
        for (topic, number), partition in self.partitions.items():
            sequences = tuple(event.sequence for event in partition.flight.values() if event.sends)
            if sequences:
                found.append(Unconfirmed(topic, number, partition.epoch, sequences))
        return tuple(found)

    def joined(self, answer: Joined, *, fresh: bool) -> list[Effect]:
        """A join's answer. `fresh`: over a new connection, so no answer of an older one is taken any more."""
        self._joining = False
        if fresh:
            self._joined = True
        for record in answer.partitions:
            self._join(record, fresh)
        if fresh:
            named = {(record.topic, record.partition) for record in answer.partitions}
            for missing in [known for known in self.partitions if known not in named]:
                self._forget(missing)
        for partition in self.partitions.values():
            if partition.stale:
                self._join_again_if_drained()
        return self._pump()

    def refresh(self, answer: Joined) -> list[Effect]:
        """A second join's answer in the midst: new partitions, and schema and tables anew; nothing in flight changes."""
        for record in answer.partitions:
            known = self.partitions.get((record.topic, record.partition))
            if known is None:
                self._join(record, fresh=True)
            elif known.epoch == record.epoch:
                known.learn(record)
        return self._pump()

    def fence(self, error: Fenced) -> list[Effect]:
        """A newer session of this name is served: everything without an answer fails."""
        self.fenced = error
        effects = self.give_up(error)
        return [*effects, FencedOut(error)]

    def give_up(self, error: ParamstreamError) -> list[Effect]:
        """Nothing is sent any more, and everything without an answer fails with `error`."""
        self._joined = False
        self._calls.clear()
        for partition in self.partitions.values():
            partition.flight.clear()
        self._busy.clear()
        self.flight_bytes = self.queued_bytes = 0
        for call in list(self.unfinished.values()):
            if not call.accepted:
                call.whole, call.open = True, False
                call.drafts.clear()
                self._fail(call, error)
        return self._take()

    # --- answers --------------------------------------------------------------------------------------------------------------

    def acked(self, message: Ack) -> list[Effect]:
        """Events that are accepted."""
        partition = self.partitions.get((message.topic, message.partition))
        if partition is None or message.incarnation != self.incarnation:
            return self._take()
        for sequence, position in message.answers:
            event = partition.flight.get(sequence)
            if event is not None:
                self._accept(partition, event, position)
        self._join_again_if_drained()
        return self._pump()

    def refused(self, message: Refused) -> list[Effect]:
        """An event that was turned down; what was pipelined behind it is refused as a gap and goes again."""
        partition = self.partitions.get((message.topic, message.partition))
        event = partition.flight.get(message.sequence) if partition is not None else None
        if partition is None or event is None or message.incarnation != self.incarnation:
            return self._take()
        error = message.error.raised()
        if isinstance(error, Fenced):
            return self.fence(error)
        if message.rejoin:
            event.refused = partition.stale = True
        elif message.gap:
            self._go_again(partition, event, message.last_sequence)
        else:
            self._answered(partition, event)
            if message.position:
                for call in event.calls:
                    self._stands(partition, call, message.position)
            else:
                self._turn_down(event, error)
        self._join_again_if_drained()
        return self._pump()

    def heads(self, message: Heartbeat) -> list[Effect]:
        """Durable heads make accepted events durable; a head of a later epoch means that the session joins again."""
        for head in message.heads:
            partition = self.partitions.get((head.topic, head.partition))
            if partition is None or not self._joined:
                continue
            if epoch_of(head.accepted) > partition.epoch:
                partition.stale = True
            elif epoch_of(head.durable) == partition.epoch and head.durable > partition.durable:
                for call in partition.take_durable(head.durable):
                    self._durable(call)
        self._join_again_if_drained()
        return self._take()

    # --- the queue ------------------------------------------------------------------------------------------------------------

    def _register(self, call: Call) -> None:
        self._serial += 1
        call.serial = self._serial
        self.unfinished[call.serial] = call

    def _queue(self, call: Call) -> None:
        self._register(call)
        self._calls.append(call)

    def _take_draft(self, call: Call, draft: Draft) -> None:
        call.drafts.append(draft)
        call.unsettled += 1
        self.queued_bytes += draft.nbytes

    def _may_start(self, call: Call) -> bool:
        if len(call.partitions) == 1:
            return not self._busy or (len(self._busy) == 1 and call.partitions[0] in self._busy)
        return not self._busy

    def _fits(self, nbytes: int) -> bool:
        return self.flight_bytes + nbytes <= self.window_bytes or not self.flight_bytes

    def _pump(self) -> list[Effect]:
        """Let go what rule 1 and the window allow, in the order of the calls; copy what stays and is not ours yet."""
        while self._calls:
            call = self._calls[0]
            if not call.started and not self._may_start(call):
                break
            call.started = True
            if call.joinable:
                if not self._put_may_go(call.drafts[0]):
                    break
                self._dispatch(self._joined_puts())
                continue
            while call.drafts and self._fits(call.drafts[0].nbytes):
                self._dispatch([call])
            if call.drafts or call.open:
                break
            self._calls.popleft()
        if self._calls:
            for draft in self._calls[-1].drafts:
                draft.keep()
        return self._take()

    def _put_may_go(self, draft: Draft) -> bool:
        # While nothing can be sent there is nothing to wait for: every put gets its sequence.
        flight = len(self.partitions[draft.partition].flight)
        return self._fits(draft.nbytes) and (flight < PUTS_BEFORE_JOINING or not self._joined)

    def _joined_puts(self) -> list[Call]:
        """The put at the head of the queue, and those behind it that share its event."""
        group = [self._calls.popleft()]
        first = group[0].drafts[0]
        nbytes = first.nbytes
        while self._joined and self._calls:
            call = self._calls[0]
            if not call.joinable or call.partitions != group[0].partitions or call.drafts[0].source != first.source:
                break
            nbytes += call.drafts[0].nbytes
            if nbytes > MAX_CHUNK_BYTES or not self._fits(nbytes):
                break
            group.append(self._calls.popleft())
        return group

    def _dispatch(self, calls: list[Call]) -> None:
        """Give the next draft of these calls its sequence and send it."""
        drafts = [call.drafts.popleft() for call in calls]
        self.queued_bytes -= sum(draft.nbytes for draft in drafts)
        draft = drafts[0] if len(drafts) == 1 else _one_put(drafts)
        partition = self.partitions[draft.partition]
        event = Event(partition.next_sequence, draft, calls)
        previous = partition.newest
        partition.next_sequence += 1
        partition.flight[event.sequence] = event
        self._busy.add(partition.id)
        self.flight_bytes += event.nbytes
        self._transmit(partition, event, previous)

    def _transmit(self, partition: PartitionState, event: Event, previous: int) -> None:
        """Encode the event for the epoch joined and send it; while that is not possible, keep a copy of its bytes."""
        if not self._joined or partition.stale:
            event.keep()
            return
        own, own_bytes = self._own_beside(partition.id)
        for call in event.calls:
            call.own, call.observed = own, self._observed
        head = Head(
            producer=self.producer,
            incarnation=self.incarnation,
            sequence=event.sequence,
            previous=previous,
            joined_epoch=partition.epoch,
            confirmed=partition.confirmed,
            own=own_bytes,
            observed=self._observed_bytes,
            source=event.source,
        )
        try:
            frame = encode_event(partition.id, head, event.payload, event.bulk)
        except InvalidEvent as error:
            self._answered(partition, event)
            self._turn_down(event, error)
            return
        bulk_nbytes = sum(len(piece) for piece in event.bulk)
        event.bulk, event.owned = (memoryview(frame)[len(frame) - bulk_nbytes :],), True
        event.sends += 1
        event.refused = False
        self._effects.append(Send(event, frame))

    def _own_beside(self, partition: PartitionId) -> tuple[VersionVector[int], bytes]:
        """The own vector of an event in `partition`: its own partition is in order anyway, and is left out.

        So it stays the same, and is encoded once, while events are pipelined within one partition.
        """
        cached = self._own_cache.get(partition)
        if cached is None:
            vector = VersionVector({other: at for other, at in self._own.items() if other != partition})
            cached = self._own_cache[partition] = vector, encode_vector(vector)
        return cached

    def _wrote(self, partition: PartitionId, position: int) -> None:
        if position:
            self._own[partition] = position
        else:
            self._own.pop(partition, None)
        kept = self._own_cache.get(partition)
        self._own_cache = {partition: kept} if kept is not None else {}

    # --- joins ----------------------------------------------------------------------------------------------------------------

    def _join(self, record: JoinedPartition, fresh: bool) -> None:
        key = record.topic, record.partition
        partition = self.partitions.get(key)
        if partition is None:
            partition = self.partitions[key] = PartitionState(key)
            self._take_up(key, record)
            fresh = True
        same = partition.epoch == record.epoch
        partition.learn(record)
        if not fresh and same:
            partition.stale = False
            self._send_waiting(partition)
            return
        if not fresh and any(partition.unanswered()):
            partition.stale = True
            return
        self._settle_flight(partition, record)
        partition.epoch, partition.stale = record.epoch, False
        partition.last = record.last_sequence
        partition.next_sequence = max(partition.next_sequence, record.last_sequence + 1)
        self._settle_accepted(partition, record)
        self._send_waiting(partition, everything=True)

    def _send_waiting(self, partition: PartitionState, everything: bool = False) -> None:
        """Send what waits in flight: never sent or refused for its epoch; `everything` where the connection is new."""
        previous = partition.last
        for event in list(partition.flight.values()):
            if everything or event.refused or not event.sends:
                self._transmit(partition, event, previous)
            previous = event.sequence

    def _take_up(self, partition: PartitionId, record: JoinedPartition) -> None:
        """What the name wrote here before, under whatever incarnation, is this session's own past."""
        last = record.last
        if last is None:
            return
        for key, at in [*decode_vector(last.own).items(), (partition, last.position)]:
            if at > self._own.get(key, 0):
                self._wrote(key, at)
        self.observe(decode_vector(last.observed))

    def _settle_flight(self, partition: PartitionState, record: JoinedPartition) -> None:
        """Every event without an answer: it stands, or it stays in flight to go again, or it is lost."""
        positions = dict(record.positions)
        same = partition.epoch == record.epoch
        for event in list(partition.flight.values()):
            position = positions.get(event.sequence)
            seen = event.sends > 1 or (event.sends == 1 and not event.refused)
            if position is not None:
                self._accept(partition, event, position)
            elif event.given_up:
                self._answered(partition, event)
            elif seen and not same and not record.resend:
                self._answered(partition, event)
                problem = (
                    f"event {event.sequence} of producer {self.producer!r} was sent, and its epoch ended without it"
                )
                self._turn_down(event, _lost(problem, partition.id, event))
            else:
                if not same:
                    # An older copy on the wire names an epoch that is over. In the same one it may still arrive.
                    event.sends = 0
                for call in event.calls:
                    call.unknown = False

    def _settle_accepted(self, partition: PartitionState, record: JoinedPartition) -> None:
        ends = EpochEnds(record.ends)
        durable, lost = partition.take_ended(ends, record.epoch)
        for call in durable:
            self._durable(call)
        for position, call in lost:
            problem = f"the event of producer {self.producer!r} at {show(position)} was accepted, and its epoch ended below it"
            self._lose(call, EventLost(problem, partition=partition.id[1], position=position, version=call.version))
        for call in partition.take_durable(record.durable):
            self._durable(call)
        own = self._own.get(partition.id, 0)
        if ends.is_lost(own):
            # Nobody can wait for what is lost; the session's past here ends where the log's does.
            self._wrote(partition.id, max((end for _, end in record.ends if end < own), default=0))

    def _forget(self, key: PartitionId) -> None:
        """The partition's topic is gone."""
        partition = self.partitions.pop(key)
        error = UnknownTopic("the topic was deleted", partition=key[1])
        for event in list(partition.flight.values()):
            self._answered(partition, event)
            self._turn_down(event, error)
        for _, _, call in partition.awaiting:
            self._lose(call, error)
        for call in [call for call in self._calls if key in call.partitions]:
            self._fail(call, error)
            call.whole = True
            self._drop_drafts(call)
        self._own.pop(key, None)
        self._own_cache.clear()

    def _join_again_if_drained(self) -> None:
        """Join again once this connection owes no answer for any stale partition: an event may not be on the wire twice."""
        if not self._joined or self._joining:
            return
        stale = [partition for partition in self.partitions.values() if partition.stale]
        if stale and not any(any(partition.unanswered()) for partition in stale):
            self._joining = True
            self._effects.append(JoinAgain())

    # --- outcomes -------------------------------------------------------------------------------------------------------------

    def _go_again(self, partition: PartitionState, event: Event, last_sequence: int) -> None:
        if event.given_up:
            self._answered(partition, event)
            return
        partition.last = last_sequence
        event.sends = 0
        self._transmit(partition, event, partition.before(event.sequence))

    def _answered(self, partition: PartitionState, event: Event) -> None:
        """The event is no longer in flight."""
        del partition.flight[event.sequence]
        self.flight_bytes -= event.nbytes
        if not partition.flight:
            self._busy.discard(partition.id)

    def _accept(self, partition: PartitionState, event: Event, position: int) -> None:
        self._answered(partition, event)
        partition.last = max(partition.last, event.sequence)
        if isinstance(event.payload, Commit):
            _seal(partition, event.payload, event.calls[0], position)
        for call in event.calls:
            self._stands(partition, call, position)

    def _stands(self, partition: PartitionState, call: Call, position: int) -> None:
        """An event of `call` is accepted at `position`."""
        if position > self._own.get(partition.id, 0):
            self._wrote(partition.id, position)
        call.unsettled -= 1
        if position > call.positions.get(partition.id, 0):
            call.positions[partition.id] = position
        ended = epoch_of(position) < partition.epoch
        passed = epoch_of(position) == epoch_of(partition.durable) and position <= partition.durable
        if call.persistence == "write_back" and not passed and not ended:
            call.awaiting += 1
            partition.wait_for_durable(position, call)
        self._review(call)

    def _durable(self, call: Call) -> None:
        call.awaiting -= 1
        self._review(call)

    def _turn_down(self, event: Event, error: ParamstreamError) -> None:
        """The event is answered with an error: refused, or lost."""
        for call in event.calls:
            call.unsettled -= 1
            self._fail(call, error)
            if call.whole:
                self._drop_drafts(call)
            self._review(call)

    def _lose(self, call: Call, error: ParamstreamError) -> None:
        """An accepted event of `call` is lost."""
        call.awaiting -= 1
        self._fail(call, error)
        if call.whole:
            self._drop_drafts(call)
        self._review(call)

    def _drop_drafts(self, call: Call) -> None:
        call.unsettled -= len(call.drafts)
        self.queued_bytes -= sum(draft.nbytes for draft in call.drafts)
        call.drafts.clear()

    def _fail(self, call: Call, error: ParamstreamError) -> None:
        """The first error of a call is its outcome."""
        if call.error is None and not call.final:
            call.error = error
            self.failure = self.failure or error
            if call.whole:
                self._finalise(call)

    def _review(self, call: Call) -> None:
        """Move the call on where all its events have moved on."""
        if call.final or call.open or call.unsettled:
            return
        if call.error is not None:
            self._finalise(call)
            return
        if not call.accepted:
            call.accepted, call.unknown = True, False
            self._effects.append(Settled(call))
        if not call.awaiting:
            call.durable = call.persistence != "none"
            self._finalise(call)

    def _finalise(self, call: Call) -> None:
        call.final = True
        self.unfinished.pop(call.serial, None)
        self._effects.append(Settled(call))

    def _take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects


def _one_put(drafts: Sequence[Draft]) -> Draft:
    """Several separate puts as one event; within it the last put of a key wins, as it would have by itself."""
    items: list[PutItem] = []
    for draft in drafts:
        assert isinstance(draft.payload, Put)
        items.extend(draft.payload.items)
    bulk = tuple(piece for draft in drafts for piece in draft.bulk)
    nbytes = sum(draft.nbytes for draft in drafts)
    return Draft(drafts[0].partition, Put(tuple(items)), bulk, nbytes, drafts[0].source, all(d.owned for d in drafts))


def _seal(partition: PartitionState, commit: Commit, call: Call, position: int) -> None:
    """The session's own commit is sealed: later publishes are checked against it before a byte leaves."""
    if call.schema is not None:
        partition.schema = call.schema
    kept = tuple(s for s in partition.sealed if s.version < commit.version or not commit.rewind)
    kept = tuple(s for s in kept if s.version != commit.version)
    partition.sealed = (*kept, SealedVersion(commit.version, commit.digest, position))


def _lost(problem: str, partition: PartitionId, event: Event) -> EventLost:
    return EventLost(problem, partition=partition[1], version=event.calls[0].version)
