"""What a log in Kafka holds, read by a plain consumer, and counted by the one rule of every log as it is written down.

It shares the codec of frames with the library, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

import aiokafka

from paramstream.consistency.position import epoch_of, offset_of
from paramstream.events.codec import EventFrame, decode_event
from paramstream.events.kinds import Base, Claim, Kind

FETCH_MS = 1000
WITHIN_S = 60.0


def read_frames(bootstrap: str, prefix: str, topic_id: int, partitions: int) -> list[list[EventFrame]]:
    """All frames in each partition of the topic whose id that is, in the log's order, whether they count or not."""
    return asyncio.run(asyncio.wait_for(_read(bootstrap, prefix, topic_id, partitions), WITHIN_S))


async def _read(bootstrap: str, prefix: str, topic_id: int, partitions: int) -> list[list[EventFrame]]:
    consumer: Any = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="none")
    async with consumer:
        names = [name for name in await consumer.topics() if name.startswith(prefix)]
        (name,) = [name for name in names if name.endswith(f".{topic_id:016x}")]
        return [await _read_partition(consumer, name, number) for number in range(partitions)]


async def _read_partition(consumer: Any, topic: str, number: int) -> list[EventFrame]:
    place = aiokafka.TopicPartition(topic, number)
    consumer.assign([place])
    (start,) = (await consumer.beginning_offsets([place])).values()
    (end,) = (await consumer.end_offsets([place])).values()
    consumer.seek(place, start)
    frames: list[EventFrame] = []
    while await consumer.position(place) < end:
        for record in (await consumer.getmany(place, timeout_ms=FETCH_MS)).get(place, []):
            frames.append(decode_event(record.value))
    return frames


def counted(frames: Iterable[EventFrame]) -> Iterator[EventFrame]:
    """Those that count: a claim above all claims before it, and of the rest what the latest claim's owner wrote, at the next
    position. Claims and bases are left out."""
    epoch = nonce = reached = 0
    for frame in frames:
        match frame.payload:
            case Claim():
                if frame.payload.epoch > epoch:
                    epoch, nonce = frame.payload.epoch, frame.payload.nonce
            case Base():
                if not epoch:  # The log was cut directly before it.
                    epoch, nonce, reached = frame.payload.epoch, frame.nonce, frame.position
            case _:
                if frame.nonce != nonce or epoch_of(frame.position) != epoch:
                    continue
                opens = frame.kind is Kind.EPOCH and offset_of(frame.position) == 0 and epoch > epoch_of(reached)
                if opens or (frame.kind is not Kind.EPOCH and frame.position == reached + 1):
                    reached = frame.position
                    yield frame
