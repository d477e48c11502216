"""The state of a partition: all that its owner must know to sequence the next event, and all that a base holds.

There is one way into it, `apply`: events as they are sequenced, records as they are read back. So a restart, which is
decode plus `apply`, ends in the same state.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from ..consistency.epochs import REMEMBERED_EPOCHS, EpochEnds
from ..consistency.position import epoch_of, show
from ..consistency.vector import EMPTY
from ..errors import CorruptLog, EventLost, InvalidEvent
from ..events.codec import Buffer, EventFrame, Head, decode_vector, encode_vector
from ..events.kinds import (
    CHANGING_KINDS,
    WEIGHT_KINDS,
    Chunk,
    Commit,
    Delete,
    DenseGradients,
    Epoch,
    Note,
    Part,
    Put,
    Table,
)
from ..events.validate import check_payload, put_values
from ..transport.calls import LastEvent
from .dense import DenseState


class Tenure(msgspec.Struct, array_like=True, frozen=True):
    """What the epoch record of `epoch` says of the log it was written to."""

    epoch: int
    boot: str = ""
    failed_writes: int = 0
    left: bool = False
    """Its owner gave the partition up: the log has all that was ever accepted in it."""


class SessionState(msgspec.Struct, array_like=True):
    """The last event of a producer name that stands, and what its session has no answers of.

    `source` is the last one that the name ever gave: a processor's task goes on from it, whatever its incarnation.
    """

    incarnation: int
    sequence: int
    position: int
    own: bytes
    observed: bytes
    source: tuple[int, int] | None = None
    unconfirmed: dict[int, int] = {}
    """sequence → position of events of this incarnation, until the session confirms them."""

    def last_event(self) -> LastEvent:
        return LastEvent(self.incarnation, self.sequence, self.position, self.own, self.observed, self.source)


class PartitionState(msgspec.Struct, array_like=True):
    """Mutable; changed by `apply` and `forget` only. `entries` is used in `__meta` alone."""

    position: int = 0
    """Of the last record applied, an event or an epoch record."""
    time: int = 0
    """Stamp of the last record applied, ns since 1970."""
    ends: list[tuple[int, int]] = []
    """(epoch, end position) of finished epochs, oldest first."""
    tenures: list[Tenure] = []
    """Of the last thousand epochs, oldest first, the present one among them."""
    sessions: dict[str, SessionState] = {}
    tables: dict[str, Table] = {}
    dense: DenseState = msgspec.field(default_factory=DenseState)
    entries: dict[bytes, bytes] = {}
    start: int = 0
    """The log's start as far as `forget` was told."""
    left: int = 0
    """The position of the last note by which an owner gave the partition up."""
    passive: int = 0
    """Of the last record before the first one that changes what a replica holds: up to here its state is empty."""
    inputs: int = 0
    """The position of the last event that is for processors only."""

    def apply(self, frame: EventFrame, registry: bool = False) -> None:
        """Take in a stamped record that counts. `registry`: puts and deletes are entries to keep (`__meta`)."""
        payload = frame.payload
        if self.passive == self.position and frame.kind not in CHANGING_KINDS:
            self.passive = frame.position
        self.position, self.time = frame.position, frame.time
        match payload:
            case Epoch():
                self._open_epoch(frame.position, payload)
            case Table():
                self.tables[payload.table] = payload
            case Commit():
                self.dense.apply(frame.head, payload, frame.position, frame.time, self._context())
            case Chunk() | Part():
                self.dense.apply(frame.head, payload, frame.position, frame.time)
            case Put() if registry:
                self.entries.update((item.key, bytes(value)) for item, value in put_values(payload, frame.bulk))
            case Delete() if registry:
                for key in payload.keys:
                    self.entries.pop(key, None)
            case DenseGradients():
                self.inputs = frame.position
            case Note(leaves=True):
                self.left = frame.position
            case _:
                pass
        if frame.head.producer:
            self._take(frame.head, frame.position)

    def replay(self, record: EventFrame, registry: bool = False) -> None:
        """As `apply`, of a record that was read back. Raises `CorruptLog` where it does not go with what stands before it."""
        try:
            if record.kind in WEIGHT_KINDS:
                check_payload(record.payload, len(record.bulk))
            self.apply(record, registry)
        except (InvalidEvent, EventLost) as error:
            raise CorruptLog(
                f"a {record.kind.label} does not go with the log before it: {error}",
                partition=record.partition,
                position=record.position,
            ) from error

    def forget(self, start: int, joined: Collection[str] = ()) -> None:
        """The log now begins after `start`: drop what lies before.

        A name that a processor may ask for again is kept, and so are `joined` ones: a live session goes on from its last
        event, however old that is.
        """
        self.start = max(self.start, start)
        self.sessions = {
            name: session
            for name, session in self.sessions.items()
            if session.position > self.start or session.source is not None or name in joined
        }
        self.dense.forget(self.start)

    def tenure(self, epoch: int) -> Tenure | None:
        return next((tenure for tenure in reversed(self.tenures) if tenure.epoch == epoch), None)

    def encode(self) -> bytes:
        return _encoder.encode(self)

    @classmethod
    def decode(cls, data: Buffer, position: int) -> PartitionState:
        """The state that `encode` wrote in a base at `position`. Raises `CorruptLog` where it is none."""
        try:
            state = _decoder.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise CorruptLog(f"a base at {show(position)} cannot be decoded: {error}", position=position) from error
        if state.position != position:
            raise CorruptLog(f"a base at {show(position)} holds the state at {show(state.position)}", position=position)
        return state

    def ended(self, end: int) -> None:
        """The epoch of `end` is over, and what lies above that in it is lost."""
        ends = EpochEnds(self.ends)
        ends.add(end)
        self.ends = ends.pairs()

    def _open_epoch(self, at: int, record: Epoch) -> None:
        if record.previous_end:
            self.ended(record.previous_end)
            if record.previous_end == self.left and self.tenures:
                self.tenures[-1] = msgspec.structs.replace(self.tenures[-1], left=True)
        self.tenures.append(Tenure(epoch_of(at), record.boot, record.failed_writes))
        del self.tenures[:-REMEMBERED_EPOCHS]

    def _context(self) -> bytes:
        """What all events so far rest on. A session's vectors only grow, so its last event's stand for all of them; those of
        names that were forgotten are in what the version before knew.
        """
        context = decode_vector(self.dense.sealed[-1].context) if self.dense.sealed else EMPTY
        for session in self.sessions.values():
            context = context.merge(decode_vector(session.own)).merge(decode_vector(session.observed))
        return encode_vector(context)

    def _take(self, head: Head, at: int) -> None:
        session = self.sessions.get(head.producer)
        if session is None or session.incarnation != head.incarnation:
            source = head.source or (session.source if session is not None else None)
            self.sessions[head.producer] = SessionState(
                head.incarnation, head.sequence, at, head.own, head.observed, source, {head.sequence: at}
            )
            return
        session.sequence, session.position = head.sequence, at
        session.own, session.observed = head.own, head.observed
        session.source = head.source or session.source
        unconfirmed = session.unconfirmed
        unconfirmed[head.sequence] = at
        # Sequences go up, so those that are confirmed stand first.
        while (first := next(iter(unconfirmed))) <= head.confirmed:
            del unconfirmed[first]
            if not unconfirmed:
                break


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PartitionState)
