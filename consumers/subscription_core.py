"""The subscription core: orders each followed partition, asks the gate, fetches what is missing. Pure: no clock, no socket.

Inputs are the methods named for what happened (`connected`, `following`, `event`, …); what is to be done comes out of
`steps()`. The shell runs `steps()` after each input, does what it says, and confirms each `Deliver`, `EpochBegan` and `Undo`
before it asks for the next one:

    core.event(frame)
    for effect in core.steps():
        ...                             # send, fetch, apply
        if isinstance(effect, Step):
            core.confirm(effect)        # or core.stop(...), or core.hold(...)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..consistency.gate import Gate, Ordering
from ..consistency.position import START, epoch_of, offset_of, show
from ..consistency.vector import EMPTY, PartitionId, VersionVector
from ..errors import CorruptLog, EventLost, InvalidEvent, LogTruncated, ParamstreamError
from ..events.codec import EventFrame, decode_event, read_prefix
from ..events.kinds import LOG_ONLY_KINDS, Epoch, Kind, Table
from ..events.limits import MAX_EVENT_BYTES
from ..events.validate import check_payload
from ..transport.messages import Demoted, Fetched, Following, Heartbeat
from .effects import (
    Deliver,
    Durable,
    Effect,
    EpochBegan,
    Jump,
    Refetched,
    SendCredit,
    SendFetch,
    SendFollow,
    SendUnfollow,
    Step,
    Stopped,
    Undo,
)
from .followed import Followed, Held, Hold, Mode, Passing

BUDGET_BYTES = 16 * 1024 * 1024
"""What one partition may hold back: also its credit. A partition has its own, so that one that waits never starves another."""

FETCH_BYTES = 4 * 1024 * 1024
"""One fetch: several large chunks, small beside the budget."""

ANSWER_S = 5.0
"""After this long without an answer a fetch or a follow is sent again."""

CREDIT_SHARE = 4
"""Credit goes back when a quarter of it is used: seldom enough to cost nothing, early enough that it never runs out."""


class SubscriptionCore:
    """Positions are of applied events only: an event counts once it was confirmed."""

    def __init__(
        self,
        ordering: Ordering,
        starts: Mapping[PartitionId, int],
        *,
        durable_only: bool = False,
        budget_bytes: int = BUDGET_BYTES,
    ) -> None:
        """Follows the partitions of `starts`, each from behind the given position.

        `durable_only`: an event is offered only once it can no longer be lost, so nothing that was offered is ever undone.
        """
        self._gate = Gate(ordering, starts)
        self.durable_only = durable_only
        """Never changed."""
        self._budget_bytes = max(budget_bytes, MAX_EVENT_BYTES)
        self._followed: dict[PartitionId, Followed] = {}
        self._pending: deque[Effect] = deque()
        self._ready: dict[PartitionId, None] = {}
        self._blocked: dict[PartitionId, PartitionId] = {}
        self._offered: Step | None = None
        self._connected = False
        self._now = 0.0
        self._fetches = 0
        self.paused = False
        """While set, nothing is delivered: events wait within the budget, and are fetched again beyond it."""
        self.garbled_frames = 0
        """Frames of which not even the place could be read. What they carried is missed by its position, and fetched."""
        self.repeated_events = 0
        """Events that were sent again, or late: what is behind them was received, and they change nothing."""
        for partition, start in starts.items():
            self.follow(partition, start)

    # --- what is followed ---------------------------------------------------------------------------------------------

    def follow(self, partition: PartitionId, start: int) -> None:
        """Follow one more partition from behind `start`."""
        state = Followed(partition, start)
        self._followed[partition] = state
        self._gate.moved(partition, start)
        if self._connected:
            self._ask_to_follow(state)

    def begin_with(self, context: VersionVector[int], staged_from: Mapping[PartitionId, int]) -> None:
        """What the followed partitions begin with rests on `context`; a commit may name chunks and parts that stand behind the
        position that `staged_from` gives for its partition, before that where it was first followed.
        """
        self._gate.rests_on(context)
        for partition, after in staged_from.items():
            state = self._followed[partition]
            state.start = min(state.start, after)

    def unfollow(self, partition: PartitionId) -> None:
        """Forget a partition that is gone; waits for it end."""
        state = self._followed.pop(partition)
        self._ready.pop(partition, None)
        self._gate.forget(partition)
        if self._connected and state.mode is not Mode.STOPPED:
            self._pending.append(SendUnfollow(partition))
        self._blocked.pop(partition, None)
        self._wake(partition)

    def stop(self, partition: PartitionId, error: ParamstreamError) -> None:
        """The shell cannot apply what was offered: the partition stands before it from now on."""
        state = self._followed[partition]
        if self._offered is not None and self._offered.partition == partition:
            self._offered = None
        state.clear(self._gate.position(partition))
        self._halt(state, error)

    def resume(self, partition: PartitionId) -> None:
        """A stopped partition is there again: go on from behind what was applied."""
        state = self._followed[partition]
        if state.mode is Mode.STOPPED:
            state.mode = Mode.APART
            if self._connected:
                self._ask_to_follow(state)

    def jump(
        self,
        partition: PartitionId,
        start: int,
        target: int,
        context: VersionVector[int] = EMPTY,
        ends: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Go on from behind `start`, above all that was received; nothing before `target` is worth applying.

        What is passed counts for the gate at once, and for users when the first event at or behind `target` is applied, which
        waits for `context` (what rests before it) too. `target` must be durable. `ends` are those of finished epochs; what was
        applied and is lost by them is undone first. A jump may begin while another one is on its way.
        """
        state = self._followed[partition]
        assert self._offered is None or self._offered.partition != partition
        shown = self._gate.shown(partition)
        below = [end for _, end in ends if end < shown]
        for _, end in ends:
            self._gate.ended(partition, end)
        if self._gate.is_lost(partition, shown):
            self._pending.append(Undo(partition, max(below, default=0)))
        state.jump(Passing(start, target, context))
        self._blocked.pop(partition, None)
        self._pending.append(Jump(partition, start, target))

    def hold(self, partition: PartitionId, after: int) -> None:
        """The shell lacks earlier events for the one offered: fetch those after `after` once more, then offer it again.

        0 stands for all since the partition was first followed.
        """
        assert self._offered is not None and self._offered.partition == partition
        self._offered = None
        state = self._followed[partition]
        state.hold = Hold(after or state.start, state.queue[0].position)
        self._ready.pop(partition, None)
        self._send_refetch(state, state.hold)

    def wait_until_durable(self, partition: PartitionId) -> bool:
        """The shell has no room for what it would have to take back of the event offered: it is offered again once it can no longer be
        lost. False where it cannot be lost as it is.
        """
        assert self._offered is not None and self._offered.partition == partition
        state = self._followed[partition]
        position = state.queue[0].position
        if self._is_durable(state, position):
            return False
        self._offered = None
        state.must_last = position
        self._ready.pop(partition, None)
        return True

    # --- what is asked ------------------------------------------------------------------------------------------------

    def partitions(self) -> list[PartitionId]:
        return list(self._followed)

    def position(self, partition: PartitionId) -> int:
        """The last position that is applied; what a jump has passed does not count before its target is."""
        return self._gate.shown(partition)

    def counted(self, partition: PartitionId) -> int:
        """The last position that nobody waits for any more: applied, or passed."""
        return self._gate.position(partition)

    def received(self, partition: PartitionId) -> int:
        """The last position that need not be asked for: applied, passed, or waiting for its turn."""
        return self._followed[partition].received

    def positions(self) -> VersionVector[int]:
        """Applied positions, not closed, and without what is only passed."""
        return self._gate.positions()

    def vector(self) -> VersionVector[int]:
        """The closed vector of what was applied. Of what is only passed it has what an applied event rests on."""
        return self._gate.vector()

    def is_behind(self, partition: PartitionId) -> bool:
        """It fetches what others are sent."""
        return self._followed[partition].mode is Mode.BEHIND

    def jumping_to(self, partition: PartitionId) -> int | None:
        """The target of the jump that is on its way."""
        passing = self._followed[partition].passing
        return passing.target if passing is not None else None

    def is_lost(self, partition: PartitionId, position: int) -> bool:
        """True if an event at `position` is known to be above its epoch's end."""
        state = self._followed.get(partition)
        return self._gate.is_lost(partition, position) or (state is not None and state.is_lost(position))

    def stands(self, partition: PartitionId, position: int) -> bool:
        """True if what was seen at `position`, at or below what is applied, is known to be in the partition still: its epoch goes on, or is
        known to have ended behind it. Of epochs before the one that was followed first a partition knows what its broker told, and of
        a topic that had this one's name before nothing.
        """
        epoch = epoch_of(position)
        if position == START or epoch == epoch_of(self._gate.position(partition)):
            return True
        return position <= (self._gate.end_of(partition, epoch) or START)

    def heads(self, partition: PartitionId) -> tuple[int, int]:
        """(accepted, durable) as last heard."""
        state = self._followed[partition]
        return state.accepted, state.durable

    def settled(self, partition: PartitionId) -> int:
        """What is applied of the partition up to here can no longer be lost."""
        return self._followed[partition].told_durable

    @property
    def lost_dependencies(self) -> int:
        return self._gate.lost_dependencies

    @property
    def buffered_bytes(self) -> int:
        return sum(state.held_bytes for state in self._followed.values())

    @property
    def heads_are_known(self) -> bool:
        """The present connection has told where each partition stands that is still followed."""
        return self._connected and all(state.heard for state in self._live_states())

    def lag_events(self) -> int:
        """Events that are accepted and not applied; of an epoch that is not reached yet, those of that epoch."""
        lag = 0
        for partition, state in self._followed.items():
            applied = self._gate.shown(partition)
            if state.accepted > applied:
                same = epoch_of(state.accepted) == epoch_of(applied)
                lag += state.accepted - applied if same else offset_of(state.accepted) + 1
        return lag

    # --- what happened --------------------------------------------------------------------------------------------------

    def connected(self) -> None:
        self._connected = True
        for state in self._live_states():
            if state.passing is not None and not state.passing.begun:
                continue
            self._ask_to_follow(state)
            if state.hold is not None:
                self._send_refetch(state, state.hold)

    def disconnected(self) -> None:
        self._connected = False
        for state in self._live_states():
            state.mode = Mode.APART
            state.heard = False
            state.fetch_id = 0
            if state.hold is not None:
                state.hold.fetch_id = 0

    def following(self, message: Following) -> None:
        state = self._state((message.topic, message.partition))
        if state is None:
            return
        state.mode = Mode.LIVE
        for _, end in message.ends:
            self._gate.ended(state.partition, end)
        self._note_heads(state, message.accepted, message.durable)
        if message.after > state.received:
            self._fetch(state)

    def demoted(self, message: Demoted) -> None:
        state = self._state((message.topic, message.partition))
        if state is None:
            return
        state.mode = Mode.BEHIND
        for _, end in message.ends:
            self._gate.ended(state.partition, end)
        state.accepted, state.heard = max(state.accepted, message.accepted), True
        if message.error is not None:
            self._failed(state, message.error.raised())
        elif message.accepted < message.after:
            self._halt(state, _ahead(message))
        elif state.accepted > state.received:
            self._fetch(state)

    def heartbeat(self, message: Heartbeat) -> None:
        for heads in message.heads:
            state = self._state((heads.topic, heads.partition))
            if state is None:
                continue
            self._note_heads(state, heads.accepted, heads.durable)
            if state.mode is Mode.LIVE:
                if heads.sent == 0 and heads.accepted > 0:
                    state.mode = Mode.BEHIND
                elif heads.sent > state.received:
                    self._fetch(state)
            elif state.mode is Mode.BEHIND and heads.accepted > state.received:
                self._fetch(state)

    def event(self, frame: memoryview) -> None:
        """A fanned-out frame."""
        try:
            prefix = read_prefix(frame)
        except CorruptLog:
            self.garbled_frames += 1
            return
        state = self._state((prefix.topic, prefix.partition))
        if state is None or state.mode is Mode.APART:
            return
        if prefix.position <= state.received:
            state.consumed_bytes += len(frame)
            self.repeated_events += 1
            return
        try:
            held = _held(frame, state.follow)
        except CorruptLog:
            # It may be whole in the log: the fetch decides.
            state.consumed_bytes += len(frame)
            self._fetch(state)
            return
        state.take(held, self._budget_bytes)
        self._integrate(state)
        if state.ahead:
            self._fetch(state)

    def fetched(self, answer: Fetched, frames: Sequence[memoryview]) -> None:
        state = self._followed.get((answer.topic, answer.partition))
        if state is None:
            return
        if state.hold is not None and answer.id == state.hold.fetch_id:
            self._refetched(state, state.hold, answer, frames)
        elif answer.id == state.fetch_id and state.mode is not Mode.STOPPED:
            state.fetch_id = 0
            state.accepted = max(state.accepted, answer.accepted)
            if answer.error is not None:
                self._failed(state, answer.error.raised())
            else:
                self._take_fetched(state, frames)

    def tick(self, now: float) -> None:
        """Time passes: `now` in seconds of any steady clock."""
        self._now = now
        if not self._connected:
            return
        for state in self._followed.values():
            if state.hold is not None and now - state.hold.sent_s > ANSWER_S:
                self._send_refetch(state, state.hold)
        for state in self._live_states():
            overdue = now - state.sent_s > ANSWER_S
            if state.fetch_id and overdue:
                state.fetch_id = 0
            if state.fetch_id:
                continue
            if state.mode is Mode.ASKED and overdue:
                self._ask_to_follow(state)
            elif state.mode is Mode.BEHIND:
                if state.received < state.accepted or state.ahead:
                    self._fetch(state)
                elif self._has_room(state):
                    self._ask_to_follow(state)
            elif state.mode is Mode.LIVE and (state.ahead or state.let_go):
                self._fetch(state)

    # --- what is to be done -----------------------------------------------------------------------------------------------

    def steps(self) -> Iterator[Effect]:
        """What to do now, in order. Each `Step` must be confirmed, stopped or held before the next one is asked for."""
        while True:
            assert self._offered is None, f"{self._offered} was not confirmed"
            if self._pending:
                effect = self._pending.popleft()
            else:
                found = self._next_step()
                if found is None:
                    break
                effect = found
            if isinstance(effect, Step):
                self._offered = effect
            yield effect
        yield from self._credit()

    def confirm(self, step: Step) -> None:
        """The shell did it, and shows it from now on."""
        assert step is self._offered
        self._offered = None
        partition = step.partition
        state = self._followed[partition]
        match step:
            case Undo():
                self._gate.moved(partition, step.end)
            case Jump():
                self._begin_jump(state, step)
            case EpochBegan():
                state.pop()
                state.last_epoch = (step.position, step.end)
                self._gate.ended(partition, step.end)
                self._move(state, step.position)
            case Deliver():
                state.pop()
                self._take(state, step)
        self._tell_durable(state)
        self._wake(partition)
        if not state.queue and (state.let_go or (state.mode is Mode.BEHIND and state.received < state.accepted)):
            self._fetch(state)

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _next_step(self) -> Step | None:
        while self._ready and not self.paused:
            partition = next(iter(self._ready))
            state = self._followed[partition]
            if state.queue and state.hold is None:
                step = self._step_to(state, state.queue[0])
                if step is not None:
                    return step
            del self._ready[partition]
        return None

    def _step_to(self, state: Followed, head: Held) -> Step | None:
        """The step that the event at the head of a queue is due for; None where it waits."""
        partition, payload = state.partition, head.frame.payload
        passing, stamp = state.passing, head.stamp
        is_passed = passing is not None and passing.passes(head.position)
        if self._must_last(state, head) and not is_passed and not self._is_durable(state, head.position):
            return None
        if isinstance(payload, Epoch):
            return EpochBegan(partition, head.position, payload.previous_end, head.frame.time)
        if is_passed:
            return Deliver(partition, head.frame, stamp, passed=True)
        if passing is not None:
            stamp = passing.landing(stamp)
        blocked = self._gate.blocked_by(partition, stamp)
        if blocked is None:
            self._blocked.pop(partition, None)
            return Deliver(partition, head.frame, stamp)
        self._blocked[partition] = blocked[0]
        return None

    def _is_durable(self, state: Followed, position: int) -> bool:
        """Known so from the run itself, or because the epoch of `position` is over and is known to have ended at or behind it: a run may
        be too large to be held up to the epoch of the head.
        """
        if state.is_durable(position):
            return True
        epoch = epoch_of(position)
        return epoch < epoch_of(state.durable) and position <= (self._gate.end_of(state.partition, epoch) or START)

    def _must_last(self, state: Followed, head: Held) -> bool:
        """It is offered only once it can no longer be lost. So is every definition of a table: one of another kind of optimizer starts the
        state of all rows anew, and nobody could keep a before-image of that.
        """
        return self.durable_only or isinstance(head.frame.payload, Table) or head.position == state.must_last

    def _begin_jump(self, state: Followed, jump: Jump) -> None:
        assert state.passing is not None
        state.passing.begun = True
        self._gate.passed(state.partition, jump.start)
        if self._connected:
            self._ask_to_follow(state)

    def _move(self, state: Followed, position: int) -> None:
        """An epoch record was applied, or passed. Where it stands behind the target, that is lost, and with it the jump."""
        if state.passing is not None and state.passing.passes(position):
            self._gate.passed(state.partition, position)
        else:
            state.passing = None
            self._gate.moved(state.partition, position)

    def _take(self, state: Followed, step: Deliver) -> None:
        if step.passed:
            assert state.passing is not None
            state.passing.take(step.stamp)
            self._gate.passed(state.partition, step.frame.position)
        else:
            state.passing = None
            self._gate.applied(state.partition, step.stamp)

    def _wake(self, moved: PartitionId) -> None:
        """`moved` stands elsewhere: try it again, and those that waited for it."""
        for partition, waits_for in self._blocked.items():
            if waits_for == moved:
                self._ready[partition] = None
        if moved in self._followed:
            self._ready[moved] = None

    def _integrate(self, state: Followed) -> None:
        lost_above = state.advance()
        if lost_above is not None:
            self._blocked.pop(state.partition, None)
            # An answer under way begins behind what is lost: it would look like a gap.
            state.fetch_id = 0
            if self._gate.position(state.partition) > lost_above:
                self._pending.append(Undo(state.partition, lost_above))
        if state.queue and state.partition not in self._blocked:
            self._ready[state.partition] = None

    def _take_fetched(self, state: Followed, frames: Sequence[memoryview]) -> None:
        before = state.received
        for data in frames:
            try:
                held = _held(data)
                frame = held.frame
                if frame.partition_id != state.partition:
                    raise CorruptLog("a fetch answered with an event of another partition", position=frame.position)
            except CorruptLog as error:
                self._integrate(state)
                if state.suspect == state.received:
                    self._halt(state, error)
                else:
                    state.suspect = state.received
                    self._fetch(state)
                return
            state.take(held, self._budget_bytes)
        self._integrate(state)
        if not frames:
            # Accepted and not readable yet, or a head that was lost: the next tick asks again, or follows.
            if state.mode is Mode.BEHIND and not state.ahead:
                state.accepted = state.received
            return
        last = read_prefix(frames[-1]).position
        if state.received == before and last > before and not state.let_go:
            self._halt(state, CorruptLog("the log has a gap behind this position", position=before))
        elif state.ahead or (state.mode is Mode.BEHIND and state.received < state.accepted):
            self._fetch(state)
        elif state.mode is Mode.BEHIND and self._has_room(state):
            self._ask_to_follow(state)

    def _has_room(self, state: Followed) -> bool:
        """Not too much waits for the gate to take more."""
        return state.queue_bytes <= self._budget_bytes // 2

    def _refetched(self, state: Followed, hold: Hold, answer: Fetched, frames: Sequence[memoryview]) -> None:
        hold.fetch_id = 0
        try:
            if answer.error is not None:
                raise answer.error.raised()
            if not frames:
                raise LogTruncated("events that a commit needs are no longer in the log", position=hold.after)
            for data in frames:
                frame = _held(data).frame
                if _is_lost_by(frame, hold.until):
                    self._read_again(state)
                    return
                if hold.after < frame.position < hold.until:
                    self._pending.append(Refetched(state.partition, frame))
                hold.after = max(hold.after, frame.position)
        except ParamstreamError as error:
            hold.failures += 1
            if hold.failures > 1 and not error.retriable:
                state.clear(self._gate.position(state.partition))
                state.hold = None
                self._halt(state, error)
            return
        if hold.after >= hold.until - 1:
            state.hold = None
            self._ready[state.partition] = None
        else:
            self._send_refetch(state, hold)

    def _read_again(self, state: Followed) -> None:
        """The event that waits is lost, and with it what was fetched once more for it: what stands behind what is applied now?"""
        state.clear(self._gate.position(state.partition))
        # An answer under way begins behind what is lost: it would look like a gap.
        state.hold, state.fetch_id = None, 0
        if state.mode is not Mode.STOPPED:
            self._fetch(state)

    def _failed(self, state: Followed, error: ParamstreamError) -> None:
        if not error.retriable:
            self._halt(state, error)

    def _halt(self, state: Followed, error: ParamstreamError) -> None:
        """Take no more; what has its place already is still delivered."""
        state.mode = Mode.STOPPED
        state.fetch_id = 0
        self._pending.append(Stopped(state.partition, error))
        if self._connected:
            self._pending.append(SendUnfollow(state.partition))

    def _note_heads(self, state: Followed, accepted: int, durable: int) -> None:
        state.accepted, state.durable, state.heard = accepted, durable, True
        if state.queue and self._must_last(state, state.queue[0]):
            self._ready[state.partition] = None
        self._tell_durable(state)

    def _tell_durable(self, state: Followed) -> None:
        """Only within the epoch that is applied: a head of a later one says nothing of what may be lost before it, unless it is known
        where the applied one ended.
        """
        epoch = epoch_of(self._gate.position(state.partition))
        durable = state.durable
        if epoch_of(durable) > epoch:
            durable = self._gate.end_of(state.partition, epoch) or 0
        if durable > state.told_durable:
            state.told_durable = durable
            self._pending.append(Durable(state.partition, durable))

    def _ask_to_follow(self, state: Followed) -> None:
        state.mode = Mode.ASKED
        state.sent_s = self._now
        state.follow += 1
        state.consumed_bytes = state.credited_bytes = 0
        credit = max(MAX_EVENT_BYTES, self._budget_bytes - state.queue_bytes)
        self._pending.append(SendFollow(state.partition, state.received, credit))

    def _fetch(self, state: Followed) -> None:
        """Ask for what comes after `received`, unless a fetch is out, or what waits for the gate leaves no room."""
        if state.fetch_id or not self._connected or not self._has_room(state):
            return
        state.let_go = False
        self._fetches += 1
        state.fetch_id = self._fetches
        state.sent_s = self._now
        self._pending.append(SendFetch(state.fetch_id, state.partition, state.received, FETCH_BYTES))

    def _send_refetch(self, state: Followed, hold: Hold) -> None:
        if self._connected:
            self._fetches += 1
            hold.fetch_id = self._fetches
            hold.sent_s = self._now
            self._pending.append(SendFetch(hold.fetch_id, state.partition, hold.after, FETCH_BYTES))

    def _credit(self) -> Iterator[Effect]:
        for state in self._followed.values():
            due = state.consumed_bytes - state.credited_bytes
            if due * CREDIT_SHARE >= self._budget_bytes and state.mode in (Mode.LIVE, Mode.ASKED):
                state.credited_bytes = state.consumed_bytes
                yield SendCredit(state.partition, state.consumed_bytes)

    def _state(self, partition: PartitionId) -> Followed | None:
        state = self._followed.get(partition)
        return None if state is None or state.mode is Mode.STOPPED else state

    def _live_states(self) -> list[Followed]:
        return [state for state in self._followed.values() if state.mode is not Mode.STOPPED]


def _held(data: memoryview, follow: int = 0) -> Held:
    """The event in a frame, whole and within the limits, its vectors too. Raises `CorruptLog`."""
    frame = decode_event(data)
    if frame.kind in LOG_ONLY_KINDS or (frame.kind is Kind.EPOCH) != (offset_of(frame.position) == 0):
        raise CorruptLog(f"a {frame.kind.label} has no place at this position", position=frame.position)
    try:
        check_payload(frame.payload, len(frame.bulk))
    except InvalidEvent as error:
        raise CorruptLog(
            f"a {frame.kind.label} event does not hold together: {error.problem}", position=frame.position
        ) from error
    return Held(frame, follow)


def _is_lost_by(frame: EventFrame, position: int) -> bool:
    """Whether it is the record of an epoch before which the log ended below `position`."""
    return isinstance(frame.payload, Epoch) and frame.payload.previous_end < position < frame.position


def _ahead(message: Demoted) -> EventLost:
    """The broker has sequenced less than we have: nothing that it says or sends can be told from what we had."""
    return EventLost(
        f"the log ends at {show(message.accepted)}, and had {show(message.after)} before: it is an older copy, or another log",
        position=message.after,
        remedy="Make another replica to follow this log",
    )
