"""Changelogs in Kafka: a compacted topic beside each topic's own, partition to partition, written in transactions.

A transactional id for each partition fences: opening a writer ends the one before it, and what that left open is never seen.
Readers see what was committed. Transactions cost 10 to 30 ms each, which a flush a second can bear.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from ...consistency.vector import PartitionId
from ...errors import (
    AccessDenied,
    ConnectFailed,
    Fenced,
    InvalidEvent,
    LogTruncated,
    OutcomeUnknown,
    ParamstreamTimeout,
)
from ..changelog import ChangelogRecord
from .settings import KafkaLog
from .thread import KafkaThread
from .topics import COMPACTION_LAG_S, changelog_name, new_changelog_settings
from .wire import MAX_REQUEST_BYTES, Refused, Trouble, Wire, aiokafka, connection_options, end_producer, patiently

T = TypeVar("T")

TRANSACTION_S = 60.0
"""After so long Kafka ends a transaction that its writer left open; until then readers do not see past it."""

PAGE_RECORDS = 2000


class KafkaChangelogs:
    """The changelogs of one Kafka, under one prefix. Its thread is named paramstream-changelog."""

    def __init__(self, settings: KafkaLog) -> None:
        """Connects. Raises `ConnectFailed` where no server answers, `InvalidEvent` where aiokafka is not installed."""
        self._settings = settings
        self._patience_s = 3 * settings.request_timeout_s
        self._thread = KafkaThread("paramstream-changelog")
        self._wire = Wire(settings)
        try:
            self._ask(patiently(self._wire.start, settings.request_timeout_s))
        except BaseException:
            self._thread.close()
            raise

    def open(self, partition: PartitionId, name: str, partitions: int) -> KafkaChangelog:
        """Makes the Kafka topic where there is none, and takes one that is compacted. Raises `InvalidEvent` for another one."""
        topic = changelog_name(self._settings.topic_prefix, name, partition[0])
        self._ask(self._prepare(topic, partitions))
        return KafkaChangelog(topic, partition, self._settings, self._thread)

    async def _prepare(self, topic: str, partitions: int) -> None:
        found = await self._wire.describe(topic)
        if found is None:
            settings = new_changelog_settings(self._settings)
            await self._wire.create(topic, partitions, self._settings.replication_factor, settings)
            return
        if "compact" not in found.settings.get("cleanup.policy", "compact"):
            raise InvalidEvent(
                f"the Kafka topic {topic} is not compacted, and would grow for ever",
                item="cleanup.policy",
                remedy="Set cleanup.policy=compact for the topic",
            )

    def close(self) -> None:
        """Changelogs that are still open are of no use any more."""
        try:
            self._ask(self._wire.close())
        finally:
            self._thread.close()

    def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._thread.call(work, self._patience_s)
        except Trouble as error:
            raise ConnectFailed(f"Kafka at {self._settings.servers} cannot be used: {error}") from error
        except Refused as error:
            raise AccessDenied(f"Kafka at {self._settings.servers} refuses: {error}") from error


class KafkaChangelog:
    """One partition's; see `changelog.Changelog`."""

    def __init__(self, topic: str, partition: PartitionId, settings: KafkaLog, thread: KafkaThread) -> None:
        self._topic = topic
        self._number = partition[1]
        self._settings = settings
        self._patience_s = 3 * settings.request_timeout_s
        self._thread = thread
        self._kafka = aiokafka()
        self._errors = aiokafka(".errors")
        self._place = self._kafka.TopicPartition(topic, self._number)
        self._producer: Any = None

    # Writing.

    def open_writer(self) -> None:
        self._call(self._open_writer(), self._patience_s, "be opened for writing")

    async def _open_writer(self) -> None:
        await self._end_writer()
        producer = self._kafka.AIOKafkaProducer(
            **connection_options(self._settings),
            transactional_id=f"{self._topic}.{self._number}",
            transaction_timeout_ms=round(TRANSACTION_S * 1000),
            max_batch_size=MAX_REQUEST_BYTES,
            max_request_size=MAX_REQUEST_BYTES,
            linger_ms=5,
        )
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        self._producer = producer

    def write(self, records: Sequence[ChangelogRecord]) -> None:
        self._call(self._write(records), self._patience_s, "be written")

    async def _write(self, records: Sequence[ChangelogRecord]) -> None:
        producer = self._producer
        if producer is None:
            raise Fenced(f"the changelog {self._topic} is not open for writing", partition=self._number)
        async with producer.transaction():
            # Batches are filled here: handed in one by one, each record would cost a future of its own, and five times as much in all.
            batch = producer.create_batch()
            for record in records:
                if batch.append(key=record.key, value=record.value, timestamp=None) is None:
                    await self._send(producer, batch)
                    batch = producer.create_batch()
                    batch.append(key=record.key, value=record.value, timestamp=None)
            await self._send(producer, batch)

    async def _send(self, producer: Any, batch: Any) -> None:
        sent = await producer.send_batch(batch, self._topic, partition=self._number)
        # The transaction says how all of them ended; asyncio complains of an error that nobody has looked at.
        sent.add_done_callback(_look_at)

    async def _end_writer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await end_producer(producer, self._settings.request_timeout_s)

    # Reading.

    def read(self) -> Iterator[ChangelogRecord]:
        began = time.monotonic()
        consumer, end = self._call(self._open_reader(), self._patience_s, "be read")
        try:
            while (page := self._call(self._page(consumer, end), self._patience_s, "be read")) != []:
                yield from page
                if time.monotonic() - began > COMPACTION_LAG_S:
                    raise LogTruncated(
                        f"reading the changelog {self._topic} took longer than what it replaces surely stays",
                        partition=self._number,
                        remedy="Read it from a faster machine",
                    )
        finally:
            with suppress(ConnectFailed, ParamstreamTimeout):
                self._thread.call(consumer.stop(), self._settings.request_timeout_s)

    async def _open_reader(self) -> tuple[Any, int]:
        """A consumer at the beginning, and the offset behind all that is committed by now."""
        consumer = self._kafka.AIOKafkaConsumer(
            **connection_options(self._settings),
            isolation_level="read_committed",
            auto_offset_reset="none",
            enable_auto_commit=False,
            max_partition_fetch_bytes=8 * MAX_REQUEST_BYTES,
        )
        try:
            await consumer.start()
            consumer.assign([self._place])
            start = (await consumer.beginning_offsets([self._place]))[self._place]
            end = (await consumer.end_offsets([self._place]))[self._place]
            consumer.seek(self._place, start)
        except BaseException:
            await consumer.stop()
            raise
        return consumer, int(end)

    async def _page(self, consumer: Any, end: int) -> list[ChangelogRecord]:
        """The next records before `end`; none where there are no more. Offsets have holes, where markers and compaction were."""
        while await consumer.position(self._place) < end:
            found = await consumer.getmany(self._place, timeout_ms=500, max_records=PAGE_RECORDS)
            records = [each for each in found.get(self._place, []) if each.offset < end]
            if records:
                return [ChangelogRecord(each.key or b"", each.value) for each in records]
        return []

    # Both.

    def close(self) -> None:
        if self._producer is not None:
            self._thread.call(self._end_writer(), self._patience_s)

    def _call(self, work: Coroutine[Any, Any, T], timeout_s: float, what: str) -> T:
        errors = self._errors
        try:
            return self._thread.call(work, timeout_s)
        except errors.ProducerFenced as error:
            self._producer_over()
            raise Fenced(
                f"a newer writer of the changelog {self._topic} was opened",
                partition=self._number,
                remedy="One process writes a topic's state back; close the other one",
            ) from error
        except (errors.KafkaError, AssertionError, OSError, TimeoutError, ParamstreamTimeout) as error:
            raise OutcomeUnknown(
                f"the changelog {self._topic} could not {what}: {type(error).__name__}: {error}",
                partition=self._number,
                remedy="It is opened and read anew",
            ) from error

    def _producer_over(self) -> None:
        with suppress(ConnectFailed, ParamstreamTimeout):
            self._thread.call(self._end_writer(), self._settings.request_timeout_s * 2)


def _look_at(sent: asyncio.Future[Any]) -> None:
    if not sent.cancelled():
        sent.exception()
