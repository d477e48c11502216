"""The calls that change what `__meta` says of topics and tables.

A new topic's partitions are opened in the worker before `__meta` names it: a topic that is known has room in the log. Its
other partitions are opened by their owners, as soon as they read of it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from random import getrandbits

import msgspec

from ..consistency.vector import PartitionId
from ..errors import NotOwner, ParamstreamError, UnknownTopic
from ..eventlog.log import EventLog
from ..transport.calls import CreateTable, CreateTopic, DeleteTopic, DescribeStorage, TopicRecord
from .meta import Entry
from .opening import Opener
from .owned import META, Owned
from .owning import Owning
from .partition import PartitionSettings
from .partitions import Partitions
from .pending import Pending, Reply, Write
from .worker import Worker

_log = logging.getLogger(__name__)


class Topics:
    """In the loop's thread. What raises is the answer."""

    def __init__(self, partitions: Partitions, owning: Owning, worker: Worker, pending: Pending, write: Write) -> None:
        self._partitions = partitions
        self._owning = owning
        self._worker = worker
        self._pending = pending
        self._write = write
        self._creating: dict[str, list[tuple[CreateTopic, Reply]]] = {}
        """Names of topics whose partitions are being opened, with the calls that wait for how it ends."""

    def by_id(self, topic_id: int) -> TopicRecord:
        """Raises `UnknownTopic`."""
        topic = self._partitions.meta.topic_by_id(topic_id)
        if topic is None:
            raise UnknownTopic(
                f"no topic with the id {topic_id:016x}", remedy="It was deleted; look it up by name again"
            )
        return topic

    def written(self, entry: Entry | None) -> dict[PartitionId, int]:
        """Write the entry to `__meta`, if there is one; what an answer that rests on it waits for."""
        if entry is not None:
            return {META: self._write(META, entry.payload, entry.bulk)}
        return {META: self._partitions.owned[META].core.sequenced}

    def create(self, call: CreateTopic, reply: Reply) -> None:
        entry, record = self._partitions.meta.create_topic(call, getrandbits(63) + 1)
        if entry is None:
            self._pending.when(self.written(None), lambda: reply.answer(record))
        elif call.name in self._creating:
            self._creating[call.name].append((call, reply))
        else:
            self._creating[call.name] = []
            partitions = self._partitions
            settings = partitions.settings_of(record)
            job = partial(_open_new, partitions.log, partitions.opener, record, settings)
            self._worker.do(job, partial(self._created, entry, record, reply))

    def _created(self, entry: Entry, record: TopicRecord, reply: Reply, result: list[Owned] | ParamstreamError) -> None:
        waiting = self._creating.pop(record.name)
        partitions = self._partitions
        if isinstance(result, ParamstreamError):
            reply.fail(result)
        elif not partitions.has_meta or self._owning.is_revoking:
            reply.fail(NotOwner("the brokers have shared their work anew", topic=record.name, remedy="Create it again"))
            self._drop(record)
        else:
            for owned in result:
                if partitions.ownership.has(owned.core.partition):
                    partitions.take(owned)
            _log.info("topic %r is created, %016x", record.name, record.id)
            self._pending.when(self.written(entry), lambda: reply.answer(record))
            self._owning.reconcile()
        for call, other in waiting:
            try:
                self.create(call, other)
            except ParamstreamError as error:
                other.fail(error)

    def delete(self, call: DeleteTopic, reply: Reply) -> None:
        entry, record = self._partitions.meta.delete_topic(call.name)
        needs = self.written(entry)
        self._owning.reconcile()
        _log.info("topic %r is deleted, %016x", record.name, record.id)
        self._pending.when(needs, lambda: self._deleted(record, reply))

    def _deleted(self, record: TopicRecord, reply: Reply) -> None:
        """Not where another broker owns `__meta` by now: there the topic may stand yet. What that one drops it drops itself."""
        if self._partitions.has_meta:
            self._drop(record, reply)

    def _drop(self, record: TopicRecord, reply: Reply | None = None) -> None:
        """Free what the log holds of it: only once nobody can come to know the topic any more."""

        def dropped(result: ParamstreamError | None) -> None:
            if isinstance(result, ParamstreamError):
                _log.info("the log keeps what it holds of topic %r: %s", record.name, result)
            if reply is not None:
                reply.answer(None)

        self._worker.do(lambda: self._partitions.log.drop_topic(record.id), dropped)

    def describe_storage(self, call: DescribeStorage, reply: Reply) -> None:
        """Asks the log, which may take a while."""
        record = self.by_id(call.topic)

        def described(result: dict[str, str] | ParamstreamError) -> None:
            if isinstance(result, ParamstreamError):
                reply.fail(result)
            else:
                reply.answer(result)

        self._worker.do(lambda: dict(self._partitions.log.describe_topic(record.id)), described)

    def create_table(self, call: CreateTable, reply: Reply) -> None:
        """In the partitions that are this broker's. The owner of `__meta` defines it first, and the others fill in.

        The answer is whether any partition lacked it.
        """
        topic, name = self.by_id(call.topic), call.table.table
        owned = {
            (topic.id, number): each
            for number in range(topic.partitions)
            if (each := self._partitions.owned.get((topic.id, number))) is not None
        }
        lacked = any(each.core.table(name) != call.table for each in owned.values())
        if not self._partitions.has_meta or lacked:
            # A call before may have failed half way: the same one again fills in what is missing.
            call = msgspec.structs.replace(call, exist_ok=True)
        entry = self._partitions.meta.create_table(call)
        needs: dict[PartitionId, int] = {}
        if self._partitions.has_meta:
            needs = self.written(entry)
        elif entry is not None:
            raise NotOwner("the owner of __meta defines a table first", topic=topic.name, item=name)
        for partition, each in owned.items():
            if each.core.table(name) == call.table:
                needs[partition] = each.core.sequenced
            elif each.error is None:
                needs[partition] = self._write(partition, call.table, ())
        stopped = {partition: each.error for partition, each in owned.items() if each.error is not None}
        if stopped:
            raise _undefined(topic, name, stopped)
        self._pending.when(needs, lambda: reply.answer(lacked))


def _open_new(
    log: EventLog, opener: Opener, record: TopicRecord, settings: Mapping[PartitionId, PartitionSettings]
) -> list[Owned]:
    """Make room in the log for a new topic, and open this broker's partitions of it: all of them or none."""
    try:
        log.create_topic(record.id, record.name, record.partitions + 1)
        return [opener.open(partition, each) for partition, each in settings.items()]
    except ParamstreamError as error:
        error.topic = error.topic or record.name
        with suppress(ParamstreamError):
            log.drop_topic(record.id)
        raise


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
