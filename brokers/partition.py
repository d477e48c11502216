"""The partition core: gives every event its position, and turns down what must not have one.

It does no I/O: frames, the time (`monotonic_ns`, and the clock where an epoch opens) and nonces come in, effects go out, in
the order in which they must be done. One instance lives for one start of the broker:

    core.recover(base, records)     what stands, from the log
    core.claim(...)                 the shell appends it (and, where brokers share a log, rereads up to it)
    core.open(...)                  the epoch record and a base; the shell does the effects and syncs
    core.join / sequence / write    while the broker lives
    core.synced(position)           whenever the log has everything up to a position for good

Answers to joins and calls wait until the log has `answers_wait_for` for good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..consistency.epochs import EpochEnds
from ..consistency.position import MAX_OFFSET, epoch_of, next_epoch, offset_of, position, show
from ..consistency.vector import PartitionId
from ..errors import EventLost, InvalidEvent, OutcomeUnknown, ParamstreamError, StorageFull, VersionConflict
from ..events.codec import Buffer, EventFrame, decode_event, encode_event, stamp_frame
from ..events.kinds import LOG_ONLY_KINDS, Base, Commit, Epoch, Payload, Table
from ..transport.calls import (
    JoinedPartition,
    PartitionRecord,
    PrepareCommit,
    PreparedCommit,
    Unconfirmed,
    VersionRecord,
)
from ..transport.messages import Heads, Refused
from .answers import ack, fenced, other_epoch, refused
from .checks import Role, check_event
from .effects import Answer, Append, Effect, FanOut, Origin
from .meta import MetaState
from .retention import Lease, LogUse, lowest_needed
from .state import PartitionState, SessionState, Tenure
from .takeover import OWNER, base_record, claim_record, epoch_record, may_resend

Persistence = Literal["none", "write_back", "write_through"]


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """What the topic says of this partition."""

    role: Role
    persistence: Persistence
    retain_versions: int = 8
    topic_name: str = ""
    """For errors only."""


class PartitionCore:
    """Sequences one partition. Not thread-safe: the shell calls it from one thread, or under one lock."""

    def __init__(self, partition: PartitionId, settings: PartitionSettings) -> None:
        self.partition = partition
        self.settings = settings
        self.state = PartitionState()
        self._tenure = Tenure(0)
        self._nonce = 0
        self._owner = ""
        self._is_open = False
        self._joined: dict[str, tuple[int, int]] = {}
        """Producer name → the incarnation that joined it in this epoch, and the serial of the connection it came over."""
        self._time_shift = 0
        """Added to monotonic time it gives the partition's time."""
        self._opened_ns = 0
        self._durable = 0
        self._record, self._before = 0, 0
        """Where this epoch begins, and the last position before it."""
        self._waiting: deque[tuple[int, Answer | FanOut]] = deque()
        """What goes out once its position is accepted: under `write_through`, and where the epoch only `begins`."""
        self._through = settings.persistence == "write_through"
        self._lasting = settings.persistence != "none"

    # --- taking over ---

    def recover(self, base: EventFrame | None, records: Iterable[EventFrame]) -> None:
        """Take in what the log holds: the newest base that counts, then the records behind it, in order.

        All of it is durable: recovery syncs what it keeps. Raises `CorruptLog` where the base cannot be decoded.
        """
        assert not self._is_open and self.state.position == 0
        if base is not None:
            assert isinstance(base.payload, Base)
            self.state = PartitionState.decode(base.bulk, base.position)
        self.reread(records)

    def recover_epochs(self, records: Iterable[EventFrame]) -> list[EventFrame]:
        """`recover` under "none": of epoch records, returns those that readers are to find.

        Where offsets ran out, an owner has opened an epoch that goes on behind the events of the one before. With its memory those
        are gone, and that epoch with them: it ends at its record, which names an end that nobody can come to any more.
        """
        standing: list[EventFrame] = []
        for record in records:
            if isinstance(record.payload, Epoch) and offset_of(record.payload.previous_end):
                self.state.ended(position(epoch_of(record.payload.previous_end), 0))
                self.state.ended(record.position)
            else:
                self.reread([record])
                standing.append(record)
        return standing

    def claim(self, last_claim: int, clock_s: float, nonce: int, owner: str) -> bytearray:
        """The claim to append: its epoch is above `last_claim` (the greatest ever in the log) and all that stands."""
        epoch = next_epoch(max(last_claim, epoch_of(self.state.position)), clock_s)
        self._tenure, self._nonce, self._owner = Tenure(epoch), nonce, owner
        return claim_record(self.partition, epoch, nonce, owner)

    def reread(self, records: Iterable[EventFrame]) -> None:
        """Take in what an owner before this one still wrote, until the claim stood: `PartitionLog.claim` gives it."""
        assert not self._is_open
        for record in records:
            if record.kind not in LOG_ONLY_KINDS:
                self.state.replay(record, registry=self.settings.role == "meta")
        self._durable = self.state.position

    def open(self, clock_ns: int, monotonic_ns: int, boot: str, failed_writes: int) -> list[Effect]:
        """Open the claimed epoch: its record, which names where the epoch before ended, then a base.

        `clock_ns`: ns since 1970. The partition's time goes on from the greater of it and the last stamp. The shell does
        the effects and syncs before it takes events.
        """
        self._time_shift = max(clock_ns, self.state.time) - monotonic_ns
        self._tenure = Tenure(self._tenure.epoch, boot, failed_writes)
        self._is_open = True
        return self._open_epoch(monotonic_ns)

    def base(self) -> bytearray:
        """A stamped base of the whole state, to be appended behind all that was returned to append before it."""
        return base_record(self.partition, self.state, self.epoch, self._nonce)

    # --- sessions ---

    def join(self, name: str, incarnation: int, unconfirmed: Unconfirmed | None, serial: int) -> JoinedPartition:
        """Let an incarnation of `name` write in this epoch, and fence the older ones. Joining again changes nothing.

        From here on its events count over the connection `serial` alone: what still comes over an older one, which the
        session has left, is passed over. The caller has checked that `incarnation` is the newest in `__meta`. The answer goes
        out once the log has `answers_wait_for` for good. Raises `Fenced` where a newer one has joined or written,
        `OutcomeUnknown` over a connection that the session has left.
        """
        session = self.state.sessions.get(name)
        joined, joined_over = self._joined.get(name, (0, 0))
        newest = max(joined, session.incarnation if session else 0)
        if incarnation < newest:
            raise self._about(fenced(name, incarnation, newest))
        if incarnation == joined and serial < joined_over:
            raise self._about(OutcomeUnknown("the session has joined over a newer connection"))
        self._joined[name] = incarnation, serial
        own = session if session is not None and session.incarnation == incarnation else None
        sent = unconfirmed.sequences if unconfirmed else ()
        state = self.state
        return JoinedPartition(
            topic=self.partition[0],
            partition=self.partition[1],
            epoch=self.epoch,
            last=session.last_event() if session else None,
            last_sequence=own.sequence if own else 0,
            positions=tuple((s, own.unconfirmed[s]) for s in sent if s in own.unconfirmed) if own else (),
            resend=unconfirmed is not None and may_resend(state, self._tenure, self.settings.persistence, unconfirmed),
            ends=tuple(state.ends),
            accepted=self.accepted,
            durable=self.durable,
            tables=tuple(state.tables.values()),
            schema=state.dense.schema,
            sealed=state.dense.lineage(),
        )

    def leave(self, name: str, incarnation: int) -> None:
        """The session has closed: its events are taken no more. What it wrote, and what it did not confirm, is kept."""
        if self.has_joined(name, incarnation):
            del self._joined[name]

    def part_all(self) -> None:
        """Every session joins again before anything more of it is taken."""
        self._joined.clear()

    def names(self) -> set[str]:
        """The producer names that the partition knows: it holds an event of theirs, or they have joined it."""
        return {*self.state.sessions, *self._joined}

    def has_joined(self, name: str, incarnation: int) -> bool:
        return name in self._joined and self._joined[name][0] == incarnation

    # --- events ---

    def sequence(self, frame: EventFrame, origin: Origin, monotonic_ns: int, log_has_room: bool) -> list[Effect]:
        """A session's event, its checksums proved: `frame.buffer` (writable) is stamped in place if it is accepted.

        A refused event changes nothing. A repeat is answered with its position. What comes over a connection that the session
        has left has no effect at all: it may have gone again over the newer one, and been refused there.
        """
        head, peer = frame.head, origin.peer
        joined, joined_over = self._joined.get(head.producer, (0, 0))
        if head.incarnation == joined and origin.serial < joined_over:
            return []
        session = self.state.sessions.get(head.producer)
        own = session if session is not None and session.incarnation == head.incarnation else None
        last = own.sequence if own else 0
        turned_down = self._check_session(frame, session, last)
        if turned_down is not None:
            return [Answer(peer, turned_down)]
        if own is not None and head.sequence <= last:
            return self._repeat(frame, own, peer)
        if head.previous != last:
            problem = f"event {head.sequence} follows on {head.previous}, the last one that stands is {last}"
            return [Answer(peer, self._refuse(frame, last, OutcomeUnknown(problem, remedy="It goes again"), gap=True))]
        if offset_of(self.state.position) == MAX_OFFSET:
            return [
                *self._next_epoch(monotonic_ns),
                Answer(peer, self._refuse(frame, last, other_epoch(frame, self.epoch), rejoin=True)),
            ]
        try:
            if isinstance(frame.payload, Commit):
                sealed = self.state.dense.sealed_before(frame.payload)
                if sealed is not None:
                    return self._sealed_before(frame, last, sealed.position, peer)
            check_event(frame, self.settings.role, self.state)
            if not log_has_room:
                raise StorageFull(
                    "the broker's log is at its limit",
                    remedy="Raise log_limit, or let replicas and processors catch up",
                )
        except ParamstreamError as error:
            return [Answer(peer, self._refuse(frame, last, error))]
        at = self._take(frame, monotonic_ns)
        return self._accept(frame.buffer, at, Answer(peer, ack(frame, at)))

    def write(self, payload: Payload, bulk: Sequence[Buffer], monotonic_ns: int) -> list[Effect]:
        """The owner's own event: entries of `__meta`, definitions of tables, notes. Its position is `sequenced` then.

        Raises `InvalidEvent` where it is larger than an event may be.
        """
        frame = encode_event(self.partition, OWNER, payload, bulk)
        effects = self._next_epoch(monotonic_ns) if offset_of(self.state.position) == MAX_OFFSET else []
        at = self._take(decode_event(frame), monotonic_ns)
        return effects + self._accept(frame, at, None)

    def synced(self, position: int) -> list[Effect]:
        """The log that lasts has everything up to `position` for good. Answers and fan-out that waited for it come now."""
        assert position <= self.state.position, "the log cannot be ahead of its owner"
        self._durable = max(self._durable, position)
        released: list[Effect] = []
        while self._waiting and self._waiting[0][0] <= self.accepted:
            released.append(self._waiting.popleft()[1])
        return released

    def trimmed(self, start: int) -> None:
        """The log begins after `start` now: names, parts and versions that lie before it are forgotten."""
        self.state.forget(start, self._joined)

    # --- where it stands ---

    @property
    def epoch(self) -> int:
        return self._tenure.epoch

    @property
    def sequenced(self) -> int:
        """The position of the last record made: appended to the log, accepted or still to be (`write_through`)."""
        return self.state.position

    @property
    def accepted(self) -> int:
        if self._through:
            return self._durable
        return self._before if self.begins else self.state.position

    @property
    def durable(self) -> int:
        """Under "none" accepted stands for durable, while the epoch lasts."""
        return self._durable if self._lasting else self.accepted

    @property
    def begins(self) -> bool:
        """The log does not have the epoch's beginning for good: nobody sees anything of it yet, whatever the persistence. A power
        failure would take it back; where the clock has been set back its positions are given again then, or never come.
        """
        return self._durable < self._record

    @property
    def answers_wait_for(self) -> int:
        """An answer to a join or call made now goes out once the log has this position for good (`synced`)."""
        return self.state.position if self._through else position(self.epoch, 0)

    @property
    def ends(self) -> tuple[tuple[int, int], ...]:
        """(epoch, end position) of finished epochs, oldest first: of those that ended for good."""
        return tuple(each for each in self.state.ends if each[1] < self._before or not self.begins)

    def time(self, monotonic_ns: int) -> int:
        """The partition's time, ns since 1970: steady, never before the last stamp."""
        return max(self._time_shift + monotonic_ns, self.state.time)

    def heads(self, monotonic_ns: int) -> Heads:
        """As a heartbeat carries them; `sent` is the shell's to fill in."""
        return Heads(*self.partition, self.accepted, self.durable, 0, self.time(monotonic_ns))

    def table(self, name: str) -> Table | None:
        """The definition of a table as this partition has it."""
        return self.state.tables.get(name)

    @property
    def meta(self) -> MetaState:
        """What `__meta` says, of its own partition only."""
        assert self.settings.role == "meta"
        return MetaState(self.state.entries, self.epoch)

    def trim_floor(self, leases: Iterable[Lease], use: LogUse, monotonic_ns: int, copied: int = 0) -> int:
        """The log may be cut below this position (`PartitionLog.cut`), and `trimmed` told what was."""
        opened_s_ago = (monotonic_ns - self._opened_ns) / 1e9
        retained = self.settings.retain_versions
        state = self.state
        has_inputs = self._lasting and state.inputs > state.start  # Under "none" no processor takes them.
        return lowest_needed(
            self.settings.role, state.dense, state.position, self.durable, retained, leases, use, opened_s_ago,
            max(copied, state.passive) if state.inputs else copied, has_inputs=has_inputs,
        )  # fmt: skip

    def prepare_commit(self, call: PrepareCommit) -> PreparedCommit:
        """What a commit of these parts must say. Raises what it would be refused with; changes nothing."""
        try:
            return self.state.dense.prepare(call.version, call.parts, call.schema, call.rewind)
        except ParamstreamError as error:
            raise self._about(error) from None

    def is_lost(self, position: int) -> bool:
        """Above its epoch's end, or above all that was ever sequenced here."""
        return position > self.state.position or EpochEnds(self.state.ends).is_lost(position)

    def versions(self, commit: int = 0) -> list[VersionRecord]:
        """The sealed versions that are known, oldest first; with `commit` the one sealed there, with its context."""
        found = self.state.dense.versions(self.settings.retain_versions, self.state.start, contexts=commit != 0)
        return [version for version in found if commit in (0, version.position)]

    def describe(self, log_start: int, monotonic_ns: int) -> PartitionRecord:
        """`log_start`: the position before the first one that the log still holds."""
        dense = self.state.dense
        newest = dense.newest(self.durable)
        at = newest.position if newest is not None else 0
        needed = [sealed.first for sealed in dense.sealed if sealed.position >= at]
        if (staged := dense.open_from()) is not None:
            needed.append(staged)
        # What is not durable may be lost: nobody may pass it, or begin behind it.
        latest_start = min(min(needed) - 1, self.durable) if needed else 0
        return PartitionRecord(
            topic=self.partition[0],
            partition=self.partition[1],
            epoch=self.epoch,
            start=log_start,
            accepted=self.accepted,
            durable=self.durable,
            latest_start=max(log_start, latest_start),
            ends=self.ends,
            time=self.time(monotonic_ns),
            latest=at,
            context=newest.context if newest is not None else b"",
            rewinds=tuple(dense.rewinds),
            passive=self.state.passive,
        )

    # --- inside ---

    def _open_epoch(self, monotonic_ns: int) -> list[Effect]:
        """The claimed epoch's record and a base. Joins of the epoch before are over."""
        time, end = self.time(monotonic_ns), self.state.position
        self._opened_ns, self._before = monotonic_ns, end
        record = epoch_record(self.partition, self._tenure, end, time, self._nonce)
        self.state.apply(decode_event(record))
        self._joined.clear()
        at = self._record = self.state.position
        effects: list[Effect] = [Append(record, at)]
        effects += self._when_accepted(at, FanOut(record, at))
        effects.append(Append(self.base(), at, self._lasting))
        return effects

    def _next_epoch(self, monotonic_ns: int) -> list[Effect]:
        """All offsets are used: claim and open the next epoch; every session joins again."""
        epoch = next_epoch(self.epoch, self.time(monotonic_ns) / 1e9)
        self._tenure = Tenure(epoch, self._tenure.boot, self._tenure.failed_writes)
        claim = claim_record(self.partition, epoch, self._nonce, self._owner)
        return [Append(claim, self.state.position), *self._open_epoch(monotonic_ns)]

    def _take(self, frame: EventFrame, monotonic_ns: int) -> int:
        """Give the event the next position: stamp its buffer, and take it into the state."""
        assert self._is_open
        at, time = self.state.position + 1, self.time(monotonic_ns)
        stamp_frame(frame.buffer, position=at, time=time, nonce=self._nonce)
        stamped = EventFrame(
            frame.kind, frame.topic, frame.partition, self._nonce, at, time,
            frame.head, frame.payload, frame.bulk, frame.buffer,
        )  # fmt: skip
        self.state.apply(stamped, registry=self.settings.role == "meta")
        return at

    def _accept(self, frame: Buffer, at: int, answer: Answer | None) -> list[Effect]:
        effects: list[Effect] = [Append(frame, at, self._lasting)]
        if answer is not None:
            effects += self._when_accepted(at, answer)
        effects += self._when_accepted(at, FanOut(frame, at))
        return effects

    def _when_accepted(self, at: int, effect: Answer | FanOut) -> list[Effect]:
        """The effect now, or kept until `at` is accepted."""
        if at <= self.accepted:
            return [effect]
        # The answer to a repeat may wait behind later positions than its own, and then goes out with those.
        self._waiting.append((at, effect))
        return []

    def _check_session(self, frame: EventFrame, session: SessionState | None, last: int) -> Refused | None:
        """Whether this session may write here and now; None if it may."""
        head = frame.head
        joined, _ = self._joined.get(head.producer, (0, 0))
        newest = max(joined, session.incarnation if session else 0)
        if head.incarnation < newest:
            return self._refuse(frame, last, fenced(head.producer, head.incarnation, newest))
        if not head.producer or not 0 <= head.confirmed < head.sequence:
            problem = f"an event {head.sequence} of {head.producer!r} that confirms {head.confirmed} is not possible"
            return self._refuse(frame, last, InvalidEvent(problem))
        if head.joined_epoch != self.epoch:
            return self._refuse(frame, last, other_epoch(frame, self.epoch), rejoin=True)
        if joined != head.incarnation:
            return self._refuse(frame, last, fenced(head.producer, head.incarnation, joined))
        return None

    def _repeat(self, frame: EventFrame, own: SessionState, peer: bytes) -> list[Effect]:
        at = own.unconfirmed.get(frame.head.sequence)
        if at is None:
            # Confirmed before, or passed over: the session has had its outcome, and a later event took its place.
            problem = f"event {frame.head.sequence} comes after event {own.sequence}, and its position is not kept"
            return [Answer(peer, self._refuse(frame, own.sequence, EventLost(problem)))]
        return self._when_accepted(at, Answer(peer, ack(frame, at)))

    def _sealed_before(self, frame: EventFrame, last: int, at: int, peer: bytes) -> list[Effect]:
        """The same version with the same digest stands at `at`: that is this commit's outcome too."""
        error = VersionConflict(f"the version is sealed already, at {show(at)}, with the same digest", position=at)
        return self._when_accepted(at, Answer(peer, self._refuse(frame, last, error, at=at)))

    def _refuse(
        self,
        frame: EventFrame,
        last: int,
        error: ParamstreamError,
        *,
        gap: bool = False,
        rejoin: bool = False,
        at: int = 0,
    ) -> Refused:
        return refused(frame, last, self._about(error), gap=gap, rejoin=rejoin, at=at)

    def _about(self, error: ParamstreamError) -> ParamstreamError:
        """The error, naming this partition."""
        error.topic = error.topic or self.settings.topic_name or None
        error.partition = self.partition[1]
        return error
