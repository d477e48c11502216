"""The event log in Kafka: all partitions that a broker has open; see `log.EventLog`.

Several brokers share one: a partition is appended to by the one whose claim stands, and any may read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from threading import Lock
from typing import Any, TypeVar

from ...consistency.vector import PartitionId
from ...errors import AccessDenied, ConnectFailed, UnknownTopic
from ..log import Member, Share, SlotListener
from ..tally import Tally, segment_nbytes_for
from .group import SlotGroup
from .membership import SlotMap
from .partition import KafkaPartition
from .scan import Place
from .settings import KafkaLog
from .tail import Tail
from .thread import KafkaThread
from .topics import CHANGELOG, check_settings, kafka_name, new_topic_settings, shown_settings, topic_of
from .wire import TOPIC_GONE_S, Refused, Trouble, Wire, patiently

T = TypeVar("T")

DEFAULT_LIMIT = 64 * 1024**3
"""`log_limit` where none is given."""


class KafkaEventLog:
    """One Kafka, under one prefix. Its thread is named paramstream-kafka."""

    def __init__(self, settings: KafkaLog, limit: int = DEFAULT_LIMIT) -> None:
        """Connects. Raises `ConnectFailed` where no server answers, `InvalidEvent` where aiokafka is not installed."""
        self.settings = settings
        self._limit = limit
        self._segment_nbytes = segment_nbytes_for(limit)
        self._tally = Tally()
        self._lock = Lock()
        self._names = dict[int, str]()
        """Topic id → the Kafka topic, as far as they were asked for."""
        self._owned = dict[PartitionId, KafkaPartition]()
        """What this broker has appended to."""
        self._closed = False
        self._patience_s = TOPIC_GONE_S + 3 * settings.request_timeout_s
        """How long a call that waits for Kafka asks again, and how long it may take to learn that a topic is gone."""
        self._thread = KafkaThread()
        try:
            self._wire = self._thread.call(_connected(settings), self._patience_s)
        except (Trouble, Refused) as error:
            self._thread.close()
            raise ConnectFailed(
                f"no Kafka answers at {settings.servers}: {error}",
                remedy="Check bootstrap_servers and security settings",
            ) from error
        except BaseException:
            self._thread.close()
            raise

    @property
    def shared(self) -> bool:
        return True

    @property
    def durable_on_append(self) -> bool:
        return False

    @property
    def boot(self) -> str:
        return ""

    @property
    def failed_writes(self) -> int:
        return 0

    @property
    def segment_nbytes(self) -> int:
        return self._segment_nbytes

    @property
    def nbytes(self) -> int:
        """Of the partitions that are owned here; those of other brokers count there."""
        return self._tally.nbytes

    @property
    def limit(self) -> int:
        return self._limit

    def partitions(self) -> list[PartitionId]:
        """Asks Kafka. Blocks."""
        return self._ask(self._held())

    async def _held(self) -> list[PartitionId]:
        found = list[PartitionId]()
        for name, partitions in (await self._wire.topics()).items():
            topic = topic_of(self.settings.topic_prefix, name)
            if topic is not None:
                places = [Place(self._wire, name, (topic, number)) for number in range(partitions)]
                ends = await asyncio.gather(*(place.ends() for place in places))
                found += [place.partition for place, (start, end) in zip(places, ends, strict=True) if end > start]
        waiting = [key for key, partition in list(self._owned.items()) if partition.nbytes]
        return sorted({*found, *waiting})

    def create_topic(self, topic: int, name: str, partitions: int) -> None:
        """Makes the Kafka topic, or takes the one with that id.

        Raises `InvalidEvent` naming a setting that cannot be lived with, `AccessDenied` or `ConnectFailed` as Kafka answers.
        """
        self._ask(self._create(topic, name, partitions))

    async def _create(self, topic: int, name: str, partitions: int) -> None:
        kafka_topic = await self._find_name(topic) or kafka_name(self.settings.topic_prefix, name, topic)
        found = await self._wire.describe(kafka_topic)
        if found is None:
            settings = new_topic_settings(self.settings)
            await self._wire.create(kafka_topic, partitions, self.settings.replication_factor, settings)
            # Until the node that is asked has heard of it.
            found = await patiently(lambda: self._wire.describe(kafka_topic), self.settings.request_timeout_s)
        if found is not None:
            check_settings(kafka_topic, found)
            if found.partitions < partitions:
                await self._wire.widen(kafka_topic, partitions)
        for number in range(partitions):
            place = Place(self._wire, kafka_topic, (topic, number))
            await patiently(place.ends, self.settings.request_timeout_s)  # Until every partition has a leader.
        self._names[topic] = kafka_topic

    async def _find_name(self, topic: int) -> str | None:
        known = self._names.get(topic)
        if known is None:
            for name in await self._wire.topics():
                if topic_of(self.settings.topic_prefix, name) == topic:
                    known = self._names[topic] = name
        return known

    def changelogs(self) -> bytes:
        return self.settings.encode()

    def describe_topic(self, topic: int) -> Mapping[str, str]:
        """The Kafka topic's name, partitions, replication and settings; empty where there is none. Blocks."""
        return self._ask(self._describe(topic))

    async def _describe(self, topic: int) -> Mapping[str, str]:
        name = await self._find_name(topic)
        found = None if name is None else await self._wire.describe(name)
        return {} if name is None or found is None else shown_settings(name, found)

    def open(self, partition: PartitionId) -> KafkaPartition:
        """A new object each time: an owner that comes back recovers anew. One that was appended to takes no more once a newer one is.

        Raises `UnknownTopic` where Kafka has no topic with that id. May block.
        """
        return KafkaPartition(
            self._place(partition),
            thread=self._thread,
            segment_nbytes=self._segment_nbytes,
            tally=self._tally,
            patience_s=self._patience_s,
            owned=self._own,
        )

    def _own(self, opened: KafkaPartition) -> None:
        """It is appended to for the first time."""
        with self._lock:
            former = self._owned.get(opened.partition)
            self._owned[opened.partition] = opened
        if former is not None:
            former.release()

    def release(self, partition: PartitionId) -> None:
        """This broker owns it no longer: nothing more is appended, and its bytes do not count here. Nothing where it owned none."""
        with self._lock:
            released = self._owned.pop(partition, None)
        if released is not None:
            released.release()

    def join(self, member: Member, slots: int, listener: SlotListener) -> SlotGroup:
        def assigned(slot_map: SlotMap) -> None:
            shares = [Share(each.broker, each.endpoint, each.slots) for each in slot_map.members]
            listener.assigned(slot_map.number, shares)

        group = SlotGroup(
            self.settings,
            name=member.name,
            broker=member.broker,
            endpoint=member.endpoint,
            slots=slots,
            revoking=listener.revoking,
            assigned=assigned,
        )
        group.start()
        return group

    def follow(self, partition: PartitionId) -> Tail:
        """Reads a partition that another broker owns. Raises as `open` does."""
        return Tail(*self.reaching(partition))

    def reaching(self, partition: PartitionId) -> tuple[Place, KafkaThread, float]:
        """What a reader of the partition asks with: where it is, the thread, and how long a call may take. Raises as `open` does."""
        return self._place(partition), self._thread, self._patience_s

    def _place(self, partition: PartitionId) -> Place:
        name = self._names.get(partition[0]) or self._ask(self._find_name(partition[0]))
        if name is None:
            raise UnknownTopic(
                f"Kafka has no topic with the id {partition[0]:016x} under {self.settings.topic_prefix!r}",
                partition=partition[1],
            )
        return Place(self._wire, name, partition)

    def drop_topic(self, topic: int) -> None:
        for partition in [each for each in list(self._owned) if each[0] == topic]:
            self.release(partition)
        self._ask(self._drop(topic))

    async def _drop(self, topic: int) -> None:
        name = await self._find_name(topic)
        self._names.pop(topic, None)
        if name is not None:
            await self._wire.delete(name)
        for changelog in await self._wire.topics():
            if topic_of(self.settings.topic_prefix, changelog.removesuffix(CHANGELOG)) == topic:
                await self._wire.delete(changelog)

    def close(self) -> None:
        """Waits for what was appended, as long as a request may take; raises `ConnectFailed` where it is not durable by then."""
        if self._closed:
            return
        self._closed = True
        late = [each for each in self._owned.values() if not each.settle(self.settings.request_timeout_s)]
        for partition in self._owned.values():
            partition.release()
        try:
            self._thread.call(self._wire.close(), self._patience_s)
        finally:
            self._thread.close()
        if late:
            raise ConnectFailed(f"{len(late)} partitions were closed before all of them was durable: {late[0].trouble}")

    def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._thread.call(work, self._patience_s)
        except Trouble as error:
            raise ConnectFailed(f"Kafka at {self.settings.servers} cannot be used: {error}") from error
        except Refused as error:
            raise AccessDenied(f"Kafka at {self.settings.servers} refuses: {error}") from error


async def _connected(settings: KafkaLog) -> Wire:
    wire = Wire(settings)
    await patiently(wire.start, settings.request_timeout_s)
    return wire
