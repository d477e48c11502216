"""All that is asked of Kafka, typed: the one file that touches aiokafka, which knows no types and is imported only here and only when used.

Everything here runs in the Kafka thread's loop. What goes wrong is told in five words:

    Trouble       it may pass; whether the request was carried out is unknown
    TopicUnknown  the node knows no such topic (a moment after it was made, or for good after it was deleted): a `Trouble`
    TooLarge      Kafka takes no batch of that size in this topic
    OutOfRange    the log does not hold that offset
    Refused       Kafka says no, and will say it again
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from ...errors import CorruptLog, InvalidEvent
from .records import Record
from .settings import KafkaLog

_log = logging.getLogger(__name__)
T = TypeVar("T")

TOPIC_GONE_S = 3.0
"""A topic that Kafka has not known for so long was deleted; for a moment a new or moving one, or any of a node that has just
started, is unknown too."""

RETRY_PAUSE_S = 0.1
MAX_REQUEST_BYTES = 1024 * 1024
FETCH_WAIT_MS = 100
_READ_UNCOMMITTED = 0
_EARLIEST, _LATEST = -2, -1
_TOPIC = 2
"""The kind of a resource whose settings are asked for."""


class Trouble(Exception):
    """It may pass; whether the request was carried out is unknown."""


class TopicUnknown(Trouble):
    """The node that was asked knows no such topic."""


class TooLarge(Exception):
    """Kafka takes no batch of that size in this topic. Nothing of it stands."""


class OutOfRange(Exception):
    """The log does not hold that offset."""


class Refused(Exception):
    """Kafka says no, and will say it again."""


class Page(NamedTuple):
    """What one fetch brought."""

    records: list[Record]
    """In order; from the beginning of the batch that holds the offset asked for, so the first may lie before it."""
    next_offset: int
    """Where to go on: what lies between takes offsets and holds nothing for us."""


class TopicSettings(NamedTuple):
    partitions: int
    replication: int
    settings: dict[str, str]


def aiokafka(module: str = "") -> Any:
    """The module of aiokafka. Raises `InvalidEvent` where it is not installed."""
    try:
        return importlib.import_module("aiokafka" + module)
    except ModuleNotFoundError as error:
        raise InvalidEvent(
            f"a log in Kafka needs {error.name}, which is not installed",
            item="log",
            remedy="pip install 'paramstream[kafka]'",
        ) from error


def connection_options(settings: KafkaLog) -> dict[str, Any]:
    """What every client of aiokafka is given."""
    options: dict[str, Any] = {
        "bootstrap_servers": list(settings.bootstrap_servers),
        "request_timeout_ms": round(settings.request_timeout_s * 1000),
        "security_protocol": settings.security_protocol,
        "ssl_context": settings.tls(),
        "retry_backoff_ms": 100,
        "metadata_max_age_ms": 30_000,
    }
    if settings.uses_sasl:
        options |= {
            "sasl_mechanism": settings.sasl_mechanism,
            "sasl_plain_username": settings.sasl_plain_username,
            "sasl_plain_password": settings.sasl_plain_password,
        }
    return options


def read_page(partition: int, data: bytes, offset: int) -> Page:
    """What a fetch from `offset` on was answered with. Damage behind the first record ends the page; the next one meets it.

    Raises `CorruptLog` where a batch's checksum does not match, or it holds something else than its form says.
    """
    found, next_offset, batches = list[Record](), offset, aiokafka(".record.memory_records").MemoryRecords(data)
    try:
        while batches.has_next():
            batch = batches.next_batch()
            if not batch.validate_crc():
                raise CorruptLog(f"the batch at Kafka's offset {next_offset} fails its checksum", partition=partition)
            rows: list[Record] = []
            if not (batch.is_control_batch or getattr(batch, "is_transactional", False)):
                rows = [Record(each.offset, each.key, each.value or b"") for each in batch]
            found += rows
            next_offset = max(next_offset, batch.next_offset)
    except CorruptLog:
        if not found:
            raise
    except (aiokafka(".errors").KafkaError, ValueError, LookupError, ArithmeticError, SystemError) as error:
        # The last one is how aiokafka's compiled reader meets a negative length.
        if not found:
            raise CorruptLog(
                f"the batch at Kafka's offset {next_offset} cannot be read: {_text(error)}", partition=partition
            ) from error
    return Page(found, next_offset)


async def end_producer(producer: Any, within_s: float) -> None:
    """Stop a producer of aiokafka, whatever Kafka does. Its own `stop` waits for what it still has to send: while Kafka is away
    that never ends, and one that is cancelled leaves its task and connections behind.
    """
    with suppress(asyncio.TimeoutError, aiokafka(".errors").KafkaError):
        await asyncio.wait_for(producer.stop(), within_s)
        return
    with suppress(asyncio.CancelledError, aiokafka(".errors").KafkaError):
        await producer._sender.close()
    await producer.client.close()


class Wire:
    """Connections to one Kafka: one plain producer, and another set for reads, so that no ack waits behind a large fetch."""

    def __init__(self, settings: KafkaLog) -> None:
        """Connects to nothing. Raises `InvalidEvent` where aiokafka is not installed or a TLS file cannot be used."""
        self._kafka = aiokafka()
        self._errors = aiokafka(".errors")
        self._fetch = aiokafka(".protocol.fetch")
        self._offset = aiokafka(".protocol.offset")
        self._admin_module = aiokafka(".admin")
        self._settings = settings
        self._options = connection_options(settings)
        self._client: Any = None
        self._admin: Any = None
        self._producer: Any = None
        self._producer_lock = asyncio.Lock()

    async def start(self) -> None:
        """Connect for reads and questions. Raises `Trouble` where no server answers."""
        client = aiokafka(".client").AIOKafkaClient(**self._options)
        admin = self._admin_module.AIOKafkaAdminClient(**self._options)
        try:
            with self._told():
                await client.bootstrap()
                await admin.start()
        except BaseException:
            await client.close()
            await admin.close()
            raise
        self._client, self._admin = client, admin

    async def close(self) -> None:
        if self._producer is not None:
            await self._stop_producer()
        if self._client is not None:
            await self._client.close()
            await self._admin.close()
            self._client = None

    # Writing.

    async def produce(self, topic: str, partition: int, records: Sequence[tuple[bytes | None, memoryview]]) -> int:
        """Send one batch, and wait for its ack: the offset of its first record.

        The caller sends the next batch of a partition only when this one is settled, so that they cannot overtake each other.
        """
        with self._told():
            await self._leader(
                topic, partition
            )  # Known at once where the topic is gone; the producer would wait for it.
            producer = await self._started_producer()
            if partition not in await producer.partitions_for(topic):
                await self._replace_producer(producer, Trouble(f"it knows no partition {partition} of {topic}"))
                raise Trouble(f"{topic} has no partition {partition} yet")
            batch = producer.create_batch()
            for key, value in records:
                added = batch.append(timestamp=None, key=key, value=value)
                assert added is not None, "a batch is cut to its limit before"
            batch.close()
            try:
                # Beyond what the producer itself allows: a request and its repeats never take longer.
                async with asyncio.timeout(3 * self._settings.request_timeout_s + 5):
                    ack = await (await producer.send_batch(batch, topic, partition=partition))
            except self._errors.KafkaError as error:
                if not isinstance(error, self._errors.BrokerResponseError) and not error.retriable:
                    await self._replace_producer(producer, error)
                raise
            return int(ack.offset)

    async def _started_producer(self) -> Any:
        async with self._producer_lock:
            if self._producer is None:
                # Not idempotent: one batch that Kafka refuses would poison it. Our own positions say what is a repeat.
                producer = self._kafka.AIOKafkaProducer(
                    **self._options,
                    acks="all",
                    enable_idempotence=False,
                    max_batch_size=MAX_REQUEST_BYTES,
                    max_request_size=MAX_REQUEST_BYTES,
                    linger_ms=0,  # a batch is handed over whole
                )
                try:
                    await producer.start()
                except BaseException:
                    await producer.stop()
                    raise
                self._producer = producer
            return self._producer

    async def _replace_producer(self, producer: Any, error: Exception) -> None:
        """It says that it is dead, so the next batch gets a new one."""
        async with self._producer_lock:
            if self._producer is producer:
                _log.warning("the Kafka producer failed and is made anew: %s", error)
                await self._stop_producer()

    async def _stop_producer(self) -> None:
        producer, self._producer = self._producer, None
        await end_producer(producer, self._settings.request_timeout_s)

    # Reading.

    async def fetch(self, topic: str, partition: int, offset: int, max_bytes: int) -> Page:
        """Records from `offset` on: about `max_bytes` of them, one whole batch at least where there is one.

        What was written in a transaction is passed over, committed or not: owners write none, and so an open transaction of
        somebody else can hold nobody up. Raises `CorruptLog` where a batch's checksum does not match.
        """
        asked = [(topic, [(partition, offset, max_bytes)])]
        request = self._fetch.FetchRequest(FETCH_WAIT_MS, 1, max_bytes, _READ_UNCOMMITTED, asked)
        (_, _, *_, data) = await self._ask_leader(topic, partition, request)
        return read_page(partition, data or b"", offset)

    async def ends(self, topic: str, partition: int) -> tuple[int, int]:
        """The offset of the first record held, and the one behind the last that Kafka shows."""
        start = await self._end(topic, partition, _EARLIEST)
        return start, await self._end(topic, partition, _LATEST)

    async def _end(self, topic: str, partition: int, which: int) -> int:
        request = self._offset.OffsetRequest(-1, _READ_UNCOMMITTED, [(topic, [(partition, which)])])
        answer = await self._ask_leader(topic, partition, request)
        return int(answer[3])

    async def _ask_leader(self, topic: str, partition: int, request: Any) -> tuple[Any, ...]:
        """What the partition's leader answers about it. A topic that is unknown is asked for again until it is `TOPIC_GONE_S`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TOPIC_GONE_S
        while True:
            try:
                return await self._ask_leader_once(topic, partition, request)
            except TopicUnknown:
                if loop.time() > deadline:
                    raise
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _ask_leader_once(self, topic: str, partition: int, request: Any) -> tuple[Any, ...]:
        with self._told():
            client = self._client
            response = await client.send(await self._leader(topic, partition), request)
            answer: tuple[Any, ...] = response.topics[0][1][0]
            error = self._errors.for_code(answer[1])
            if error is not self._errors.NoError:
                if getattr(error, "invalid_metadata", False):
                    client.force_metadata_update()
                raise error(f"{topic}/{partition}")
            return answer

    async def _leader(self, topic: str, partition: int) -> int:
        client = self._client
        if client.cluster.partitions_for_topic(topic) is None:
            await client.add_topic(topic)
        place = self._kafka.TopicPartition(topic, partition)
        leader = client.cluster.leader_for_partition(place)
        if leader is None or leader < 0:
            has_answered = await client.force_metadata_update()
            if client.cluster.partitions_for_topic(topic) is None:
                # A Kafka that is down has not said that it knows no such topic.
                raise TopicUnknown(f"Kafka knows no topic {topic!r}") if has_answered else Trouble("no node answers")
            leader = client.cluster.leader_for_partition(place)
        if leader is None or leader < 0:
            raise Trouble(f"{topic}/{partition} has no leader just now")
        return int(leader)

    async def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Free what lies before the offset `before`."""
        with self._told():
            place = self._kafka.TopicPartition(topic, partition)
            await self._admin.delete_records({place: self._admin_module.RecordsToDelete(before)})

    # Topics.

    async def topics(self) -> dict[str, int]:
        """The names of all topics, and how many partitions each has."""
        with self._told():
            found = await self._admin.describe_topics()
            return {str(each["topic"]): len(each["partitions"]) for each in found}

    async def describe(self, topic: str) -> TopicSettings | None:
        """None where there is no such topic."""
        with self._told():
            (found,) = await self._admin.describe_topics([topic])
            if found["error_code"] == self._errors.UnknownTopicOrPartitionError.errno:
                return None
            self._raise_code(found["error_code"], topic)
            resource = self._admin_module.config_resource.ConfigResource(
                self._admin_module.config_resource.ConfigResourceType(_TOPIC), topic
            )
            (answer,) = await self._admin.describe_configs([resource])
            error, message, _, _, entries = answer.resources[0]
            self._raise_code(error, message or topic)
            replication = min(len(each["replicas"]) for each in found["partitions"])
            settings = {str(entry[0]): "" if entry[1] is None else str(entry[1]) for entry in entries}
            return TopicSettings(len(found["partitions"]), replication, settings)

    async def create(self, topic: str, partitions: int, replication: int, settings: Mapping[str, str]) -> bool:
        """False where it exists already."""
        with self._told():
            new = self._admin_module.NewTopic(topic, partitions, replication, topic_configs=dict(settings))
            response = await self._admin.create_topics([new])
            (_, code, *message) = response.topic_errors[0]
            if code == self._errors.TopicAlreadyExistsError.errno:
                return False
            self._raise_code(code, message[0] if message and message[0] else topic)
            return True

    async def widen(self, topic: str, partitions: int) -> None:
        """Give the topic more partitions."""
        with self._told():
            await self._admin.create_partitions({topic: self._admin_module.NewPartitions(partitions)})

    async def delete(self, topic: str) -> None:
        """Nothing where there is no such topic."""
        with self._told():
            response = await self._admin.delete_topics([topic])
            (_, code, *_) = response.topic_error_codes[0]
            if code != self._errors.UnknownTopicOrPartitionError.errno:
                self._raise_code(code, topic)

    async def leave_group(self, group: str, member: str) -> None:
        """A member that is known by name too is gone at once, and not only after its session timeout."""
        with self._told():
            node = await self._client.coordinator_lookup(0, group)
            request = aiokafka(".protocol.group").LeaveGroupRequest(group, member)
            response = await self._client.send(node, request)
            self._raise_code(response.error_code, group)

    def _raise_code(self, code: int, what: str) -> None:
        error = self._errors.for_code(code)
        if error is not self._errors.NoError:
            raise error(what)

    # What went wrong.

    @contextmanager
    def _told(self) -> Generator[None]:
        """aiokafka's errors in our five words."""
        errors = self._errors
        try:
            yield
        except errors.UnknownTopicOrPartitionError as error:
            raise TopicUnknown(_text(error)) from error
        except (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError) as error:
            raise TooLarge(_text(error)) from error
        except errors.OffsetOutOfRangeError as error:
            raise OutOfRange(_text(error)) from error
        except _kinds(errors, _REFUSALS) as error:
            raise Refused(_text(error)) from error
        except (errors.KafkaError, OSError) as error:
            raise Trouble(_text(error)) from error


_REFUSALS = (
    "AuthenticationFailedError",
    "AuthenticationMethodNotSupported",
    "ClusterAuthorizationFailedError",
    "GroupAuthorizationFailedError",
    "IncompatibleBrokerVersion",
    "InvalidConfigurationError",
    "InvalidPartitionsError",
    "InvalidReplicationFactorError",
    "InvalidTopicError",
    "PolicyViolationError",
    "TopicAuthorizationFailedError",
    "UnsupportedSaslMechanismError",
    "UnsupportedVersionError",
)


def _kinds(errors: Any, names: Iterable[str]) -> tuple[type[Exception], ...]:
    return tuple(getattr(errors, name) for name in names)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


async def patiently(ask: Callable[[], Awaitable[T]], within_s: float, pause_s: float = RETRY_PAUSE_S) -> T:
    """What `ask()` returns, asked again after each `Trouble` for `within_s` seconds; then that one is raised."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while True:
        try:
            return await ask()
        except Trouble:
            if loop.time() + pause_s > deadline:
                raise
        await asyncio.sleep(pause_s)
