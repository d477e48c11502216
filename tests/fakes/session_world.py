"""A session core and a partition owner with a wire between them that the test moves by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from paramstream.consistency.vector import PartitionId
from paramstream.events.codec import EventFrame, decode_event
from paramstream.events.kinds import Put, PutItem
from paramstream.producers.calls import Call, Draft
from paramstream.producers.effects import Dropped, Effect, FencedOut, JoinAgain, Send, Settled
from paramstream.producers.session_core import SessionCore
from paramstream.transport.calls import Join, Joined
from paramstream.transport.messages import Ack, Heartbeat, Refused

from .partition_owner import PartitionOwner


def put_draft(partition: PartitionId, value: bytes = b"v", key: bytes = b"k") -> Draft:
    return Draft.of(partition, Put((PutItem(key, len(value)),)), (value,), len(key) + 16)


def put_values(event: EventFrame) -> list[bytes]:
    assert isinstance(event.payload, Put)
    found: list[bytes] = []
    at = 0
    for item in event.payload.items:
        found.append(bytes(event.bulk[at : at + item.nbytes]))
        at += item.nbytes
    return found


class World:
    """`sent` keeps every frame in the order of the wire; `up` what has not arrived, `down` answers not yet handed over."""

    def __init__(
        self,
        partitions: Sequence[PartitionId],
        window_bytes: int = 1 << 20,
        *,
        again: bool = False,
        halts: bool = False,
    ) -> None:
        self.owner = PartitionOwner(*partitions)
        self.core = SessionCore("p", self.owner.open("p"), window_bytes, again=again, halts=halts)
        self.up: deque[bytes] = deque()
        self.down: deque[Ack | Refused] = deque()
        self.sent: list[EventFrame] = []
        self.history: dict[int, list[str]] = {}
        """The outcomes that each call was told to have, by serial."""
        self.join_wanted = False
        self.fenced = False
        self.connect()

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(_, frame):
                    self.sent.append(decode_event(bytes(frame)))
                    self.up.append(bytes(frame))
                case Dropped():
                    pass
                case Settled(call):
                    self.history.setdefault(call.serial, []).append(call.outcome())
                case JoinAgain():
                    self.join_wanted = True
                case FencedOut():
                    self.fenced = True

    def put(self, partition: PartitionId, value: bytes = b"v", *, persistence: str = "write_back") -> Call:
        return self.call([put_draft(partition, value)], persistence=persistence)

    def call(self, drafts: Sequence[Draft], *, persistence: str = "write_back", whole: bool = False) -> Call:
        call = Call(tuple(dict.fromkeys(draft.partition for draft in drafts)), persistence, whole=whole)
        self.do(self.core.submit(call, drafts))
        return call

    def arrive(self, count: int | None = None) -> None:
        """Frames reach the owner; their answers are under way."""
        for _ in range(len(self.up) if count is None else min(count, len(self.up))):
            self.down.append(self.owner.offer(self.up.popleft()))

    def answer(self, count: int | None = None) -> None:
        """Answers reach the session, and a join that it asked for is answered."""
        for _ in range(len(self.down) if count is None else min(count, len(self.down))):
            self.take(self.down.popleft())
        if self.join_wanted:
            self.join_wanted = False
            self.join(fresh=False)

    def take(self, message: Ack | Refused) -> None:
        self.do(self.core.acked(message) if isinstance(message, Ack) else self.core.refused(message))

    def settle(self) -> None:
        """Until nothing is under way."""
        while self.up or self.down or self.join_wanted:
            self.arrive()
            self.answer()

    def disconnect(self, arrived: int = 0) -> None:
        """Of what is on the wire `arrived` frames still reach the owner; no answer reaches the session."""
        for _ in range(min(arrived, len(self.up))):
            self.owner.offer(self.up.popleft())
        self.up.clear()
        self.down.clear()
        self.join_wanted = False
        self.do(self.core.disconnected())

    def connect(self) -> None:
        self.join(fresh=True)

    def join(self, *, fresh: bool) -> None:
        self.take_joined(self.owner.join(Join("p", self.core.incarnation, self.core.unconfirmed())), fresh=fresh)

    def take_joined(self, answer: Joined, *, fresh: bool) -> None:
        self.do(self.core.joined(answer, fresh=fresh))

    def sync(self) -> None:
        self.take_heads(self.owner.sync())

    def take_heads(self, message: Heartbeat) -> None:
        self.do(self.core.heads(message))

    def on_wire(self) -> list[tuple[int, int]]:
        """(partition number, sequence) of every frame sent so far."""
        return [(event.partition, event.head.sequence) for event in self.sent]
