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

import sys
from collections.abc import Iterable

from ..consistency.epochs import EpochEnds
from ..consistency.position import epoch_of, show
from ..consistency.vector import PartitionId
from ..errors import EventLost, Fenced, InvalidEvent, OutcomeUnknown, ParamstreamError, UnknownTopic
from ..events.codec import Head, encode_event, encode_event_into
from ..events.kinds import Commit
from ..transport.calls import Joined, JoinedPartition, PartitionRecord, Unconfirmed
from ..transport.messages import Ack, Heartbeat, Refused
from ..transport.wire import WireError
from .again import Renewals
from .call_queue import CallQueue
from .calls import Call, Draft, Event
from .effects import Dropped, Effect, FencedOut, JoinAgain, Send
from .frame_memory import KEPT_FROM_BYTES, FrameMemory
from .outcomes import Outcomes
from .partition_state import PartitionState
from .past import Past, beyond

PUTS_BEFORE_JOINING = 16
"""While fewer events are in flight a put goes out at once on its own; from there on queued puts share events."""


class SessionCore:
    """One incarnation of a producer name, over all its partitions."""

    def __init__(
        self, producer: str, incarnation: int, window_bytes: int, *, halts: bool = False, again: bool = False
    ) -> None:
        """`halts`: once an event is lost or refused nothing more is sent, in no partition: what comes later would hide the hole.
        `again`: what is lost goes again as new events; until it is durable an event is kept, and takes of the window.
        """
        assert not (halts and again)
        self.producer = producer
        self.incarnation = incarnation
        self.window_bytes = window_bytes
        self._halts = halts
        self._again = again
        self._renewals = Renewals(producer, incarnation)
        self._awaited_bytes = 0
        """Of events that are accepted, not durable, and kept."""
        self._turn = 0
        self.partitions: dict[PartitionId, PartitionState] = {}
        self.stopped: dict[PartitionId, WireError] = {}
        """Partitions that could not be joined, with the reason."""
        self.fenced: Fenced | None = None
        self.flight_bytes = 0
        """Bytes of events that are not answered: at most the window, but for one event at a time."""
        self._effects: list[Effect] = []
        self.outcomes = Outcomes(self._effects)
        self.past = Past()
        self._queue = CallQueue()
        self._memory = FrameMemory()
        self._busy: set[PartitionId] = set()
        """Partitions with events in flight."""
        self._stale: set[PartitionId] = set()
        """Partitions whose owner is in another epoch: nothing is sent there until the session has joined that one."""
        self._joined = False
        """A join of this connection is answered: events may go."""
        self._joining = False
        self.congested = False
        """The connection took a frame no more: what has not gone waits for `retry`."""

    @property
    def is_joined(self) -> bool:
        """A join of the present connection is answered."""
        return self._joined

    @property
    def answered(self) -> bool:
        """Nothing waits for its turn or for an answer."""
        return not self._busy and not self._queue and not self._renewals.waiting

    @property
    def waiting_calls(self) -> int:
        """Calls with events that have no sequence yet."""
        return self._queue.waiting

    # --- calls ----------------------------------------------------------------------------------------------------------

    def has_room(self, nbytes: int) -> bool:
        """A whole call of `nbytes` may be submitted: with all that is held it is within the window, or nothing is held."""
        held = self._taken_bytes + self._queue.nbytes + self._renewals.nbytes
        return held + nbytes <= self.window_bytes or not held

    def submit(self, call: Call, drafts: Iterable[Draft]) -> list[Effect]:
        """A call that is known whole takes its place in the queue. What does not go out at once is copied."""
        self._enqueue(call)
        for draft in drafts:
            self._queue.add(call, draft)
        return self.finish(call)

    def begin(self, call: Call) -> list[Effect]:
        """A call whose events come one by one (`add`) takes its place in the queue; later calls wait behind it."""
        self._enqueue(call)
        return self._pump()

    def its_turn(self, call: Call, nbytes: int) -> bool:
        """An event of `nbytes`, added to the open `call` now, gets its sequence at once."""
        if self._renewals.waiting:
            return False
        at_head = bool(self._queue) and self._queue.first is call and not call.drafts
        return at_head and (call.started or self._may_start(call)) and self._fits(nbytes)

    def add(self, call: Call, draft: Draft) -> tuple[int, list[Effect]]:
        """The next event of an open call whose turn it is: (its sequence, effects). (0, …) where the call has failed."""
        if call.given_up:
            return 0, self._take()
        self._queue.add(call, draft)
        effects = self._pump()
        assert not call.drafts, "add() is for a call whose turn it is"
        return self.partitions[draft.partition].next_sequence - 1, effects

    def finish(self, call: Call) -> list[Effect]:
        """No more events come for `call`."""
        call.open = False
        if call.parts:
            call.parts = self._renewals.refs(call.partitions[0], call.parts)
        self.outcomes.review(call)
        return self._pump()

    def abandon(self, call: Call, error: ParamstreamError) -> list[Effect]:
        """The caller of an open call gives up: what it has not sent is dropped, and it fails with `error`."""
        if call.error is None:
            call.error = error
        call.whole = True
        self._queue.drop(call)
        return self.finish(call)

    def already(
        self, partition: PartitionId, persistence: str, position: int, version: int
    ) -> tuple[Call, list[Effect]]:
        """A call that was accepted before it was made: the same version with the same digest is sealed at `position`."""
        call = Call((partition,), persistence, version=version)
        self.outcomes.register(call)
        call.unsettled, call.started, call.open = 1, True, False
        self._stands(self.partitions[partition], call, position)
        return call, self._take()

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
        if self.fenced is not None:
            return self._give_up_fenced()
        for partition in self.partitions.values():
            for event in partition.unanswered():
                event.on_wire = False
                for call in event.calls:
                    call.unknown = True
        return self._take()

    def unsent(self, event: Event) -> list[Effect]:
        """`Send` could not put it on the wire. It goes with `retry`, or with the next join where the connection is gone."""
        event.sends -= 1
        event.on_wire = False
        self.congested = True
        return self._take()

    def retry(self) -> list[Effect]:
        """Try again to send what has not gone."""
        self.congested = False
        for partition in self.partitions.values():
            self._send_waiting(partition)
        return self._pump()

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
            self._joined, self.congested = True, False
        self.stopped = {(each.topic, each.partition): each.error for each in answer.stopped}
        for record in answer.partitions:
            self._join(record, fresh)
        if self._renewals.waiting and self._queue:
            # It waits for its turn once more: what goes again was called before it.
            self._queue.first.started = False
        if fresh:
            named = {(record.topic, record.partition) for record in answer.partitions}
            for missing in [known for known in self.partitions if known not in named]:
                if missing in self.stopped:
                    self._stand_still(missing)
                else:
                    self._forget(missing)
        # Only now: what goes again depends on nothing that any of the answers says is lost.
        for record in answer.partitions:
            self.past.cut((record.topic, record.partition), record.ends)
        for partition in self.partitions.values():
            self._send_waiting(partition)
        self._join_again_if_drained()
        return self._pump()

    def refresh(self, answer: Joined) -> list[Effect]:
        """A second join's answer in the midst: new partitions, and schema and tables anew; nothing in flight changes."""
        self.stopped = {(each.topic, each.partition): each.error for each in answer.stopped}
        for record in answer.partitions:
            known = self.partitions.get((record.topic, record.partition))
            if known is None:
                self._join(record, fresh=True)
            elif known.epoch == record.epoch:
                known.learn(record)
        for key in self.stopped.keys() & self.partitions.keys():
            self._stand_still(key)
        return self._pump()

    def fence(self, error: Fenced, *, fresh: bool = False) -> list[Effect]:
        """A newer session of this name is served: nothing more is sent, and what was not on the wire fails.

        What is on the wire still has an answer of its own to come, unless the connection is `fresh`: then nobody will tell.
        """
        if self.fenced is None:
            self.fenced = error
            self._joined = False
            self._drop_unsent(error)
            self._effects.append(FencedOut(error))
        return self._give_up_fenced() if fresh else self._take()

    def give_up(self, error: ParamstreamError) -> list[Effect]:
        """Nothing is sent any more, and everything without an answer fails with `error`."""
        self._joined = False
        self._queue.clear()
        self._renewals.waiting.clear()
        for partition in self.partitions.values():
            partition.flight.clear()
            partition.kept.clear()
        self._busy.clear()
        self.flight_bytes = self._awaited_bytes = 0
        for call in list(self.outcomes.unfinished.values()):
            if not call.accepted:
                call.whole, call.open = True, False
                self.outcomes.fail(call, error)
        return self._take()

    def end(self, error: ParamstreamError) -> list[Effect]:
        """The connection is gone for good: whatever has no outcome, accepted or not, ends with `error`."""
        effects = self.give_up(error)
        for call in list(self.outcomes.unfinished.values()):
            call.whole, call.open = True, False
            self.outcomes.fail(call, error)
        return effects + self._take()

    def unsettled_topics(self) -> set[int]:
        """Topics with accepted events that are neither known durable nor known lost."""
        return {topic for (topic, _), partition in self.partitions.items() if partition.awaiting}

    def stand(self, records: Iterable[PartitionRecord]) -> list[Effect]:
        """Where partitions stand settles what was accepted before: for a session that does not join any more."""
        for record in records:
            partition = self.partitions.get((record.topic, record.partition))
            if partition is not None:
                partition.epoch = record.epoch
                self._settle_accepted(partition, record)
        return self._take()

    def forget_topic(self, topic: int) -> list[Effect]:
        """The topic was deleted."""
        for key in [key for key in self.partitions if key[0] == topic]:
            self._forget(key)
        self._join_again_if_drained()
        return self._pump()

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
        if isinstance(error, Fenced) or (self.fenced is not None and (message.rejoin or message.gap)):
            self._answered(partition, event)
            self._turn_down(event, self.fenced or error)
            return self.fence(error) if isinstance(error, Fenced) else self._take()
        if message.rejoin:
            event.refused, event.on_wire = True, False
            self._stale.add(partition.id)
        elif message.gap:
            self._go_again(partition, event, message.last_sequence)
        elif self._observed_before(event, error):
            # It rests on what an event before it was refused for, which is observed no more.
            self._go_again(partition, event, partition.last)
        else:
            self._answered(partition, event)
            if message.position:
                if isinstance(event.payload, Commit):
                    partition.seal(event.payload, None, message.position)
                for call in event.calls:
                    # It gets the receipt of the first time: chunks and parts that were sent for nothing do not count.
                    call.positions.clear()
                    self._stands(partition, call, message.position)
            else:
                self.past.disprove(error)
                self._turn_down(event, error)
        self._join_again_if_drained()
        return self._pump()

    def heads(self, message: Heartbeat) -> list[Effect]:
        """Durable heads make accepted events durable; a head of a later epoch means that the session joins again."""
        for head in message.heads:
            partition = self.partitions.get((head.topic, head.partition))
            if partition is None or partition.id in self.stopped:
                continue
            if epoch_of(head.accepted) > partition.epoch:
                if self._joined:
                    self._stale.add(partition.id)
            elif epoch_of(head.durable) == partition.epoch and head.durable > partition.durable:
                for call in partition.take_durable(head.durable):
                    self.outcomes.durable(call)
                self._settle_kept(partition)
        self._join_again_if_drained()
        return self._pump() if self._again else self._take()

    # --- the queue ------------------------------------------------------------------------------------------------------------

    def _enqueue(self, call: Call) -> None:
        call.again = self._again
        self.outcomes.register(call)
        self._queue.push(call)

    def _may_start(self, call: Call) -> bool:
        if len(call.partitions) == 1:
            return not self._busy or (len(self._busy) == 1 and call.partitions[0] in self._busy)
        return not self._busy

    def _fits(self, nbytes: int) -> bool:
        return self._taken_bytes + nbytes <= self.window_bytes or not self._taken_bytes

    @property
    def _taken_bytes(self) -> int:
        """What is taken of the window."""
        return self.flight_bytes + self._awaited_bytes

    def _pump(self) -> list[Effect]:
        """Let go what rule 1 and the window allow, in the order of the calls; copy what stays and is not ours yet."""
        self._send_again()
        while self._queue and not self._renewals.waiting:
            call = self._queue.first
            if not call.started and not self._may_start(call):
                break
            call.started = True
            if call.joinable:
                if not self._put_may_go(call.drafts[0]):
                    break
                room_bytes = self.window_bytes - self._taken_bytes
                self._dispatch(*self._queue.joined_puts(room_bytes, sys.maxsize if self._joined else 1))
                continue
            while call.drafts and self._fits(call.drafts[0].nbytes):
                self._dispatch(self._queue.next_draft(call), [call])
            if call.drafts or call.open:
                break
            self._queue.pop()
        self._queue.keep_last()
        return self._take()

    def _put_may_go(self, draft: Draft) -> bool:
        # While nothing can be sent there is nothing to wait for: every put gets its sequence.
        flight = len(self.partitions[draft.partition].flight)
        return self._fits(draft.nbytes) and (flight < PUTS_BEFORE_JOINING or not self._joined)

    def _send_again(self) -> None:
        """Send what was lost as new events, before all that was called later."""
        waiting = self._renewals.waiting
        while waiting:
            event = waiting[0]
            error = event.calls[0].error
            if event.given_up and error is not None:
                self._turn_down(waiting.popleft(), error)
                continue
            if not (self._busy <= {event.partition} and self._fits(event.nbytes)):
                return
            self._dispatch(event.draft(), event.calls, renews=waiting.popleft())

    def _dispatch(self, draft: Draft, calls: list[Call], renews: Event | None = None) -> None:
        """Give the next event of these calls its sequence and send it. `renews`: the lost one that it stands for."""
        partition = self.partitions[draft.partition]
        draft.payload = self._renewals.renamed(draft.partition, draft.payload)
        event = Event(partition.next_sequence, draft, calls)
        if self._again:
            self._turn += 1
            event.turn = self._turn
            partition.kept.add(event)
        if renews is not None:
            self._renewals.became(renews, event)
        previous = partition.newest
        partition.next_sequence += 1
        partition.flight[event.sequence] = event
        self._busy.add(partition.id)
        self.flight_bytes += event.nbytes
        self._transmit(partition, event, previous)

    def _transmit(self, partition: PartitionState, event: Event, previous: int) -> None:
        """Encode the event for the epoch joined and send it; while that is not possible, keep a copy of its bytes."""
        halted = self._halts and self.outcomes.failed is not None
        if not self._joined or self.congested or partition.id in self._stale or partition.id in self.stopped or halted:
            event.keep()
            return
        own, own_bytes = self.past.own_beside(partition.id)
        for call in event.calls:
            call.own, call.observed = own, self.past.observed
        head = Head(
            producer=self.producer,
            incarnation=self.incarnation,
            sequence=event.sequence,
            previous=previous,
            joined_epoch=partition.epoch,
            confirmed=partition.confirmed,
            own=own_bytes,
            observed=self.past.observed_bytes,
            source=event.source,
        )
        try:
            frame = self._encode(partition.id, head, event)
        except InvalidEvent as error:
            self._answered(partition, event)
            self._turn_down(event, error)
            return
        bulk_nbytes = sum(len(piece) for piece in event.bulk)
        event.bulk, event.owned = (memoryview(frame)[len(frame) - bulk_nbytes :],), True
        event.sends += 1
        event.refused, event.on_wire = False, True
        self._effects.append(Send(event, frame))

    def _encode(self, partition: PartitionId, head: Head, event: Event) -> bytearray | memoryview:
        if event.nbytes < KEPT_FROM_BYTES:
            return encode_event(partition, head, event.payload, event.bulk)
        return encode_event_into(self._memory.take, partition, head, event.payload, event.bulk)

    # --- joins ----------------------------------------------------------------------------------------------------------------

    def _join(self, record: JoinedPartition, fresh: bool) -> None:
        key = record.topic, record.partition
        partition = self.partitions.get(key)
        if partition is None:
            partition = self.partitions[key] = PartitionState(key)
            if record.last is not None:
                self.past.take_up(key, record.last)
            fresh = True
        same = partition.epoch == record.epoch
        partition.learn(record)
        if not fresh and same:
            self._stale.discard(key)
            return
        if not fresh and any(partition.unanswered()):
            self._stale.add(key)
            return
        if self._again and self.fenced is None:
            self._renewals.add(self._take_lost(partition, record))
        self._settle_flight(partition, record)
        partition.epoch = record.epoch
        self._stale.discard(key)
        partition.last = record.last_sequence
        partition.next_sequence = max(partition.next_sequence, record.last_sequence + 1)
        self._settle_accepted(partition, record)

    def _send_waiting(self, partition: PartitionState) -> None:
        """Send what is in flight and not on the wire of this connection: never sent there, or refused for its epoch."""
        previous = partition.last
        for event in list(partition.flight.values()):
            if not event.on_wire:
                if event.given_up:
                    self._answered(partition, event)
                    continue
                self._transmit(partition, event, previous)
            previous = event.sequence

    def _settle_flight(self, partition: PartitionState, record: JoinedPartition) -> None:
        """Every event without an answer: it stands, or it stays in flight to go again, or it is lost."""
        positions = dict(record.positions)
        same = partition.epoch == record.epoch
        for event in list(partition.flight.values()):
            position = positions.get(event.sequence)
            if position is not None:
                self._accept(partition, event, position)
            elif event.given_up:
                self._answered(partition, event)
            elif event.may_be_seen and not same and not record.resend:
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

    def _take_lost(self, partition: PartitionState, record: JoinedPartition) -> list[Event]:
        """What is lost of the partition and goes again, with all that stood behind it; the calls wait for answers once more."""
        ends, standing = EpochEnds(record.ends), dict(record.positions)
        same = partition.epoch == record.epoch

        def is_lost(event: Event) -> bool:
            if event.position:
                return ends.is_lost(event.position)
            return (
                event.may_be_seen
                and not same
                and not record.resend
                and event.sequence not in standing
                and not event.given_up
            )

        lost = partition.kept.take_lost(is_lost)
        for call in partition.stop_waiting({event.position for event in lost if event.position}):
            call.awaiting -= 1
        for event in lost:
            if event.position:
                self._awaited_bytes -= event.nbytes if event.is_awaited else 0
            else:
                self._answered(partition, event, keep=True)
            self._effects.append(Dropped(event))
            problem = f"an event of producer {self.producer!r} was lost, and its receipt was written as text before"
            event.calls = self.outcomes.go_again(event, _lost(problem, partition.id, event))
        return [event for event in lost if event.calls]

    def _settle_kept(self, partition: PartitionState) -> None:
        if self._again:
            self._awaited_bytes -= partition.kept.settle(partition.is_durable)

    def _settle_accepted(self, partition: PartitionState, record: JoinedPartition | PartitionRecord) -> None:
        durable, lost = partition.take_ended(EpochEnds(record.ends), record.epoch)
        for call in durable:
            self.outcomes.durable(call)
        for position, call in lost:
            problem = f"the event of producer {self.producer!r} at {show(position)} was accepted, and its epoch ended below it"
            error = EventLost(problem, partition=partition.id[1], position=position, version=call.version)
            self.outcomes.lost(call, error)
            self._drop_given_up(call)
        for call in partition.take_durable(record.durable):
            self.outcomes.durable(call)
        self._settle_kept(partition)

    def _drop_unsent(self, error: ParamstreamError) -> None:
        """Nothing is sent any more: what is not on the wire fails."""
        for call in [call for call in self._queue.calls() if call.open or call.drafts]:
            call.whole, call.open = True, False
            self.outcomes.fail(call, error)
        self._queue.clear()
        while self._renewals.waiting:
            self._turn_down(self._renewals.waiting.popleft(), error)
        for partition in self.partitions.values():
            for event in [event for event in partition.flight.values() if event.refused or not event.sends]:
                self._answered(partition, event)
                self._turn_down(event, error)

    def _give_up_fenced(self) -> list[Effect]:
        problem = f"producer {self.producer!r} was fenced, and the connection went before the answer came"
        return self.give_up(OutcomeUnknown(problem, remedy="Look for it in the topic: it may stand"))

    def _stand_still(self, key: PartitionId) -> None:
        """The partition has stopped. What nobody can have seen fails with the reason. What is accepted, or may be, stands once the
        partition is back, or is lost: it is settled then.
        """
        partition, error = self.partitions[key], self.stopped[key].raised()
        for event in [event for event in partition.flight.values() if not event.may_be_seen]:
            self._answered(partition, event)
            self._turn_down(event, error)
        self._fail_waiting(key, error)

    def _forget(self, key: PartitionId) -> None:
        """The partition's topic is gone."""
        partition = self.partitions.pop(key)
        error = UnknownTopic(
            "the topic was deleted", partition=key[1], remedy="Create it again, and open a new publisher"
        )
        for event in list(partition.flight.values()):
            self._answered(partition, event)
            self._turn_down(event, error)
        for _, _, call in partition.awaiting:
            self.outcomes.lost(call, error)
        self._fail_waiting(key, error)
        self.past.forget(key)

    def _fail_waiting(self, key: PartitionId, error: ParamstreamError) -> None:
        """What waits for its turn in the partition will not have it."""
        for event in [event for event in self._renewals.waiting if event.partition == key]:
            self._renewals.waiting.remove(event)
            self._turn_down(event, error)
        for call in self._queue.calls():
            if key in call.partitions:
                call.whole = True
                self.outcomes.fail(call, error)
                self._queue.drop(call)
        self._stale.discard(key)

    def _join_again_if_drained(self) -> None:
        """Join again once this connection owes no answer for any stale partition: an event may not be on the wire twice."""
        if not self._stale or not self._joined or self._joining:
            return
        if not any(any(self.partitions[key].unanswered()) for key in self._stale):
            self._joining = True
            self._effects.append(JoinAgain())

    # --- outcomes -------------------------------------------------------------------------------------------------------------

    def _go_again(self, partition: PartitionState, event: Event, last_sequence: int) -> None:
        if event.given_up:
            self._answered(partition, event)
            return
        partition.last = last_sequence
        event.sends, event.on_wire = 0, False
        self._transmit(partition, event, partition.before(event.sequence))

    def _answered(self, partition: PartitionState, event: Event, *, keep: bool = False) -> None:
        """The event is no longer in flight. `keep`: it stands, or goes again."""
        if not keep:
            self._effects.append(Dropped(event))
            if self._again:
                partition.kept.discard(event)
        del partition.flight[event.sequence]
        self.flight_bytes -= event.nbytes
        if not partition.flight:
            self._busy.discard(partition.id)

    def _accept(self, partition: PartitionState, event: Event, position: int) -> None:
        self._answered(partition, event, keep=True)
        partition.last = max(partition.last, event.sequence)
        event.position = position
        if self._again:
            event.is_awaited = event.calls[0].persistence == "write_back"
            self._awaited_bytes += event.nbytes if event.is_awaited else 0
        if isinstance(event.payload, Commit):
            partition.seal(event.payload, event.calls[0].schema, position)
        for call in event.calls:
            self._stands(partition, call, position)
        self._settle_kept(partition)

    def _stands(self, partition: PartitionState, call: Call, position: int) -> None:
        """An event of `call` is accepted at `position`."""
        self.past.wrote(partition.id, position)
        self.past.prove(call.observed)
        self.outcomes.stands(partition, call, position)

    def _turn_down(self, event: Event, error: ParamstreamError) -> None:
        """The event is answered with an error: refused, or lost."""
        for call in event.calls:
            self.outcomes.turned_down(call, error)
            self._drop_given_up(call)

    def _observed_before(self, event: Event, error: ParamstreamError) -> bool:
        """The event was sent with what `error` is about, and would be sent without it now."""
        sent = event.calls[0].observed
        return bool(beyond(sent, error)) and not beyond(self.past.observed, error)

    def _drop_given_up(self, call: Call) -> None:
        if call.given_up:
            self._queue.drop(call)

    def _take(self) -> list[Effect]:
        effects = self._effects.copy()
        self._effects.clear()
        return effects


def _lost(problem: str, partition: PartitionId, event: Event) -> EventLost:
    return EventLost(problem, partition=partition[1], version=event.calls[0].version)
