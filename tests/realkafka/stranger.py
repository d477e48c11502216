"""What other programs do to a Kafka that a log lies in: write between our records, remove some, change settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from paramstream.eventlog.kafka.settings import KafkaLog
from paramstream.eventlog.kafka.thread import KafkaThread
from paramstream.eventlog.kafka.wire import aiokafka


class Stranger:
    """Each call connects, does the one thing, and is done when it returns."""

    def __init__(self, settings: KafkaLog) -> None:
        self._servers = settings.servers

    @contextmanager
    def member(self, group: str, topic: str) -> Generator[None]:
        """Within, an ordinary consumer is a member of the group."""

        async def join() -> Any:
            consumer = aiokafka().AIOKafkaConsumer(bootstrap_servers=self._servers, group_id=group)
            consumer.subscribe([topic])
            await consumer.start()
            await consumer.getmany(timeout_ms=100)
            while not consumer.assignment():
                await asyncio.sleep(0.05)
            return consumer

        thread = KafkaThread("paramstream-stranger")
        try:
            consumer = thread.call(join(), 20.0)
            try:
                yield
            finally:
                thread.call(consumer.stop(), 20.0)
        finally:
            thread.close()

    def write(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        async def write(producer: Any) -> None:
            for value in values:
                await producer.send_and_wait(topic, value, partition=partition)

        self._produce(write)

    def write_transactions(
        self, topic: str, transactions: Sequence[tuple[bool, Sequence[bytes]]], key: bytes | None = None
    ) -> None:
        """(whether it is committed, its values) of each; all have that key. Returns once the markers stand."""

        async def write(producer: Any) -> None:
            for is_committed, values in transactions:
                await producer.begin_transaction()
                for value in values:
                    await producer.send_and_wait(topic, value, key, partition=0)
                await (producer.commit_transaction() if is_committed else producer.abort_transaction())

        self._produce(write, transactional_id="stranger")

    def _produce(self, write: Callable[[Any], Awaitable[None]], **options: Any) -> None:
        async def run() -> None:
            producer = aiokafka().AIOKafkaProducer(
                bootstrap_servers=self._servers, max_request_size=1 << 20, **{"acks": "all", **options}
            )
            await producer.start()
            try:
                await write(producer)
            finally:
                await producer.stop()

        asyncio.run(run())

    def make_topic(self, topic: str, partitions: int = 1, /, **settings: str) -> None:
        """Returns once the node that answers knows it."""

        async def make(admin: Any) -> None:
            configs = {name.replace("_", "."): value for name, value in settings.items()}
            new = aiokafka(".admin").NewTopic(topic, partitions, 1, topic_configs=configs)
            response = await admin.create_topics([new])
            assert response.topic_errors[0][1] == 0, response
            async with asyncio.timeout(10.0):
                while topic not in await admin.list_topics():
                    await asyncio.sleep(0.01)

        self._administer(make)

    def has_topic(self, topic: str) -> bool:
        """Whether the node that answers knows it."""
        known: list[str] = []

        async def look(admin: Any) -> None:
            known.extend(await admin.list_topics())

        self._administer(look)
        return topic in known

    def delete_topic(self, topic: str) -> None:
        self._administer(lambda admin: admin.delete_topics([topic]))

    def set(self, topic: str, **settings: str) -> None:
        """Replaces all settings of the topic."""

        async def change(admin: Any) -> None:
            resources = aiokafka(".admin.config_resource")
            configs = {name.replace("_", "."): value for name, value in settings.items()}
            resource = resources.ConfigResource(resources.ConfigResourceType.TOPIC, topic, configs=configs)
            await admin.alter_configs([resource])

        self._administer(change)

    def delete_records(self, topic: str, before: int) -> None:
        async def delete(admin: Any) -> None:
            place = aiokafka().TopicPartition(topic, 0)
            await admin.delete_records({place: aiokafka(".admin").RecordsToDelete(before)})

        self._administer(delete)

    def _administer(self, work: Callable[[Any], Awaitable[Any]]) -> None:
        async def run() -> None:
            admin = aiokafka(".admin").AIOKafkaAdminClient(bootstrap_servers=self._servers)
            await admin.start()
            try:
                await work(admin)
            finally:
                await admin.close()

        asyncio.run(run())
