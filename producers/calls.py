"""What a session keeps of the calls made on it: plain data that the core moves through their outcomes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ..consistency.vector import EMPTY, PartitionId, VersionVector
from ..errors import ParamstreamError
from ..events.codec import Buffer
from ..events.kinds import PartRef, Payload, Put, TensorSpec

HEAD_ESTIMATE_BYTES = 256
"""Prefix and head of a frame without its vectors, for the byte window."""


@dataclass(slots=True)
class Draft:
    """An event before it has a sequence. `bulk` may still be the caller's memory; `keep` makes it ours."""

    partition: PartitionId
    payload: Payload
    bulk: tuple[Buffer, ...] = ()
    nbytes: int = 0
    """About what the event's frame will take."""
    source: tuple[int, int] | None = None
    owned: bool = False
    """`bulk` is no longer the caller's memory."""

    @classmethod
    def of(cls, partition: PartitionId, payload: Payload, bulk: tuple[Buffer, ...], meta_nbytes: int) -> Draft:
        nbytes = sum(len(piece) for piece in bulk) + meta_nbytes + HEAD_ESTIMATE_BYTES
        return cls(partition, payload, bulk, nbytes)

    def keep(self) -> None:
        """Copy what may still be the caller's memory."""
        if not self.owned:
            self.bulk, self.owned = tuple(bytes(piece) for piece in self.bulk), True


class Call:
    """One call of a user and its outcome: one event or many, or a share of an event that several calls were joined to."""

    __slots__ = (
        "accepted", "again", "awaiting", "drafts", "durable", "error", "final", "listener", "observed", "open", "own", "partitions",
        "parts", "persistence", "positions", "renewals", "schema", "serial", "started", "unknown", "unsettled", "version", "whole",
        "written",
    )  # fmt: skip

    def __init__(
        self,
        partitions: tuple[PartitionId, ...],
        persistence: str,
        *,
        whole: bool = False,
        version: int | None = None,
        schema: tuple[TensorSpec, ...] | None = None,
    ) -> None:
        self.partitions = partitions
        """Every partition that an event of this call goes to."""
        self.persistence = persistence
        self.whole = whole
        """All or nothing: once an event of it is refused or lost, what is left of it is not sent."""
        self.version = version
        self.schema = schema
        """Of a publish that seals: what the topic's schema is once its commit is accepted."""
        self.parts: tuple[PartRef, ...] = ()
        """Of a publish that does not seal: the parts that a commit may name."""
        self.serial = 0
        self.open = True
        """More events may come."""
        self.started = False
        """Rule 1 lets its events go."""
        self.drafts: deque[Draft] = deque()
        self.unsettled = 0
        """Events (drafts too) without an answer."""
        self.awaiting = 0
        """Events that are accepted and not known durable."""
        self.unknown = False
        """The connection went while an event of it was on the wire; the next join settles it."""
        self.accepted = False
        self.durable = False
        self.final = False
        """Nothing about it changes any more."""
        self.error: ParamstreamError | None = None
        self.positions: dict[PartitionId, int] = {}
        """The greatest position that it wrote in each partition."""
        self.own: VersionVector[int] = EMPTY
        self.observed: VersionVector[int] = EMPTY
        """The vectors of its last event; with `positions` they give the closed vector."""
        self.again = False
        """What is lost of it goes again as new events."""
        self.renewals = 0
        """How many of its events have gone again: what was said of its positions before that holds no more."""
        self.written = False
        """Its receipt was written as text, which names its events as they are: they do not go again."""
        self.listener: Callable[[], None] | None = None
        """Called by the session after a change of outcome; set once somebody asks for a future."""

    @property
    def joinable(self) -> bool:
        """A separate put, which may share an event with its neighbours."""
        return not self.open and len(self.drafts) == 1 and type(self.drafts[0].payload) is Put and not self.whole

    @property
    def given_up(self) -> bool:
        """All or nothing, and it failed: nothing more of it is sent."""
        return self.whole and self.error is not None

    def vector(self) -> VersionVector[int]:
        """Closed: what the call wrote, and everything that its events depend on."""
        return self.own.merge(self.observed).merge(self.positions)

    def outcome(self) -> str:
        if self.error is not None:
            return {"EventLost": "lost", "OutcomeUnknown": "unknown"}.get(self.error.code, "refused")
        if self.durable:
            return "durable"
        if self.accepted:
            return "accepted"
        return "unknown" if self.unknown else "pending"


class Event:
    """An event with its sequence, until it is answered."""

    __slots__ = (
        "bulk", "calls", "is_awaited", "nbytes", "on_wire", "owned", "partition", "payload", "position", "refused", "sends",
        "sequence", "source", "turn",
    )  # fmt: skip

    def __init__(self, sequence: int, draft: Draft, calls: list[Call]) -> None:
        self.sequence = sequence
        self.partition = draft.partition
        self.payload = draft.payload
        self.bulk = draft.bulk
        self.owned = draft.owned
        self.nbytes = draft.nbytes
        """What it takes of the window until it is answered."""
        self.source = draft.source
        self.calls = calls
        self.sends = 0
        """How often it was put on the wire, of this connection or an older one."""
        self.on_wire = False
        """The present connection took it and owes its answer; otherwise it still has to go."""
        self.refused = False
        """It was refused for its epoch; with one send, nobody can have seen it."""
        self.position = 0
        """Where it was accepted."""
        self.is_awaited = False
        """It is accepted, not known durable, and kept: it takes of the window as if it had no answer."""
        self.turn = 0
        """Grows from event to event of a session; an event that goes again has its first one's."""

    def keep(self) -> None:
        """Copy what may still be the caller's memory."""
        if not self.owned:
            self.bulk, self.owned = tuple(bytes(piece) for piece in self.bulk), True

    def draft(self) -> Draft:
        """The event before it had a sequence. Its bytes are the event's own."""
        assert self.owned
        return Draft(self.partition, self.payload, self.bulk, self.nbytes, self.source, owned=True)

    @property
    def may_be_seen(self) -> bool:
        """It was sent, and nothing says that it was not accepted."""
        return self.sends > 1 or (self.sends == 1 and not self.refused)

    @property
    def is_partial(self) -> bool:
        """More events of its call are to come, or to be answered."""
        return any(call.open or call.unsettled for call in self.calls)

    @property
    def given_up(self) -> bool:
        """What is left of an all-or-nothing call that failed."""
        return all(call.given_up for call in self.calls)
