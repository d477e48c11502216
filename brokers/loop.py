"""The broker's loop: one thread, one ROUTER, and the cores between them.

It drains what has come, lets the cores decide, does what they say (append, answer, fan out), and at the end of each batch
sends the acks together and hands what was appended to the sync thread. That thread wakes the loop through the same ROUTER
over an inproc address, so that there is one socket to wait on.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Sequence

import msgspec
import zmq

from ..consistency.vector import PartitionId
from ..errors import CorruptLog, Fenced, InvalidEvent, ParamstreamError, UnknownTopic
from ..eventlog.log import PartitionLog
from ..events.codec import MAGIC as EVENT_MAGIC
from ..events.codec import Buffer, EventFrame, decode_event
from ..events.kinds import Payload
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
from .effects import Answer, Append, Effect, FanOut, Origin
from .fanout import Send
from .holding import Holding
from .overview import describe_broker
from .partitions import META, Owned, Partitions
from .peers import MAX_PEERS, Peer, client_of
from .retention import LogUse
from .syncing import Syncer

HEARTBEAT_S = 0.5
IDLE_S = 0.05
"""How long a loop with nothing to do sleeps at most: so long a close may take."""

MOVED_S = 0.005
"""A durable head that has moved is told at most this often."""

BATCH_MESSAGES = 256
MAX_OUTBOX, MAX_OUTBOX_BYTES = 10_000, 16 * 1024 * 1024
"""Control frames kept for a peer whose pipe is full, beyond the pipe's own high-water mark: that many, and so many bytes beside one."""

TRIM_S, PRESSED_TRIM_S = 1.0, 0.02
"""How often what nobody needs leaves the log: seldom, and often while it is more than half full, so that a fast publisher of
versions is not refused for those that are old already."""

SLACK = 2
"""A session counts its window by what it takes its frames to be: so many times that may wait of it, and no more."""

SYNC_ID = b"sync"
_SYNC_TYPE = list[tuple[PartitionId, int]]
_REFUSED_UNDECODED = "an undecodable frame was refused"


class Loop:
    """Everything that the broker's one thread does. `run` returns when `closing` is set."""

    def __init__(
        self, socket: Socket, partitions: Partitions, syncer: Syncer, welcome: Welcome, closing: threading.Event
    ) -> None:
        self._socket = socket
        self._partitions = partitions
        self._syncer = syncer
        self._welcome = welcome
        self._closing = closing
        self._peers: dict[bytes, Peer] = {}
        self._serials = itertools.count(1)
        self._calls = Calls(partitions, self._write, time.monotonic_ns, self._drop_followers, self._overview)
        self._acks: dict[tuple[bytes, int, int, int], list[tuple[int, int]]] = {}
        self._appended: dict[PartitionId, PartitionLog] = {}
        self._appended_bytes = 0
        self.holding = Holding(self._log_is_behind)
        self._full_segments: set[PartitionId] = set()
        """Closed until all of their segment is synced: then a base begins the next one."""
        self._moved: set[PartitionId] = set()
        self._blocked: list[Owned] = []
        """Partitions with a follower whose pipe was full."""
        self._next_heartbeat = self._next_moved = self._next_trim = self._next_pressed_trim = 0.0
        self.garbled_frames = 0
        """Frames that were no event and no control frame: counted, answered where that is possible, and dropped."""

    def run(self) -> None:
        while not self._closing.is_set():
            now = time.monotonic()
            wake = min(self._next_heartbeat, now + IDLE_S)
            if self._moved:
                wake = min(wake, self._next_moved)
            if self._blocked or any(peer.outbox for peer in self._peers.values()):
                wake = min(wake, now + MOVED_S)
            if self.holding.is_ready:
                wake = now
            if self._socket.poll(max(0, int((wake - now) * 1000) + 1 if wake > now else 0)):
                self._drain()
            for peer, frame in self.holding.ready(BATCH_MESSAGES):
                self._sequence(peer, frame)
            self._end_batch()
            self._beat(time.monotonic())
        for peer in list(self._peers.values()):
            self._send(peer, Goodbye())

    # --- what comes in ----------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        for _ in range(BATCH_MESSAGES):
            try:
                routing_id, *parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._received(routing_id.bytes, [part.buffer for part in parts])

    def _received(self, routing_id: bytes, parts: list[memoryview]) -> None:
        if routing_id == SYNC_ID:
            self._synced(msgspec.msgpack.decode(parts[0], type=_SYNC_TYPE))
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
        peer = self._peers.get(client)
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
            self._forget(peer)

    def _sequence(self, peer: Peer, frame: EventFrame) -> None:
        if self._peers.get(peer.id) is not peer:
            # It was held, and its connection is gone: if its session lives, it has joined over a new one and asks what stands.
            return
        owned = self._partitions.owned.get(frame.partition_id)
        error: ParamstreamError | None = None
        if owned is None or frame.partition_id == META:
            error = UnknownTopic(f"this broker has no partition {frame.partition} of topic {frame.topic:016x}")
        elif owned.error is not None:
            error = owned.error
        else:
            try:
                self._partitions.check_past(frame.head, frame.payload)
            except InvalidEvent as beyond:
                error = beyond
        if owned is None or error is not None:
            assert error is not None
            self._send(peer, _refusal(frame, error))
            return
        room = self._has_room(frame.nbytes)
        now_ns = time.monotonic_ns()
        if frame.head.incarnation in peer.joined:
            peer.wrote_ns[frame.head.incarnation] = now_ns
        self._perform(owned, owned.core.sequence(frame, Origin(peer.address, peer.serial), now_ns, room))

    def _control(self, client: bytes, frame: memoryview) -> None:
        message = decode_message(frame)
        if isinstance(message, Hello):
            self._hello(client, message)
            return
        peer = self._peers.get(client)
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
                self._unfollow(peer, (message.topic, message.partition))
            case Report():
                self._calls.reported(message)
            case Goodbye():
                self._forget(peer)
            case _:
                raise CorruptLog(f"a {type(message).__name__} is not for this socket of a broker")

    def _refuse_garbled(self, client: bytes, error: CorruptLog) -> None:
        self.garbled_frames += 1
        peer = self._peers.get(client)
        if peer is not None:
            refusal = InvalidEvent(f"{_REFUSED_UNDECODED}: {error.problem}")
            self._send(peer, Refused(0, 0, 0, 0, 0, WireError.of(refusal)))

    # --- peers --------------------------------------------------------------------------------------------------------------

    def _hello(self, client: bytes, hello: Hello) -> None:
        if hello.format != FORMAT or len(self._peers) >= MAX_PEERS:
            self.garbled_frames += 1
            return
        peer = Peer(client, next(self._serials), hello.name, hello.incarnation)
        self._peers[client] = peer
        if hello.name:
            for other in list(self._peers.values()):
                if other.name == hello.name and other.incarnation < hello.incarnation:
                    self._fence(other)
        self._send(peer, self._welcome)

    def _fence(self, peer: Peer) -> None:
        error = WireError.of(self._fenced(peer))
        for partition in list(peer.follows):
            self._unfollow(peer, partition)
            self._send(peer, Demoted(*partition, 0, 0, error))

    def _fenced(self, peer: Peer) -> Fenced:
        return Fenced(
            f"replica {peer.name!r} of incarnation {peer.incarnation} is not the newest",
            remedy="A replica name has one live owner; close the other one or choose another name",
        )

    def _forget(self, peer: Peer) -> None:
        self._peers.pop(peer.id, None)
        for partition in list(peer.follows):
            self._unfollow(peer, partition)

    def _send(self, peer: Peer, message: Message) -> None:
        """Send a control frame, or keep it until the peer's pipe takes it: none is ever skipped, and their order stays."""
        data = encode_message(message)
        if peer.outbox or not self._sent(peer, data):
            peer.outbox.append(data)
            peer.outbox_bytes += len(data)
            if len(peer.outbox) > MAX_OUTBOX or peer.outbox_bytes - len(data) > MAX_OUTBOX_BYTES:
                # It takes nothing, and nothing more is kept for it: its silence tells it to connect again.
                self._forget(peer)

    def _sent(self, peer: Peer, data: Buffer) -> bool:
        """False where the peer takes nothing at the moment; one that is gone is forgotten."""
        try:
            self._socket.send_multipart([peer.address, data], zmq.NOBLOCK, copy=len(data) < COPY_THRESHOLD_BYTES)
        except zmq.ZMQError as error:
            if error.errno == zmq.EAGAIN:
                return False
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._forget(peer)
        return True

    def _empty_outboxes(self) -> None:
        for peer in [peer for peer in self._peers.values() if peer.outbox]:
            while peer.outbox and self._sent(peer, peer.outbox[0]):
                peer.outbox_bytes -= len(peer.outbox.popleft())

    # --- requests -------------------------------------------------------------------------------------------------------------

    def _request(self, peer: Peer, request: Request) -> None:
        def answer(result: object) -> None:
            self._send(peer, Response(request.id, encode_result(result)))

        try:
            self._calls.answer(peer, request.call, answer)
        except ParamstreamError as error:
            self._send(peer, Response(request.id, encode_result(None), WireError.of(error)))

    def _overview(self) -> BrokerRecord:
        reports, now_ns = self._calls.reports(), time.monotonic_ns()
        return describe_broker(self._welcome.broker, self._partitions, self._peers.values(), reports, now_ns)

    def _write(self, partition: PartitionId, payload: Payload, bulk: Sequence[Buffer]) -> int:
        owned = self._partitions.owned[partition]
        self._perform(owned, owned.core.write(payload, bulk, time.monotonic_ns()))
        return owned.core.sequenced

    # --- following ------------------------------------------------------------------------------------------------------------

    def _follow(self, peer: Peer, follow: Follow) -> None:
        partition = (follow.topic, follow.partition)
        owned = self._partitions.owned.get(partition)
        error: ParamstreamError | None = owned.error if owned is not None else UnknownTopic(f"no partition {partition}")
        # A broker that came back without its log has not heard of the name yet: nobody newer has it.
        if peer.name and peer.incarnation < self._calls.meta.replica_incarnation(peer.name):
            error = self._fenced(peer)
        if owned is None or error is not None:
            assert error is not None
            self._send(peer, Demoted(*partition, follow.after, 0, WireError.of(error)))
            return
        peer.follows.add(partition)
        heads = owned.heads(time.monotonic_ns())
        self._send_all(owned, owned.fanout.follow(peer.address, follow, heads, owned.core.ends))

    def _unfollow(self, peer: Peer, partition: PartitionId) -> None:
        peer.follows.discard(partition)
        owned = self._partitions.owned.get(partition)
        if owned is not None:
            owned.fanout.unfollow(peer.address)

    def _drop_followers(self, partition: PartitionId) -> None:
        """The partition's topic was deleted: whoever follows it, or may have events in it, is told, behind its answers."""
        self._flush_acks()
        for peer in self._peers.values():
            if partition in peer.follows or peer.joined:
                gone = UnknownTopic("the topic was deleted", remedy="Create it again, or follow another one")
                self._send(peer, Demoted(*partition, 0, 0, WireError.of(gone)))
                peer.follows.discard(partition)

    # --- what the cores decided -------------------------------------------------------------------------------------------------

    def _perform(self, owned: Owned, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Append():
                    if not self._append(owned, effect):
                        # What the log does not have is neither answered nor fanned out: its outcome is unknown.
                        return
                case FanOut():
                    self._partitions.shown[owned.core.partition] = effect.position
                    self._send_all(owned, owned.fanout.accepted(effect.frame, effect.position))
                case Answer(peer=address, message=Ack() as ack):
                    key = (address, ack.topic, ack.partition, ack.incarnation)
                    self._acks.setdefault(key, []).extend(ack.answers)
                case Answer():
                    self._flush_acks()
                    self._send_to(effect.peer, effect.message)

    def _append(self, owned: Owned, effect: Append) -> bool:
        """False where the log takes nothing more: the partition's events are refused with the reason from here on."""
        try:
            owned.append(effect)
        except ParamstreamError as error:
            owned.error = error
            return False
        self._appended[owned.core.partition] = owned.log
        if not self._in_memory(owned.log):
            self._appended_bytes += len(effect.frame)
        return True

    def _log_is_behind(self, partition: PartitionId) -> bool:
        owned = self._partitions.owned.get(partition)
        lasts = owned is not None and not self._in_memory(owned.log)
        return lasts and self._syncer.is_behind(self._appended_bytes)

    def _send_to(self, address: bytes, message: Message) -> None:
        peer = self._peers.get(client_of(address))
        if peer is not None:
            self._send(peer, message)

    def _send_all(self, owned: Owned, sends: Iterable[Send]) -> None:
        for send in sends:
            peer = self._peers.get(client_of(send.peer))
            if peer is None:
                continue
            if isinstance(send.content, Message):
                self._send(peer, send.content)
            elif peer.outbox or not self._sent(peer, send.content):
                owned.fanout.blocked(send.peer, send.position)
                if owned not in self._blocked:
                    self._blocked.append(owned)

    def _flush_acks(self) -> None:
        acks, self._acks = self._acks, {}
        for (address, topic, partition, incarnation), answers in acks.items():
            self._send_to(address, Ack(topic, partition, incarnation, tuple(answers)))

    def _end_batch(self, *, pressed: bool = False) -> None:
        """`pressed`: what is due is done now, whatever time the disk takes."""
        self._flush_acks()
        self._close_segments(pressed)
        if not self._appended:
            return
        appended, self._appended = self._appended, {}
        now_ns = time.monotonic_ns()
        for owned in [owned for partition in appended if (owned := self._partitions.owned.get(partition))]:
            owned.load.batch_ended(owned.core.sequenced, now_ns)
        nbytes, self._appended_bytes = self._appended_bytes, 0
        in_memory = [log for log in appended.values() if self._in_memory(log)]
        if in_memory:
            self._synced([(log.partition, log.sync()) for log in in_memory])
        on_disk = [log for log in appended.values() if not self._in_memory(log)]
        if on_disk:
            self._syncer.appended(on_disk, nbytes)

    def _close_segments(self, pressed: bool) -> None:
        """A base closes a full segment, and that syncs what is left of it: so events wait until nothing is, and the loop does not."""
        for partition in self._appended.keys() - self._full_segments:
            owned = self._partitions.owned.get(partition)
            if owned is not None and owned.log.wants_base:
                self._full_segments.add(partition)
                self.holding.close([partition])
        for partition in list(self._full_segments):
            owned = self._partitions.owned.get(partition)
            if owned is not None and owned.error is None:
                if not (pressed or self._in_memory(owned.log) or owned.core.durable == owned.core.sequenced):
                    continue
                self._begin_segment(owned)
            self._full_segments.discard(partition)
            self.holding.open([partition])

    def _begin_segment(self, owned: Owned) -> None:
        try:
            owned.append_base_if_due()
        except ParamstreamError as error:
            owned.error = error
        else:
            self._appended[owned.core.partition] = owned.log

    def _in_memory(self, log: PartitionLog) -> bool:
        owned = self._partitions.owned.get(log.partition)
        return self._partitions.durable_on_append or (owned is not None and owned.log is not owned.durable)

    def _synced(self, heads: list[tuple[PartitionId, int]]) -> None:
        now_ns = time.monotonic_ns()
        for partition, position in heads:
            owned = self._partitions.owned.get(partition)
            if owned is not None:
                owned.load.durable(position, now_ns)
                self._perform(owned, owned.core.synced(position))
                self._moved.add(partition)
        self._flush_acks()
        self._calls.durable_moved()

    # --- heartbeats and retention -----------------------------------------------------------------------------------------------

    def _beat(self, now: float) -> None:
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + HEARTBEAT_S
            self._moved.clear()
            self._heartbeat(set(self._partitions.owned))
        elif self._moved and now >= self._next_moved:
            moved, self._moved = self._moved, set()
            self._next_moved = now + MOVED_S
            self._heartbeat(moved)
        self._empty_outboxes()
        for owned in self._blocked:
            self._send_all(owned, owned.fanout.retry())
        self._blocked = [owned for owned in self._blocked if owned.fanout.has_blocked]
        if now >= self._next_trim or (now >= self._next_pressed_trim and self._use().is_half_full):
            self._trim(now)

    def _heartbeat(self, partitions: set[PartitionId]) -> None:
        now = time.monotonic_ns()
        heads = {
            p: self._partitions.owned[p].core.heads(now)
            for p in partitions
            if p != META and p in self._partitions.owned
        }
        for peer in list(self._peers.values()):
            told = tuple(
                msgspec.structs.replace(head, sent=self._partitions.owned[p].fanout.sent(peer.address))
                if p in peer.follows
                else head
                for p, head in heads.items()
                if peer.joined or p in peer.follows
            )
            due = told or len(partitions) == len(self._partitions.owned)
            if due and not peer.outbox:
                self._sent(peer, encode_message(Heartbeat(told)))

    def _use(self) -> LogUse:
        return LogUse(self._partitions.nbytes, self._partitions.limit)

    def _has_room(self, nbytes: int) -> bool:
        """Whether the log takes so much more. Where it does not, what nobody needs leaves it first."""
        now = time.monotonic()
        if self._partitions.nbytes + nbytes > self._partitions.limit and now >= self._next_pressed_trim:
            # What was appended in this batch may have made older versions needless, once it is durable.
            self._end_batch(pressed=True)
            self._trim(now)
        return self._partitions.nbytes + nbytes <= self._partitions.limit

    def _trim(self, now: float) -> None:
        self._next_trim, self._next_pressed_trim = now + TRIM_S, now + PRESSED_TRIM_S
        self._calls.forget_reports()
        self._calls.forget_names(
            (name for peer in self._peers.values() for name in peer.joined.values()),
            (peer.name for peer in self._peers.values()),
        )
        use = LogUse(self._partitions.nbytes, self._partitions.limit)
        for partition, owned in self._partitions.owned.items():
            if owned.error is not None:
                continue
            floor = owned.core.trim_floor(self._calls.leases(partition), use, time.monotonic_ns())
            if floor > owned.log.start:
                owned.core.trimmed(owned.log.cut(floor))


def wake(socket: Socket, heads: list[tuple[PartitionId, int]]) -> None:
    """Sent by the sync thread on its inproc DEALER: these partitions are durable up to there."""
    socket.send(msgspec.msgpack.encode(heads))


def _refusal(frame: EventFrame, error: ParamstreamError) -> Refused:
    head = frame.head
    return Refused(frame.topic, frame.partition, head.incarnation, head.sequence, head.previous, WireError.of(error))
