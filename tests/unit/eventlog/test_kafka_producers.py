"""A producer of aiokafka ends in time, whatever Kafka does."""

from __future__ import annotations

import asyncio

import pytest

from paramstream.eventlog.kafka.settings import KafkaLog
from paramstream.eventlog.kafka.wire import aiokafka, connection_options, end_producer

pytest.importorskip("aiokafka")


def test_a_producer_that_cannot_send_what_it_has_leaves_no_task_behind() -> None:
    """What it has is for a partition whose leader it never finds."""

    async def run() -> set[str]:
        producer = aiokafka().AIOKafkaProducer(**connection_options(KafkaLog(("127.0.0.1:1",))))
        producer.client.bootstrap = _no_answer
        producer.client.wait_on_metadata = _no_answer
        await producer.start()
        batch = producer.create_batch()
        batch.append(timestamp=None, key=None, value=b"value")
        batch.close()
        producer._metadata.partitions_for_topic = _one_partition
        await producer._message_accumulator.add_batch(batch, aiokafka().TopicPartition("t", 0), 1.0)
        await asyncio.wait_for(end_producer(producer, 0.2), 10.0)
        return {str(task.get_coro()) for task in asyncio.all_tasks() if "_sender_routine" in str(task.get_coro())}

    assert asyncio.run(run()) == set()


async def _no_answer(*arguments: object) -> None:
    """Nobody knows of any topic."""


def _one_partition(topic: str) -> set[int]:
    return {0}
