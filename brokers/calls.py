"""What clients ask of a broker beside events: topics, tables, names, joins, and what is known of versions and replicas.

An answer that promises something durable is given when `__meta` (or every partition concerned) has it for good; until then
it stands in `Waiting`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import getrandbits
from typing import Any

import msgspec

from ..consistency.vector import PartitionId
from ..errors import Fenced, ParamstreamError, UnknownTopic
from ..events.codec import decode_vector
from ..events.kinds import Payload
from ..transport.calls import (
    AwaitDurable,
    BrokerRecord,
    CreateTable,
    CreateTopic,
    DeleteTopic,
    DescribeBroker,
    DescribePartitions,
    Join,
    Joined,
    ListReplicas,
    ListTopics,
    ListVersions,
    OpenProducer,
    OpenReplica,
    PartitionRecord,
    PrepareCommit,
    TopicRecord,
    Unconfirmed,
    VersionRecord,
)
from ..transport.messages import Report
from .meta import Entry, MetaState
from .partitions import META, Owned, Partitions
from .peers import Peer
from .retention import Lease

_log = logging.getLogger(__name__)

REMEMBER_S = 600.0
"""How long a replica that reports no more is still listed, with the age of its last report."""

Answer = Callable[[Any], None]
Write = Callable[[PartitionId, Payload, Sequence[bytes]], int]
"""Writes the broker's own event to a partition; returns its position."""


@dataclass(slots=True)
class Waiting:
    """An answer that is given once every partition in `needs` is durable up to the position beside it."""

    needs: dict[PartitionId, int]
    give: Callable[[], None]


class Calls:
    """Answers requests in the broker's loop. `write` appends to a partition, `start_topic` opens a new topic's partitions."""

    def __init__(
        self,
        partitions: Partitions,
        write: Write,
        monotonic_ns: Callable[[], int],
        drop_followers: Callable[[PartitionId], None],
        describe_broker: Callable[[], BrokerRecord],
    ) -> None:
        self._partitions = partitions
        self._write = write
        self._monotonic_ns = monotonic_ns
        self._drop_followers = drop_followers
        self._describe_broker = describe_broker
        self._waiting: list[Waiting] = []
        self._reports: dict[str, tuple[float, Report]] = {}
        self._opened: dict[tuple[str, str], float] = {}
        """(kind, name) of producers and replicas that were opened lately, with when: they may not have come yet."""
        self._began = time.monotonic()

    @property
    def meta(self) -> MetaState:
        return self._partitions.meta

    def answer(self, peer: Peer, call: Any, answer: Answer) -> None:
        """Calls `answer` now or once the answer is durable. Raises the typed error to send instead."""
        match call:
            case CreateTopic():
                self._create_topic(call, answer)
            case DeleteTopic():
                self._delete_topic(call, answer)
            case ListTopics():
                answer(self.meta.topics())
            case CreateTable():
                self._create_table(call, answer)
            case OpenProducer():
                self._open_name("producer", call.name, self.meta.open_producer(call.name), answer)
            case OpenReplica():
                self._open_name("replica", call.name, self.meta.open_replica(call.name), answer)
            case Join():
                self._join(peer, call, answer)
            case ListVersions():
                answer(self._versions(call))
            case ListReplicas():
                answer(self.reports(call.topic))
            case DescribePartitions():
                answer(self._describe(call.topic))
            case PrepareCommit():
                self._prepare_commit(call, answer)
            case AwaitDurable():
                self._await_durable(call, answer)
            case DescribeBroker():
                answer(self._describe_broker())
            case _:
                raise ParamstreamError(
                    f"this broker does not know the call {type(call).__name__}", remedy="Upgrade the broker"
                )

    def durable_moved(self) -> None:
        """Give the answers that have become durable."""
        if not self._waiting:
            return
        still: list[Waiting] = []
        for waiting in self._waiting:
            if all(self._is_durable(partition, at) for partition, at in waiting.needs.items()):
                waiting.give()
            else:
                still.append(waiting)
        self._waiting = still

    def reported(self, report: Report) -> None:
        """Raises `CorruptLog` where its vector is none: whoever asks for reports would be told so instead of the reporter."""
        decode_vector(report.applied)
        self._reports[report.name] = (time.monotonic(), report)

    def reports(self, topic: int | None = None) -> list[Report]:
        """The newest report of each replica (that follows the topic), with its age."""
        now = time.monotonic()
        return [
            msgspec.structs.replace(report, age_s=now - at)
            for at, report in self._reports.values()
            if topic is None or topic in report.topics
        ]

    def leases(self, partition: PartitionId) -> list[Lease]:
        """What reports say is still needed of a partition, and of its versions."""
        now, topic = time.monotonic(), partition[0]
        found: list[Lease] = []
        for name, (at, report) in self._reports.items():
            if topic not in report.topics:
                continue
            position = next((need for *where, need in report.needs if tuple(where) == partition), None)
            # A pinned version may stay for long; it is in memory, and must not hold the log meanwhile.
            served = [] if topic in report.pinned else [commit for of, _, commit, _ in report.served if of == topic]
            fetched = [commit for of, commit in report.fetching if of == topic]
            found.append(Lease(name, position, now - at, (*served, *fetched)))
        return found

    def forget_reports(self) -> None:
        """Drop those so old that nobody asks for them any more: names of replicas are without number."""
        before = time.monotonic() - REMEMBER_S
        self._reports = {name: known for name, known in self._reports.items() if known[0] > before}

    def forget_names(self, producing: Iterable[str], following: Iterable[str]) -> None:
        """Drop from `__meta` the names that nobody has: of producers those that no partition knows and that are not `producing`,
        of replicas those that no report names and that are not `following`.
        """
        before = time.monotonic() - REMEMBER_S
        if before < self._began:
            # Sessions of the start before may be on their way back; under "none" no partition knows their names.
            return
        self._opened = {opened: at for opened, at in self._opened.items() if at > before}
        lately: dict[str, set[str]] = {"producer": set(), "replica": set()}
        for kind, name in self._opened:
            lately[kind].add(name)
        held = (name for owned in self._partitions.owned.values() for name in owned.core.names())
        entry = self.meta.forget_names(
            {*producing, *lately["producer"], *held}, {*following, *lately["replica"], *self._reports}
        )
        if entry is not None:
            self._write(META, entry.payload, entry.bulk)

    # --- topics and tables --------------------------------------------------------------------------------------------------

    def _create_topic(self, call: CreateTopic, answer: Answer) -> None:
        entry, record = self.meta.create_topic(call, getrandbits(63) + 1)
        if entry is not None:
            # A topic that `__meta` knows has all its partitions; folders that it does not know go at the next start.
            self._partitions.open_new_topic(record)
            _log.info("topic %r is created, %016x", record.name, record.id)
        needs = self._written(entry)
        self._when(needs, lambda: answer(record))

    def _delete_topic(self, call: DeleteTopic, answer: Answer) -> None:
        entry, record = self.meta.delete_topic(call.name)
        needs = self._written(entry)
        for number in range(record.partitions + 1):
            self._drop_followers((record.id, number))
        self._partitions.drop_topic(record)
        _log.info("topic %r is deleted, %016x", record.name, record.id)
        self._when(needs, lambda: answer(None))

    def _create_table(self, call: CreateTable, answer: Answer) -> None:
        topic = self._topic(call.topic)
        name, partitions = call.table.table, [(topic.id, number) for number in range(topic.partitions)]
        if any(self._partitions.owned[each].core.table(name) != call.table for each in partitions):
            # A call before may have failed half way: the same one again fills in what is missing.
            call = msgspec.structs.replace(call, exist_ok=True)
        needs = self._written(self.meta.create_table(call))
        for partition in partitions:
            owned = self._partitions.owned[partition]
            if owned.core.table(name) == call.table:
                needs[partition] = owned.core.sequenced
            elif owned.error is None:
                needs[partition] = self._write(partition, call.table, ())
        stopped = {p: error for p in partitions if (error := self._partitions.owned[p].error) is not None}
        if stopped:
            raise _undefined(topic, name, stopped)
        self._when(needs, lambda: answer(None))

    # --- names and joins ----------------------------------------------------------------------------------------------------

    def _open_name(self, kind: str, name: str, opened: tuple[Entry, int], answer: Answer) -> None:
        entry, incarnation = opened
        _log.info("%s %r is opened, incarnation %d", kind, name, incarnation)
        self._opened[kind, name] = time.monotonic()
        self._when(self._written(entry), lambda: answer(incarnation))

    def _join(self, peer: Peer, call: Join, answer: Answer) -> None:
        newest = self.meta.producer_incarnation(call.name)
        if call.incarnation < newest:
            raise Fenced(
                f"producer {call.name!r} of incarnation {call.incarnation} is not the newest ({newest})",
                remedy="A producer name has one live session; close the other one or choose another name",
            )
        if call.incarnation > newest:
            raise Fenced(
                f"this broker does not know incarnation {call.incarnation} of producer {call.name!r}: it came back without the log",
                remedy="Open the publisher again, and create the topic where it is gone",
            )
        unconfirmed: dict[PartitionId, Unconfirmed] = {(u.topic, u.partition): u for u in call.unconfirmed}
        peer.joined[call.incarnation] = call.name
        healthy = {p: owned.core for p, owned in self._partitions.owned.items() if p != META and owned.error is None}
        joined = Joined(
            tuple(
                core.join(call.name, call.incarnation, unconfirmed.get(p), peer.serial) for p, core in healthy.items()
            )
        )
        self._when({p: core.answers_wait_for for p, core in healthy.items()}, lambda: answer(joined))

    # --- what is known ------------------------------------------------------------------------------------------------------

    def _versions(self, call: ListVersions) -> list[VersionRecord]:
        topic = self._topic(call.topic)
        return self._healthy((topic.id, topic.partitions)).core.versions(call.commit)

    def _describe(self, topic_id: int) -> list[PartitionRecord]:
        topic = self._topic(topic_id)
        now = self._monotonic_ns()
        records: list[PartitionRecord] = []
        for number in range(topic.partitions + 1):
            owned = self._healthy((topic.id, number))
            records.append(owned.core.describe(owned.log.start, now))
        return records

    def _prepare_commit(self, call: PrepareCommit, answer: Answer) -> None:
        topic = self._topic(call.topic)
        weights = topic.id, topic.partitions
        core = self._healthy(weights).core
        prepared = core.prepare_commit(call)
        self._when({weights: core.answers_wait_for}, lambda: answer(prepared))

    def _await_durable(self, call: AwaitDurable, answer: Answer) -> None:
        needs: dict[PartitionId, int] = {}
        for topic_id, number, at in call.positions:
            partition = self._topic(topic_id).id, number
            if partition in self._partitions.owned and not self._healthy(partition).core.is_lost(at):
                needs[partition] = max(at, needs.get(partition, 0))
        self._when(needs, lambda: answer([at for at in call.positions if self._is_lost(*at)]))

    def _is_lost(self, topic_id: int, number: int, at: int) -> bool:
        owned = self._partitions.owned.get((topic_id, number))
        return owned is None or owned.core.is_lost(at)

    def _topic(self, topic_id: int) -> TopicRecord:
        topic = self.meta.topic_by_id(topic_id)
        if topic is None:
            raise UnknownTopic(
                f"no topic with the id {topic_id:016x}", remedy="It was deleted; look it up by name again"
            )
        return topic

    def _healthy(self, partition: PartitionId) -> Owned:
        owned = self._partitions.owned[partition]
        if owned.error is not None:
            raise owned.error
        return owned

    def _written(self, entry: Entry | None) -> dict[PartitionId, int]:
        """Write the entry to `__meta`, if there is one; what an answer that rests on it waits for."""
        position = self._partitions.owned[META].core.sequenced
        return {META: self._write(META, entry.payload, entry.bulk) if entry is not None else position}

    # --- waiting ------------------------------------------------------------------------------------------------------------

    def _when(self, needs: dict[PartitionId, int], give: Callable[[], None]) -> None:
        self._waiting.append(Waiting(needs, give))
        self.durable_moved()

    def _is_durable(self, partition: PartitionId, position: int) -> bool:
        owned = self._partitions.owned.get(partition)
        return owned is None or owned.core.durable >= position


def _undefined(topic: TopicRecord, table: str, stopped: Mapping[PartitionId, ParamstreamError]) -> ParamstreamError:
    """Of the kind of the first one's error, naming all partitions that lack the table."""
    (_, number), first = next(iter(stopped.items()))
    numbers = ", ".join(str(each) for _, each in stopped)
    return type(first)(
        f"state partitions {numbers} lack the table, the others have it: {first.problem}",
        topic=topic.name,
        partition=number,
        item=table,
        remedy="Create it again once they take events: what is missing is filled in",
    )
