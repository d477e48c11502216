"""The brokers of one log as members of a Kafka consumer group: who is there, and which slots are whose.

Kafka notices who is gone, after `session_timeout_s`, and asks one member to share out anew. That is liveness only: what keeps
a log right while two brokers believe that they own a partition is the log's own rule.

A member has a thread of its own, so that no work, however long, costs it its slots.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from ...errors import ConnectFailed, CorruptLog, InvalidEvent
from .membership import Claimant, SlotMap, decode_claimant, decode_map, encode, share_out
from .settings import KafkaLog
from .thread import KafkaThread
from .wire import Refused, Trouble, Wire, aiokafka, connection_options, patiently

_log = logging.getLogger(__name__)

DRAIN_S = 5.0
"""How long a broker may take to make durable what it has accepted before its slots may go."""

REJOIN_S = 1.0
"""The pause before a member that failed begins anew."""

_VERSION = 0
_2026 = 1_767_225_600

Revoking = Callable[[Callable[[], None]], None]
Assigned = Callable[[SlotMap], None]


class SlotGroup:
    """Membership of one broker, from `start` to `close`.

    Both callbacks come in the group's thread, one at a time, and must not block: `revoking(done)` before slots may go, where
    `done` is to be called, from any thread, once nothing that was accepted can be lost by that; it is waited for `DRAIN_S` at
    most. Then `assigned(map)`, which shows this broker with its slots. A broker that was paused past its session, or has missed
    a generation, hears of both when it comes back: first of a map in which it has no slots, for others may have had them.
    """

    def __init__(
        self,
        settings: KafkaLog,
        *,
        name: str,
        broker: str,
        endpoint: str,
        slots: int,
        revoking: Revoking,
        assigned: Assigned,
        drain_s: float = DRAIN_S,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        """`name` is the broker's own among all, the same at each start: one that starts again within the session timeout gets its
        slots back at once. `broker` is new at each start. Connects to nothing yet.
        """
        if not name:
            raise InvalidEvent("a broker's name among those that share a log must not be empty", item="name")
        self._settings = settings
        self._name = re.sub(r"[^A-Za-z0-9._-]", "-", name)[:249]
        self._slots = slots
        self._revoking = revoking
        self._assigned = assigned
        self._drain_s = drain_s
        self._clock_s = clock_s
        self._me = Claimant(broker, endpoint, 0, (), 0)
        self._topic = f"{settings.topic_prefix}slots"
        self._group = f"{settings.topic_prefix}brokers"
        self._member_id = ""
        self._joined: tuple[str, int] | None = None
        """Kafka's name for this member, and Kafka's number of the generation that the last map came with."""
        self._consumer: Any = None
        self._task: asyncio.Task[None] | None = None
        self._wire: Wire | None = None
        self._closed = False
        self._trouble = ""
        self._thread = KafkaThread("paramstream-group")

    @property
    def trouble(self) -> str:
        """What keeps this broker out of the group; empty once a map shows it. Any thread."""
        return self._trouble

    def start(self) -> None:
        """Make the topic where there is none, and join. Returns before the first map is there; it comes to `assigned`.

        Raises `ConnectFailed` where Kafka does not answer or refuses.
        """
        try:
            self._thread.call(self._start(), 3 * self._settings.request_timeout_s)
        except (Trouble, Refused) as error:
            self._thread.close()
            raise ConnectFailed(f"no group can be joined at {self._settings.servers}: {error}") from error

    async def _start(self) -> None:
        wire = Wire(self._settings)
        await patiently(wire.start, self._settings.request_timeout_s)
        self._wire = wire
        await wire.create(self._topic, self._slots, self._settings.replication_factor, {})
        self._task = asyncio.create_task(self._stay(), name="paramstream-group")
        self._task.add_done_callback(_tell)

    def close(self) -> None:
        """Leave: the slots go to the others at once. Gives back threads and connections. A second call changes nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self._thread.call(self._leave(), 2 * self._settings.request_timeout_s)
        finally:
            self._thread.close()

    async def _leave(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._wire is not None:
            if self._member_id:
                with suppress(Trouble, Refused):
                    await self._wire.leave_group(self._group, self._member_id)
            await self._wire.close()

    # In the group's thread.

    async def _stay(self) -> None:
        """Be a member until cancelled, whatever Kafka says."""
        errors = aiokafka(".errors")
        while True:
            try:
                await self._be_member()
            except (errors.KafkaError, OSError) as error:
                self._is_in_trouble(error)
            await asyncio.sleep(REJOIN_S)

    def _is_in_trouble(self, error: Exception) -> None:
        trouble = f"the group {self._group} cannot be joined, and is tried again: {type(error).__name__}: {error}"
        if isinstance(error, aiokafka(".errors").InconsistentGroupProtocolError):
            trouble += ". Somebody else is a member of it: it is for brokers of this log only"
        if trouble != self._trouble:
            _log.warning("%s", trouble)
        self._trouble = trouble

    async def _be_member(self) -> None:
        session_ms = round(self._settings.session_timeout_s * 1000)
        consumer = aiokafka().AIOKafkaConsumer(
            **connection_options(self._settings),
            group_id=self._group,
            group_instance_id=self._name,
            partition_assignment_strategy=(self,),
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=session_ms // 4,
            rebalance_timeout_ms=round(self._drain_s * 1000) + session_ms,
            max_poll_interval_ms=24 * 3600 * 1000,
            enable_auto_commit=False,
            # The topic is empty for ever: "none" would be an error at each poll.
            auto_offset_reset="latest",
            # Well below the request's timeout: a fetch that is over it closes the connection, and the member is lost for seconds.
            fetch_max_wait_ms=round(min(5.0, self._settings.request_timeout_s / 2) * 1000),
        )
        try:
            await consumer.start()
            self._consumer = consumer
            self._subscribe()
            while True:
                await consumer.getmany(timeout_ms=1000)  # Raises what the membership has met.
        finally:
            self._consumer = None
            await consumer.stop()

    def _subscribe(self) -> None:
        """Join, or join again."""
        if self._consumer is not None:
            self._consumer.subscribe([self._topic], listener=_listener(self))

    async def revoked(self) -> None:
        """Any slot may go: the broker drains. Heartbeats go on meanwhile."""
        drained = asyncio.Event()
        loop = asyncio.get_running_loop()

        def done() -> None:
            with suppress(RuntimeError):  # The thread may have ended.
                loop.call_soon_threadsafe(drained.set)

        self._revoking(done)
        try:
            await asyncio.wait_for(drained.wait(), self._drain_s)
        except TimeoutError:
            _log.warning("slots go before all was durable: that took more than %g s", self._drain_s)

    # What aiokafka asks of an assignor.

    name = "paramstream"

    def metadata(self, topics: Iterable[str]) -> Any:
        return _protocol().ConsumerProtocolMemberMetadata(_VERSION, list(topics), encode(self._me))

    def assign(self, cluster: object, members: Mapping[str, Any]) -> dict[str, Any]:
        """This member was picked to share out."""
        claimants = dict[str, Claimant]()
        for name, metadata in members.items():
            try:
                claimants[name] = decode_claimant(metadata.user_data)
            except CorruptLog as error:
                # It gets no slots.
                _log.error("a stranger, %s, is in the group %s: %s", name, self._group, error.problem)
        slot_map = share_out(claimants, self._slots, max(0, int((self._clock_s() - _2026) * 64)))
        data, assignment = encode(slot_map), _protocol().ConsumerProtocolMemberAssignment
        return {
            member.id: assignment(_VERSION, [(self._topic, list(member.slots))], data) for member in slot_map.members
        }

    def on_assignment(self, assignment: Any) -> None:
        try:
            slot_map = decode_map(assignment.user_data)
        except CorruptLog as error:
            _log.error("the group %s was given slots by a stranger: %s", self._group, error.problem)
            return
        slots = {slot for _, numbers in assignment.assignment for slot in numbers}
        mine = [
            member for member in slot_map.members if member.broker == self._me.broker and set(member.slots) == slots
        ]
        if not mine or mine[0].endpoint != self._me.endpoint:
            # Kafka gives a member that starts again what its name had, without telling the others who it is now.
            self._me = msgspec.structs.replace(self._me, revision=self._me.revision + 1)
            asyncio.get_running_loop().call_soon(self._subscribe)
            return
        if not self._goes_on(mine[0].id):
            # Somebody else may have had its slots meanwhile: it keeps none of what it opened in them.
            self._assigned(slot_map.without_slots_of(self._me.broker))
        self._trouble = ""
        self._member_id = mine[0].id
        self._me = msgspec.structs.replace(self._me, number=slot_map.number, slots=mine[0].slots)
        self._assigned(slot_map)

    def _goes_on(self, member_id: str) -> bool:
        """Whether this member was in every generation since its last map, so that nobody else was given its slots in between."""
        before = self._joined
        generation = int(self._consumer._coordinator.generation) if self._consumer is not None else 0
        self._joined = member_id, generation
        return before is None or before == (member_id, generation - 1)


def _tell(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        _log.error("the group of brokers is left for good", exc_info=error)


def _protocol() -> Any:
    return aiokafka(".coordinator.protocol")


def _listener(group: SlotGroup) -> Any:
    """aiokafka wants an instance of its own class."""

    async def on_partitions_revoked(self: object, revoked: object) -> None:
        if revoked:
            await group.revoked()

    async def on_partitions_assigned(self: object, assigned: object) -> None:
        """The map itself came with `on_assignment`."""

    methods = {"on_partitions_revoked": on_partitions_revoked, "on_partitions_assigned": on_partitions_assigned}
    return type("SlotListener", (aiokafka(".abc").ConsumerRebalanceListener,), methods)()
