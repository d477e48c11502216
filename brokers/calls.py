"""What clients ask of a broker beside events: topics, tables, names, joins, and what is known of versions and replicas.

Each broker answers for what it owns. An answer that promises something durable is given when `__meta` (or every partition
concerned) has it for good (`pending.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from ..consistency.vector import PartitionId
from ..errors import Fenced, NotOwner, ParamstreamError, UnknownTopic
from ..events.kinds import Note
from ..transport.calls import (
    AnnounceSnapshots,
    AwaitDurable,
    BrokerRecord,
    Call,
    CreateTable,
    CreateTopic,
    DeleteTopic,
    DescribeBroker,
    DescribePartitions,
    DescribeStorage,
    Join,
    Joined,
    ListReplicas,
    ListTables,
    ListTopics,
    ListVersions,
    OpenProducer,
    OpenReplica,
    PartitionRecord,
    PrepareCommit,
    StoppedPartition,
    Unconfirmed,
    VersionRecord,
)
from ..transport.wire import To, WireError
from .meta import Entry, MetaState
from .owned import META, Owned
from .owning import Owning
from .partitions import Partitions
from .peers import Peer
from .pending import Pending, Reply, Write
from .reports import REMEMBER_S, Reports
from .topics import Topics

_log = logging.getLogger(__name__)


class Calls:
    """Answers requests in the broker's loop. `write` appends to a partition."""

    def __init__(
        self,
        partitions: Partitions,
        owning: Owning,
        topics: Topics,
        pending: Pending,
        reports: Reports,
        write: Write,
        monotonic_ns: Callable[[], int],
        describe_broker: Callable[[], BrokerRecord],
    ) -> None:
        self._partitions = partitions
        self._owning = owning
        self._topics = topics
        self._pending = pending
        self._write = write
        self._monotonic_ns = monotonic_ns
        self._describe_broker = describe_broker
        self._reports = reports
        self._opened: dict[tuple[str, str], float] = {}
        """(kind, name) of producers and replicas that were opened lately, with when: they may not have come yet."""
        self._began = time.monotonic()

    @property
    def meta(self) -> MetaState:
        return self._partitions.meta

    def take(self, peer: Peer, call: Call, reply: Reply) -> None:
        """Answer now, or once the answer is durable; where another broker owns `__meta`, once that is read as far as it goes."""

        def attempt(is_read: bool) -> None:
            try:
                self._answer(peer, call, reply)
            except UnknownTopic as error:
                if is_read:
                    reply.fail(error)
                else:
                    self._owning.read_on(lambda: attempt(True))
            except ParamstreamError as error:
                reply.fail(error)

        if self._owning.is_revoking or (call.to is To.META and not self._partitions.has_meta):
            problem = f"the broker cannot answer {type(call).__name__}: brokers have shared their work anew"
            reply.fail(NotOwner(problem, remedy="Look up the owners again"))
        elif isinstance(call, Join | CreateTable):
            self._owning.read_on(lambda: attempt(True))
        else:
            attempt(self._partitions.has_meta)

    def _answer(self, peer: Peer, call: Call, reply: Reply) -> None:
        """Raises the typed error to send instead."""
        match call:
            case CreateTopic():
                self._topics.create(call, reply)
            case DeleteTopic():
                self._topics.delete(call, reply)
            case ListTopics():
                reply.answer(self.meta.topics())
            case CreateTable():
                self._topics.create_table(call, reply)
            case ListTables():
                reply.answer(self.meta.tables(self._topics.by_id(call.topic).id))
            case OpenProducer():
                self._open_name("producer", call.name, self.meta.open_producer(call.name), reply)
            case OpenReplica():
                self._open_name("replica", call.name, self.meta.open_replica(call.name), reply)
            case Join():
                self._join(peer, call, reply)
            case ListVersions():
                reply.answer(self._versions(call))
            case ListReplicas():
                reply.answer(self._reports.newest(call.topic))
            case DescribePartitions():
                self._describe(call, reply)
            case PrepareCommit():
                self._prepare_commit(call, reply)
            case AwaitDurable():
                self._await_durable(call, reply)
            case DescribeBroker():
                reply.answer(self._describe_broker())
            case DescribeStorage():
                self._topics.describe_storage(call, reply)
            case AnnounceSnapshots():
                written = self._topics.written(self.meta.announce(call))
                self._pending.when(written, lambda: reply.answer(None))
            case _:
                raise ParamstreamError(
                    f"this broker does not know the call {type(call).__name__}", remedy="Upgrade the broker"
                )

    def forget_names(self, producing: Iterable[str], following: Iterable[str]) -> None:
        """Drop from `__meta` the names that nobody has: of producers those that no partition knows and that are not `producing`,
        of replicas those that no report names and that are not `following`.

        Of brokers that share a log none knows the names of all partitions: there every name stays.
        """
        before = time.monotonic() - REMEMBER_S
        if before < self._began or self._partitions.log.shared or not self._partitions.has_meta:
            # Sessions of the start before may be on their way back; under "none" no partition knows their names.
            return
        self._opened = {opened: at for opened, at in self._opened.items() if at > before}
        lately: dict[str, set[str]] = {"producer": set(), "replica": set()}
        for kind, name in self._opened:
            lately[kind].add(name)
        held = (name for owned in self._partitions.owned.values() for name in owned.core.names())
        entry = self.meta.forget_names(
            {*producing, *lately["producer"], *held}, {*following, *lately["replica"], *self._reports.names}
        )
        if entry is not None:
            self._write(META, entry.payload, entry.bulk)

    # --- names and joins ----------------------------------------------------------------------------------------------------

    def _open_name(self, kind: str, name: str, opened: tuple[Entry, int], reply: Reply) -> None:
        entry, incarnation = opened
        _log.info("%s %r is opened, incarnation %d", kind, name, incarnation)
        self._opened[kind, name] = time.monotonic()
        self._pending.when(self._topics.written(entry), lambda: reply.answer(incarnation))

    def _join(self, peer: Peer, call: Join, reply: Reply) -> None:
        fenced = _fenced(call, self.meta.producer_incarnation(call.name))
        if fenced is not None:
            # What only a broker believes that was taken over is no reason to end a session.
            owned = self._partitions.owned.get(META)
            self.when_confirmed({} if owned is None else {META: owned}, lambda: reply.fail(fenced))
            return
        unconfirmed: dict[PartitionId, Unconfirmed] = {(u.topic, u.partition): u for u in call.unconfirmed}
        peer.joined[call.incarnation] = call.name
        healthy = {p: owned for p, owned in self._partitions.owned.items() if p != META and owned.error is None}
        joined = Joined(
            tuple(
                owned.core.join(call.name, call.incarnation, unconfirmed.get(p), peer.serial)
                for p, owned in healthy.items()
            ),
            tuple(
                StoppedPartition(*partition, WireError.of(owned.error))
                for partition, owned in self._partitions.owned.items()
                if owned.error is not None and not isinstance(owned.error, Fenced)
            ),
        )
        self.when_confirmed(healthy, lambda: reply.answer(joined))

    def when_confirmed(self, owned: Mapping[PartitionId, Owned], give: Callable[[], None]) -> None:
        """`give` once it is certain that no other broker owns any of these by now."""
        needs = {partition: self._confirmed_by(each) for partition, each in owned.items()}
        self._pending.when(needs, give, self._looks(owned))

    def _looks(self, owned: Mapping[PartitionId, Owned]) -> dict[PartitionId, float]:
        """Under persistence "none" no record tells who owns a partition: where brokers share the log its tail does."""
        now = time.monotonic()
        return {p: now for p, each in owned.items() if self._partitions.log.shared and not each.lasts}

    def _confirmed_by(self, owned: Owned) -> int:
        """The position that must be durable before an answer that rests on this broker's being the owner.

        Where brokers share the log that of a record written since: only such a one shows that no other owner had claimed it.
        Under persistence "none" there is none (`_looks`).
        """
        if self._partitions.log.shared and owned.lasts:
            return self._write(owned.core.partition, Note(), ())
        return owned.core.answers_wait_for

    # --- what is known ------------------------------------------------------------------------------------------------------

    def _versions(self, call: ListVersions) -> list[VersionRecord]:
        topic = self._topics.by_id(call.topic)
        weights = topic.id, topic.partitions
        # Whoever owns them knows them, and the others none.
        return self._partitions.healthy(weights).core.versions(call.commit) if self._partitions.is_here(weights) else []

    def _describe(self, call: DescribePartitions, reply: Reply) -> None:
        topic = self._topics.by_id(call.topic)
        now = self._monotonic_ns()
        proved: dict[PartitionId, Owned] = {}
        records: list[PartitionRecord] = []
        for number in range(topic.partitions + 1):
            is_asked = call.partitions is None or number in call.partitions
            if is_asked and self._partitions.is_here((topic.id, number)):
                owned = self._partitions.healthy((topic.id, number))
                if call.proved:
                    proved[topic.id, number] = owned
                records.append(owned.core.describe(owned.log.start, now))
        self.when_confirmed(proved, lambda: reply.answer(records))

    def _prepare_commit(self, call: PrepareCommit, reply: Reply) -> None:
        topic = self._topics.by_id(call.topic)
        weights = topic.id, topic.partitions
        owned = self._partitions.healthy(weights)
        try:
            prepared = owned.core.prepare_commit(call)
        except ParamstreamError as error:
            refusal = error
            # A broker that was taken over lacks what stands by now.
            self.when_confirmed({weights: owned}, lambda: reply.fail(refusal))
        else:
            self._pending.when({weights: owned.core.answers_wait_for}, lambda: reply.answer(prepared))

    def _await_durable(self, call: AwaitDurable, reply: Reply) -> None:
        """Of partitions that other brokers own nothing is said: neither waited for nor called lost."""
        needs: dict[PartitionId, int] = {}
        lost: dict[PartitionId, Owned] = {}
        for topic_id, number, at in call.positions:
            partition = self._topics.by_id(topic_id).id, number
            if partition in self._partitions.owned:
                owned = self._partitions.healthy(partition)
                # What it seems to have lost may stand with whoever has taken it over.
                until = at
                if owned.core.is_lost(at):
                    lost[partition], until = owned, self._confirmed_by(owned)
                needs[partition] = max(until, needs.get(partition, 0))
        self._pending.when(
            needs, lambda: reply.answer([at for at in call.positions if self._is_lost(*at)]), self._looks(lost)
        )

    def _is_lost(self, topic_id: int, number: int, at: int) -> bool:
        if not self._partitions.is_here((topic_id, number)):
            return False
        owned = self._partitions.owned.get((topic_id, number))
        return owned is None or owned.core.is_lost(at)


def _fenced(call: Join, newest: int) -> Fenced | None:
    """Why the session may not join; None where it is the newest of its name."""
    if call.incarnation < newest:
        return Fenced(
            f"producer {call.name!r} of incarnation {call.incarnation} is not the newest ({newest})",
            remedy="A producer name has one live session; close the other one or choose another name",
        )
    if call.incarnation > newest:
        return Fenced(
            f"this broker does not know incarnation {call.incarnation} of producer {call.name!r}: it came back without the log",
            remedy="Open the publisher again, and create the topic where it is gone",
        )
    return None
