"""What other programs do to a log's topics in Kafka: each is passed over, or told by name; nothing is lost silently."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

import paramstream as ps
from paramstream.eventlog.changelog import ChangelogRecord
from paramstream.eventlog.kafka.changelog import KafkaChangelogs
from paramstream.eventlog.kafka.log import KafkaEventLog
from paramstream.eventlog.kafka.reading import KafkaReader
from paramstream.eventlog.kafka.topics import changelog_name
from paramstream.eventlog.kafka.wire import aiokafka
from paramstream.events.codec import Head, encode_event
from paramstream.events.kinds import Put, PutItem
from paramstream.events.limits import MAX_EVENT_BYTES
from realkafka.owning import opened, sync_all, sync_fails, topic_name
from realkafka.stranger import Stranger
from records.frames import PARTITION, Owner, append_all, as_pairs, read_all
from reference.waiting import eventually

LIMIT = 1 << 20


@pytest.fixture
def log(kafka: ps.KafkaLog) -> Iterator[KafkaEventLog]:
    log = KafkaEventLog(kafka, LIMIT)
    yield log
    log.close()


@pytest.fixture
def stranger(kafka: ps.KafkaLog) -> Stranger:
    return Stranger(kafka)


def test_records_of_strangers_between_ours_are_passed_over(log: KafkaEventLog, stranger: Stranger) -> None:
    owner = Owner()
    partition = opened(log, owner)
    for _ in range(3):
        partition.append(owner.put())
        # A repeat of our own, a copy for another place, and what is no event at all.
        copies = [owner.events[-1][1], bytes(Owner((5, 0)).claim()), b"", b"not ours", b"PS"[:1]]
        stranger.write(topic_name(log), copies)
    append_all(partition, [owner.base(bytes(2_000_000)), owner.put()])
    sync_all(partition, owner)
    assert read_all(partition) == owner.events
    with KafkaReader(log.settings) as reader:
        assert as_pairs(reader.read(PARTITION).records) == owner.events


def test_what_looks_like_ours_and_is_damaged_stops_a_reader_with_its_offset(
    log: KafkaEventLog, stranger: Stranger
) -> None:
    owner = Owner()
    opened(log, owner)
    spoiled = bytearray(owner.events[0][1])
    spoiled[-1] ^= 1
    stranger.write(topic_name(log), [bytes(spoiled)])
    with KafkaReader(log.settings) as reader, pytest.raises(ps.CorruptLog, match="offset"):
        list(reader.read(PARTITION).records)


def test_no_record_of_a_transaction_ever_counts_and_positions_pass_the_markers_I12(
    log: KafkaEventLog, stranger: Stranger
) -> None:
    owner = Owner()
    partition = opened(log, owner)
    sync_all(partition, owner)
    forger = Owner()
    forger.epoch, forger.nonce, forger.at = owner.epoch, owner.nonce, owner.at
    forged = [bytes(forger.put(b"forged")) for _ in range(7)]
    transactions = [(True, forged[:2]), (False, forged[2:5]), (True, forged[5:]), *[(False, forged[:1])] * 30]
    stranger.write_transactions(topic_name(log), transactions)
    append_all(partition, [owner.put() for _ in range(4)])
    sync_all(partition, owner)
    assert read_all(partition) == owner.events
    with KafkaReader(log.settings) as reader:
        assert as_pairs(reader.read(PARTITION).records) == owner.events


def test_what_was_aborted_is_never_read_from_a_changelog_and_many_markers_do_not_end_it_I12(
    kafka: ps.KafkaLog, stranger: Stranger
) -> None:
    changelogs = KafkaChangelogs(kafka)
    try:
        changelog = changelogs.open(PARTITION, "weights", 1)
        changelog.open_writer()
        topic = changelog_name(kafka.topic_prefix, "weights", PARTITION[0])
        first, last = ([ChangelogRecord(key, key) for key in keys] for keys in ((b"a", b"b"), (b"c", b"d")))
        changelog.write(first)
        stranger.write_transactions(topic, [(False, [b"aborted"] * 3)], b"a")
        changelog.write(last)
        stranger.write_transactions(topic, [(False, [b"aborted"])] * 30, b"d")
        assert list(changelog.read()) == first + last
        changelog.write(first)
        assert list(changelog.read()) == first + last + first
        changelog.close()
    finally:
        changelogs.close()


def test_events_of_the_greatest_size_sent_together_are_stored_and_a_greater_one_is_refused_J02(
    log: KafkaEventLog,
) -> None:
    owner = Owner()
    partition = opened(log, owner)
    append_all(partition, [*(owner.put(bytes(MAX_EVENT_BYTES - 300)) for _ in range(3)), owner.put(bytes(1024))])
    sync_all(partition, owner)
    assert read_all(partition) == owner.events
    value = bytes(1536 * 1024)
    payload = Put(items=(PutItem(key=b"key", nbytes=len(value)),))
    with pytest.raises(ps.InvalidEvent, match=str(MAX_EVENT_BYTES)):
        encode_event(PARTITION, Head(producer="trainer", incarnation=1, sequence=1), payload, [value])


def test_smaller_batches_go_where_the_limit_was_lowered_and_a_record_over_it_stops_the_partition(
    log: KafkaEventLog, stranger: Stranger
) -> None:
    owner = Owner()
    partition = opened(log, owner)
    sync_all(partition, owner)
    stranger.set(topic_name(log), max_message_bytes="100000", retention_ms="-1")
    append_all(partition, [owner.put(bytes(9000)) for _ in range(60)])
    sync_all(partition, owner)
    assert read_all(partition) == owner.events
    durable = owner.at
    partition.append(owner.put(bytes(200_000)))
    error = sync_fails(partition)
    assert isinstance(error, ps.CorruptLog)
    assert "max.message.bytes=100000" in error.problem and "200" in error.problem and "1048588" in error.remedy
    assert partition.trouble
    with pytest.raises(ps.CorruptLog):
        partition.append(owner.put())
    with KafkaReader(log.settings) as reader:
        assert as_pairs(reader.read(PARTITION).records)[-1][0] == durable


def test_a_topic_that_is_deleted_under_its_owner_stops_the_partition(kafka: ps.KafkaLog, stranger: Stranger) -> None:
    log = KafkaEventLog(replace(kafka, request_timeout_s=1.0), LIMIT)
    try:
        owner = Owner()
        partition = opened(log, owner)
        sync_all(partition, owner)
        stranger.delete_topic(topic_name(log))
        partition.append(owner.put())
        error = sync_fails(partition)
        assert isinstance(error, ps.CorruptLog) and "deleted" in error.problem
        with pytest.raises(ps.CorruptLog, match="knows no topic"):
            log.open(PARTITION).recover()
    finally:
        log.close()


def test_a_topic_that_was_made_anew_under_its_owner_stops_the_partition(log: KafkaEventLog, stranger: Stranger) -> None:
    owner = Owner()
    partition = opened(log, owner)
    sync_all(partition, owner)
    name = topic_name(log)
    stranger.delete_topic(name)
    stranger.make_topic(name)
    partition.append(owner.put())
    error = sync_fails(partition)
    assert isinstance(error, ps.CorruptLog) and "no longer holds" in error.problem


def test_records_that_somebody_else_removed_are_missed_by_everybody_I04(log: KafkaEventLog, stranger: Stranger) -> None:
    owner = Owner()
    partition = opened(log, owner)
    append_all(partition, [owner.put(bytes(50)) for _ in range(20)])
    sync_all(partition, owner)
    stranger.delete_records(topic_name(log), 10)
    with pytest.raises(ps.LogTruncated, match="offsets 10 to"):
        partition.read(partition.start, 1000)
    with pytest.raises(ps.CorruptLog, match="no base"):
        log.open(PARTITION).recover()
    with KafkaReader(log.settings) as reader, pytest.raises(ps.CorruptLog, match="no base"):
        reader.read(PARTITION)
    stranger.delete_records(topic_name(log), 23)
    with pytest.raises(ps.CorruptLog, match="removed all 23 records"):
        log.open(PARTITION).recover()


@pytest.mark.parametrize(("setting", "value"), [("retention_ms", "60000"), ("cleanup_policy", "compact")])
def test_an_existing_topic_that_would_lose_events_is_not_used(
    log: KafkaEventLog, stranger: Stranger, setting: str, value: str
) -> None:
    name = f"{log.settings.topic_prefix}mine.{PARTITION[0]:016x}"
    stranger.make_topic(name, 1, **{setting: value})
    with pytest.raises(ps.InvalidEvent) as caught:
        log.create_topic(PARTITION[0], "weights", 1)
    wanted = setting.replace("_", ".")
    assert name in caught.value.problem and f"{wanted}={value}" in caught.value.problem
    assert f"Set {wanted}=" in caught.value.remedy


def test_an_existing_topic_with_too_few_partitions_gets_more(log: KafkaEventLog, stranger: Stranger) -> None:
    name = f"{log.settings.topic_prefix}mine.{PARTITION[0]:016x}"
    stranger.make_topic(name, retention_ms="-1")
    log.create_topic(PARTITION[0], "weights", 3)
    owner = Owner((PARTITION[0], 2))
    partition = log.open(owner.partition)
    partition.recover()
    append_all(partition, [*owner.opening(), owner.put()])
    sync_all(partition, owner)
    assert read_all(partition) == owner.events


def test_a_producer_that_died_is_made_anew_and_every_event_is_there_once_I14(
    log: KafkaEventLog, caplog: pytest.LogCaptureFixture
) -> None:
    owner = Owner()
    partition = opened(log, owner)
    append_all(partition, [owner.put() for _ in range(50)])
    sync_all(partition, owner)
    wire, thread = vars(log)["_wire"], vars(log)["_thread"]

    async def kill() -> None:
        error = aiokafka(".errors").KafkaError("Unexpected error during batch delivery")
        vars(wire)["_producer"]._message_accumulator.fail_all(error)

    thread.call(kill(), 5.0)
    append_all(partition, [owner.put() for _ in range(150)])
    sync_all(partition, owner)
    assert "batch delivery" in caplog.text, "it is said why nothing became durable for a while"
    assert read_all(partition) == owner.events
    eventually(lambda: not partition.trouble)


def test_a_kafka_that_is_not_there_is_said_to_be_so_in_time() -> None:
    began = time.monotonic()
    with pytest.raises(ps.ConnectFailed, match=r"127\.0\.0\.1:1"):
        KafkaEventLog(ps.KafkaLog("127.0.0.1:1", request_timeout_s=1.0))
    assert time.monotonic() - began < 10
