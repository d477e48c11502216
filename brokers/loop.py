"""The broker's loop: one thread, one ROUTER, and the cores between them.

It drains what has come, lets the cores decide, does what they say (append, answer, fan out), and at the end of each batch
sends the acks together and hands what was appended to the sync thread. Other threads come in by `posting.py`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec
import zmq

from ..consistency.vector import PartitionId
from ..errors import CorruptLog, Fenced, InvalidEvent, ParamstreamError, UnknownTopic
from ..eventlog.log import PartitionLog
from ..events.codec import MAGIC as EVENT_MAGIC
from ..events.codec import Buffer, EventFrame, decode_event
from ..events.kinds import Kind, Payload
from ..events.limits import MAX_EVENT_BYTES
from ..transport.calls import BrokerRecord
from ..transport.messages import (
    FORMAT,
    Ack,
    Credit,
    Demoted,
    Follow,
    Goodbye,
    Heartbeat,
    Hello,
    Moved,
    Refused,
    Report,
    Request,
    Response,
    Unfollow,
    Welcome,
    decode_message,
    encode_message,
    encode_result,
)
from ..transport.sockets import COPY_THRESHOLD_BYTES, Socket
from ..transport.wire import Message, WireError
from .calls import Calls
from .clients import Clients, fenced
from .effects import Answer, Append, Effect, FanOut, Origin
from .fanout import Send
from .following import MetaReader
from .holding import Holding
from .overview import describe_broker
from .owned import META, Owned
from .owning import Owning
from .partitions import Partitions
from .peers import Peer, client_of
from .pending import Pending, Reply
from .posting import POST_ID, Posting
from .reports import Reports
from .syncing import Syncer
from .topics import Topics
from .trimming import Trimming
from .worker import Worker

_log = logging.getLogger(__name__)

HEARTBEAT_S = 0.5
IDLE_S = 0.05
"""How long a loop with nothing to do sleeps at most: so long a close may take."""

MOVED_S = 0.005
"""A durable head that has moved is told at most this often."""

LOOK_HOLDS_S = 10.0
"""A look at a log's tail is good for so long, where whoever is sent away for it comes back and asks again."""

MAX_BEYOND = 1000
"""Positions that are remembered for it."""

BATCH_MESSAGES = 256

SLACK = 2
"""A session counts its window by what it takes its frames to be: so many times that may wait of it, and no more."""

_REFUSED_UNDECODED = "an undecodable frame was refused"


class Loop:
    """Everything that the broker's one thread does. `run` returns when `closing` is set."""

    def __init__(
        self,
        socket: Socket,
        partitions: Partitions,
        posting: Posting,
        worker: Worker,
        reader: MetaReader | None,
        welcome: Welcome,
        closing: threading.Event,
    ) -> None:
        self._socket = socket
        self._partitions = partitions
        self._posting = posting
        self._welcome = welcome
        self._closing = closing
        self._clients = Clients(socket, partitions)
        self.syncer = Syncer(self._post_synced, self._post_stopped)
        self.holding = Holding(self._log_is_behind)
        self._pending = Pending(partitions.owned, self._is_still_owner)
        self.owning = Owning(partitions, worker, reader, self.holding, self)
        topics = Topics(partitions, self.owning, worker, self._pending, self.write)
        self._reports = Reports()
        self._calls = Calls(
            partitions, self.owning, topics, self._pending, self._reports, self.write, time.monotonic_ns, self._overview
        )
        self._trimming = Trimming(
            partitions, self._clients, self._calls, self._reports, worker, partial(self._end_batch, pressed=True)
        )
        self._acks: dict[tuple[bytes, int, int, int], list[tuple[int, int]]] = {}
        self._appended: set[PartitionId] = set()
        self._appended_bytes = 0
        self._full_segments: set[PartitionId] = set()
        """Closed until all of their segment is synced: then a base begins the next one."""
        self._moved: set[PartitionId] = set()
        self._blocked: list[Owned] = []
        self._beyond: dict[tuple[str | None, int | None, int | None], float] = {}
        """Positions (topic, partition, position) beyond what was sequenced here that events have named, and when the first one did."""
        """Partitions with a follower whose pipe was full."""
        self._stopped: deque[tuple[Owned, ParamstreamError]] = deque()
        """Since the last message."""
        self._next_heartbeat = self._next_moved = 0.0
        self.garbled_frames = 0
        """Frames that were no event and no control frame: counted, answered where that is possible, and dropped."""

    def run(self) -> None:
        while not self._closing.is_set():
            self.turn()
        if self._partitions.log.shared:
            self.owning.leave()
            self._end_batch()
        for peer in self._clients:
            self._clients.send(peer, Goodbye())

    def turn(self) -> None:
        """Wait until there is something to do, for `IDLE_S` at most, and do it."""
        now = time.monotonic()
        wake = min(self._next_heartbeat, now + IDLE_S)
        if self._moved:
            wake = min(wake, self._next_moved)
        if self._blocked or self._clients.have_outboxes or self._pending.is_looking:
            wake = min(wake, now + MOVED_S)
        if self.holding.is_ready:
            wake = now
        if self._socket.poll(max(0, int((wake - now) * 1000) + 1 if wake > now else 0)):
            self._drain()
        for peer, frame in self.holding.ready(BATCH_MESSAGES):
            self._sequence(peer, frame)
            self._let_go_stopped()
        if self._pending.is_looking:
            self._pending.durable_moved()
        self._end_batch()
        self._beat(time.monotonic())
        self._let_go_stopped()

    # --- what comes in ----------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        for _ in range(BATCH_MESSAGES):
            try:
                routing_id, *parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._received(routing_id.bytes, [part.buffer for part in parts])
            self._let_go_stopped()

    def _received(self, routing_id: bytes, parts: list[memoryview]) -> None:
        if routing_id == POST_ID:
            self._posting.run()
            return
        frame, client = parts[0], client_of(routing_id)
        try:
            if len(parts) != 1:
                raise CorruptLog(f"a message of {len(parts)} frames; every frame is a message of its own")
            if bytes(frame[:2]) == EVENT_MAGIC:
                self._event(client, frame)
            else:
                self._control(client, frame)
        except CorruptLog as error:
            self._refuse_garbled(client, error)

    def _event(self, client: bytes, data: memoryview) -> None:
        peer = self._clients.get(client)
        if len(data) > MAX_EVENT_BYTES:
            raise CorruptLog(f"a frame of {len(data)} bytes is over the limit of {MAX_EVENT_BYTES}")
        # A small message shares its memory with its neighbours on the wire; what is kept must not keep those.
        frame = decode_event(bytearray(data) if len(data) < COPY_THRESHOLD_BYTES else data)
        if peer is None:
            return
        if not self.holding.must_wait(frame.partition_id):
            self._sequence(peer, frame)
        elif peer.held_bytes <= SLACK * self._welcome.window_bytes * max(1, len(peer.joined)):
            self.holding.keep(peer, frame)
        else:
            # It keeps to no window, and nothing more is kept of it: its silence tells it to connect again.
            self._clients.forget(peer)

    def _sequence(self, peer: Peer, frame: EventFrame) -> None:
        if not self._clients.has(peer):
            # It was held, and its connection is gone: if its session lives, it has joined over a new one and asks what stands.
            return
        owned = self._partitions.owned.get(frame.partition_id)
        error: ParamstreamError | None = None
        if owned is None or frame.partition_id == META:
            error = self._partitions.absent(frame.partition_id)
        elif owned.error is not None:
            error = owned.error
        else:
            try:
                self._partitions.check_past(frame.head, frame.payload)
            except InvalidEvent as beyond:
                if not self._is_sure(beyond):
                    # Whoever owns by now what the event rests on may have sequenced that. Its session sends it again.
                    self._send_one_away(peer)
                    return
                error = beyond
        if owned is None or error is not None:
            assert error is not None
            self._clients.send(peer, _refusal(frame, error))
            return
        room = self._trimming.has_room(frame.nbytes, is_input=frame.kind is Kind.DENSE_GRADIENTS)
        now_ns = time.monotonic_ns()
        if frame.head.incarnation in peer.joined:
            peer.wrote_ns[frame.head.incarnation] = now_ns
        effects = owned.core.sequence(frame, Origin(peer.address, peer.serial), now_ns, room)
        if not self._perform(owned, effects) and owned.error is not None and not isinstance(owned.error, Fenced):
            # The log does not have it, and nobody has seen it.
            self._flush_acks()
            self._clients.send(peer, _refusal(frame, owned.error))

    def _control(self, client: bytes, frame: memoryview) -> None:
        message = decode_message(frame)
        if isinstance(message, Hello):
            self._hello(client, message)
            return
        peer = self._clients.get(client)
        if peer is None:
            return
        match message:
            case Request():
                self._request(peer, message)
            case Follow():
                self._follow(peer, message)
            case Credit():
                owned = self._partitions.owned.get((message.topic, message.partition))
                if owned is not None:
                    self._send_all(owned, owned.fanout.credit(peer.address, message.consumed_bytes))
            case Unfollow():
                self._clients.unfollow(peer, (message.topic, message.partition))
            case Report():
                self._reports.take(message)
            case Goodbye():
                self._clients.forget(peer)
            case _:
                raise CorruptLog(f"a {type(message).__name__} is not for this socket of a broker")

    def _refuse_garbled(self, client: bytes, error: CorruptLog) -> None:
        self.garbled_frames += 1
        peer = self._clients.get(client)
        if peer is not None:
            refusal = InvalidEvent(f"{_REFUSED_UNDECODED}: {error.problem}")
            self._clients.send(peer, Refused(0, 0, 0, 0, 0, WireError.of(refusal)))

    # --- peers --------------------------------------------------------------------------------------------------------------

    def _hello(self, client: bytes, hello: Hello) -> None:
        if hello.format != FORMAT or self._clients.are_full:
            self.garbled_frames += 1
            return
        self._clients.keep_waiting(client, hello)
        self.owning.when_settled(self._greet)

    def _greet(self) -> None:
        """All partitions of this generation are open: whoever waits for that is welcome."""
        ownership = self._partitions.ownership
        welcome = msgspec.structs.replace(self._welcome, generation=ownership.generation, owners=ownership.owners)
        for client, hello in self._clients.waiting():
            self._clients.welcome(client, hello, welcome)

    def send_away(self) -> None:
        """All clients connect anew: what this broker owns, or others do, has changed."""
        for peer in self._clients:
            self._send_one_away(peer)

    def _send_one_away(self, peer: Peer) -> None:
        self._flush_acks()
        self._clients.send(peer, Moved())
        self._clients.forget(peer)

    # --- requests -------------------------------------------------------------------------------------------------------------

    def _request(self, peer: Peer, request: Request) -> None:
        def send(result: object, error: ParamstreamError | None = None) -> None:
            # Whoever connected anew awaits nothing of before; and what it was promised may have gone over to another broker.
            if self._clients.has(peer):
                wire = None if error is None else WireError.of(error)
                self._clients.send(peer, Response(request.id, encode_result(result), wire))

        self._calls.take(peer, request.call, Reply(send, lambda error: send(None, error)))

    def _overview(self) -> BrokerRecord:
        reports, now_ns = self._reports.newest(), time.monotonic_ns()
        return describe_broker(self._welcome.broker, self._partitions, self._clients, reports, now_ns)

    def write(self, partition: PartitionId, payload: Payload, bulk: Sequence[Buffer]) -> int:
        owned = self._partitions.owned[partition]
        self._perform(owned, owned.core.write(payload, bulk, time.monotonic_ns()))
        return owned.core.sequenced

    # --- following ------------------------------------------------------------------------------------------------------------

    def _follow(self, peer: Peer, follow: Follow) -> None:
        partition = (follow.topic, follow.partition)
        owned = self._partitions.owned.get(partition)
        error: ParamstreamError | None = owned.error if owned is not None else self._partitions.absent(partition)
        # A broker that came back without its log has not heard of the name yet: nobody newer has it.
        if peer.name and peer.incarnation < self._calls.meta.replica_incarnation(peer.name):
            error = fenced(peer)
        if owned is None or error is not None:
            assert error is not None
            self._clients.send(peer, Demoted(*partition, follow.after, 0, WireError.of(error)))
            return
        if follow.after <= owned.core.accepted or not self._partitions.log.shared:
            self._begin(peer, follow)
        # The follower has had more than this broker: either the log is an older one, or another broker has taken over.
        else:
            self._calls.when_confirmed({partition: owned}, lambda: self._begin(peer, follow))

    def _is_still_owner(self, owned: Owned, since: float) -> bool:
        """Whether no other broker had claimed it by then. False where that is not known yet: whoever asks asks again."""
        try:
            return owned.durable.look(since)
        except ParamstreamError as error:
            self._stops(owned, error)
            return False

    def _is_sure(self, beyond: InvalidEvent) -> bool:
        """Whether the partition that an event is `beyond` has no other owner; where brokers share the log that has to be looked up."""
        named = [
            owned
            for owned in self._partitions.owned.values()
            if (owned.core.settings.topic_name, owned.core.partition[1]) == (beyond.topic, beyond.partition)
        ]
        since = self._met(beyond)
        return not self._partitions.log.shared or all(self._is_still_owner(owned, since) for owned in named)

    def _met(self, beyond: InvalidEvent) -> float:
        """When an event first named that position, of late: only a look since then knows of another owner who gave it."""
        now, place = time.monotonic(), (beyond.topic, beyond.partition, beyond.position)
        if now - self._beyond.get(place, -LOOK_HOLDS_S) >= LOOK_HOLDS_S:
            if len(self._beyond) >= MAX_BEYOND:
                self._beyond.clear()
            self._beyond[place] = now
        return self._beyond[place]

    def _begin(self, peer: Peer, follow: Follow) -> None:
        partition = (follow.topic, follow.partition)
        owned = self._partitions.owned.get(partition)
        if owned is None or not self._clients.has(peer):
            return
        peer.follows.add(partition)
        heads = owned.heads(time.monotonic_ns())
        self._send_all(owned, owned.fanout.follow(peer.address, follow, heads, owned.core.ends))

    def drop_followers(self, partition: PartitionId) -> None:
        """The partition's topic was deleted: whoever follows it, or may have events in it, is told, behind its answers."""
        self._flush_acks()
        for peer in self._clients:
            if partition in peer.follows or peer.joined:
                gone = UnknownTopic("the topic was deleted", remedy="Create it again, or follow another one")
                self._clients.send(peer, Demoted(*partition, 0, 0, WireError.of(gone)))
                peer.follows.discard(partition)

    def when_durable(self, needs: dict[PartitionId, int], then: Callable[[], None]) -> None:
        self._pending.when(needs, then)

    def look_again(self) -> None:
        self._pending.durable_moved()

    # --- what the cores decided -------------------------------------------------------------------------------------------------

    def _perform(self, owned: Owned, effects: Iterable[Effect]) -> bool:
        """False where the log did not take what was to be appended: that is neither answered nor fanned out."""
        for effect in effects:
            match effect:
                case Append():
                    if not self._append(owned, effect):
                        return False
                case FanOut():
                    self._partitions.shown[owned.core.partition] = effect.position
                    self._send_all(owned, owned.fanout.accepted(effect.frame, effect.position))
                case Answer(peer=address, message=Ack() as ack):
                    key = (address, ack.topic, ack.partition, ack.incarnation)
                    self._acks.setdefault(key, []).extend(ack.answers)
                case Answer():
                    self._flush_acks()
                    self._clients.send_to(effect.peer, effect.message)
        return True

    def _append(self, owned: Owned, effect: Append) -> bool:
        """False where the log takes nothing more: the partition's events are refused with the reason from here on."""
        try:
            owned.append(effect)
        except ParamstreamError as error:
            self._stops(owned, error)
            return False
        self._appended.add(owned.core.partition)
        if not self._in_memory(owned):
            self._appended_bytes += len(effect.frame)
        return True

    def _log_is_behind(self, partition: PartitionId) -> bool:
        owned = self._partitions.owned.get(partition)
        lasts = owned is not None and not self._in_memory(owned)
        return lasts and self.syncer.is_behind(self._appended_bytes)

    def _send_all(self, owned: Owned, sends: Iterable[Send]) -> None:
        for send in sends:
            peer = self._clients.get(client_of(send.peer))
            if peer is None:
                continue
            if isinstance(send.content, Message):
                self._clients.send(peer, send.content)
            elif peer.outbox or not self._clients.sent(peer, send.content):
                owned.fanout.blocked(send.peer, send.position)
                if owned not in self._blocked:
                    self._blocked.append(owned)

    def _flush_acks(self) -> None:
        acks, self._acks = self._acks, {}
        for (address, topic, partition, incarnation), answers in acks.items():
            self._clients.send_to(address, Ack(topic, partition, incarnation, tuple(answers)))

    def _end_batch(self, *, pressed: bool = False) -> None:
        """`pressed`: what is due is done now, whatever time the disk takes."""
        self._flush_acks()
        self._close_segments(pressed)
        if not self._appended:
            return
        appended, self._appended = self._appended, set()
        now_ns = time.monotonic_ns()
        batch = [owned for partition in appended if (owned := self._partitions.owned.get(partition)) is not None]
        for owned in batch:
            owned.load.batch_ended(owned.core.sequenced, now_ns)
        nbytes, self._appended_bytes = self._appended_bytes, 0
        in_memory = [owned for owned in batch if self._in_memory(owned)]
        if in_memory:
            self._synced([(owned.log.partition, owned.durable_in_memory()) for owned in in_memory])
        on_disk = [(owned.log, owned.core.sequenced) for owned in batch if not self._in_memory(owned)]
        on_disk += [
            (owned.durable, owned.core.answers_wait_for) for owned in batch if not owned.lasts and owned.core.begins
        ]
        if on_disk:
            self.syncer.appended(on_disk, nbytes)

    def _close_segments(self, pressed: bool) -> None:
        """A base closes a full segment, and that syncs what is left of it: so events wait until nothing is, and the loop does not."""
        for partition in self._appended - self._full_segments:
            owned = self._partitions.owned.get(partition)
            if owned is not None and owned.log.wants_base:
                self._full_segments.add(partition)
                self.holding.close([partition])
        for partition in list(self._full_segments):
            owned = self._partitions.owned.get(partition)
            if owned is not None and owned.error is None:
                if not (pressed or self._in_memory(owned) or owned.core.durable == owned.core.sequenced):
                    continue
                self._begin_segment(owned)
            self._full_segments.discard(partition)
            self.holding.open([partition])

    def _begin_segment(self, owned: Owned) -> None:
        try:
            owned.append_base_if_due()
        except ParamstreamError as error:
            self._stops(owned, error)
        else:
            self._appended.add(owned.core.partition)

    def _in_memory(self, owned: Owned) -> bool:
        return self._partitions.durable_on_append or not owned.lasts

    def _synced(self, heads: list[tuple[PartitionId, int]]) -> None:
        now_ns = time.monotonic_ns()
        for partition, position in heads:
            owned = self._partitions.owned.get(partition)
            if owned is not None:
                owned.load.durable(position, now_ns)
                self._perform(owned, owned.core.synced(position))
                self._moved.add(partition)
        self._flush_acks()
        self._pending.durable_moved()

    def _post_synced(self, heads: list[tuple[PartitionId, int]]) -> None:
        """In the sync thread."""
        self._posting.post(lambda: self._synced(heads))

    def _post_stopped(self, log: PartitionLog, error: ParamstreamError) -> None:
        """In the sync thread."""

        def stopped() -> None:
            owned = self._partitions.owned.get(log.partition)
            if owned is not None and owned.durable is log:
                self._stops(owned, error)

        self._posting.post(stopped)

    def _stops(self, owned: Owned, error: ParamstreamError) -> None:
        """The partition's log takes nothing more. Its clients hear why; if another broker owns it, they look again."""
        if owned.error is not None:
            return
        owned.error = error
        _log.info("partition %016x/%d stops: %s", *owned.core.partition, error)
        self._stopped.append((owned, error))

    def _let_go_stopped(self) -> None:
        """Not amidst what is being done with them; and before anything else comes, which would be told of another's claim."""
        while self._stopped:
            self.owning.stopped(*self._stopped.popleft())

    # --- heartbeats -----------------------------------------------------------------------------------------------

    def _beat(self, now: float) -> None:
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + HEARTBEAT_S
            self._moved.clear()
            self._heartbeat(set(self._partitions.owned))
        elif self._moved and now >= self._next_moved:
            moved, self._moved = self._moved, set()
            self._next_moved = now + MOVED_S
            self._heartbeat(moved)
        self._clients.empty_outboxes()
        self.owning.tick(now)
        for owned in self._blocked:
            self._send_all(owned, owned.fanout.retry())
        self._blocked = [owned for owned in self._blocked if owned.fanout.has_blocked]
        self._trimming.tick(now)

    def _heartbeat(self, partitions: set[PartitionId]) -> None:
        now = time.monotonic_ns()
        heads = {
            p: self._partitions.owned[p].core.heads(now)
            for p in partitions
            if p != META and p in self._partitions.owned
        }
        for peer in self._clients:
            told = tuple(
                msgspec.structs.replace(head, sent=self._partitions.owned[p].fanout.sent(peer.address))
                if p in peer.follows
                else head
                for p, head in heads.items()
                if peer.joined or p in peer.follows
            )
            due = told or len(partitions) == len(self._partitions.owned)
            if due and not peer.outbox:
                self._clients.sent(peer, encode_message(Heartbeat(told)))


def _refusal(frame: EventFrame, error: ParamstreamError) -> Refused:
    head = frame.head
    return Refused(frame.topic, frame.partition, head.incarnation, head.sequence, head.previous, WireError.of(error))
