"""The log in a real Kafka: owners, those who follow them, and readers."""

import time
from collections.abc import Iterator

import pytest

import paramstream as ps
from paramstream.eventlog.kafka.log import KafkaEventLog
from paramstream.eventlog.kafka.reading import KafkaReader
from paramstream.eventlog.kafka.records import MAX_VALUE_BYTES
from paramstream.eventlog.kafka.wire import TopicSettings, TopicUnknown, Wire
from realkafka.owning import opened, sync_all, sync_fails
from records.frames import PARTITION, Owner, append_all, as_pairs, read_all
from reference.waiting import eventually

LIMIT = 1 << 20


@pytest.fixture
def log(kafka: ps.KafkaLog) -> Iterator[KafkaEventLog]:
    log = KafkaEventLog(kafka, LIMIT)
    yield log
    log.close()


def test_a_topic_is_made_so_that_only_we_remove_anything(log: KafkaEventLog) -> None:
    log.create_topic(PARTITION[0], "my weights", 3)
    shown = log.describe_topic(PARTITION[0])
    assert shown["name"] == f"{log.settings.topic_prefix}my-weights.{PARTITION[0]:016x}"
    wanted = {
        "partitions": "3",
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "false",
    }
    assert wanted.items() <= shown.items()
    log.create_topic(PARTITION[0], "another name", 3)
    assert log.describe_topic(PARTITION[0]) == shown, "the id decides"
    assert log.describe_topic(77) == {}


def test_a_node_that_has_not_heard_of_a_new_topic_yet_is_asked_again(
    log: KafkaEventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe, asked = Wire.describe, list[str]()

    async def late(wire: Wire, topic: str) -> TopicSettings | None:
        asked.append(topic)
        if len(asked) in (2, 3):
            raise TopicUnknown("UnknownTopicOrPartitionError")
        return await describe(wire, topic)

    monkeypatch.setattr(Wire, "describe", late)
    log.create_topic(PARTITION[0], "weights", 1)
    assert len(asked) == 4, "before it was made, and until it was known"


def test_a_second_claim_fences_the_first_owner_and_finds_all_it_wrote(log: KafkaEventLog, kafka: ps.KafkaLog) -> None:
    first, second = Owner(), Owner()
    partition = opened(log, first)
    other = KafkaEventLog(kafka, LIMIT)
    try:
        late = other.open(PARTITION)
        recovered = late.recover()
        assert recovered.base is not None
        append_all(partition, [first.put(), first.put()])
        sync_all(partition, first)
        second.epoch, second.nonce, second.at = recovered.last_claim, 100, first.at
        assert as_pairs(late.claim(second.claim())) == first.events[1:], "what came between recovery and claim"
        append_all(late, [second.open_epoch(), second.put()])
        sync_all(late, second)
        partition.append(first.put())
        assert isinstance(sync_fails(partition), ps.Fenced)
        with pytest.raises(ps.Fenced):
            partition.append(first.put())
        assert read_all(late) == first.events[:3] + second.events, "the record of the fenced owner is void"
    finally:
        other.close()


def test_an_owner_that_writes_nothing_finds_another_claim_by_looking(log: KafkaEventLog, kafka: ps.KafkaLog) -> None:
    first, second = Owner(), Owner()
    partition = opened(log, first)
    other = KafkaEventLog(kafka, LIMIT)
    try:
        late = other.open(PARTITION)
        second.epoch, second.nonce, second.at = late.recover().last_claim, 100, first.at
        list(late.claim(second.claim()))
        append_all(late, [second.open_epoch()])
        sync_all(late, second)
        since = time.monotonic()
        assert not late.look(since), "what was read before that is no answer"
        assert eventually(lambda: late.look(since)), "nobody else is there"

        def is_fenced() -> bool:
            try:
                assert not partition.look(since)
            except ps.Fenced:
                return True
            return False

        assert eventually(is_fenced)
    finally:
        other.close()


def test_two_that_claim_the_same_epoch_are_not_both_owners(log: KafkaEventLog, kafka: ps.KafkaLog) -> None:
    log.create_topic(PARTITION[0], "weights", 1)
    other = KafkaEventLog(kafka, LIMIT)
    try:
        one, two = log.open(PARTITION), other.open(PARTITION)
        one.recover()
        two.recover()
        first, second = Owner(), Owner()
        second.nonce = 50
        assert list(one.claim(first.claim())) == []
        with pytest.raises(ps.Fenced):
            list(two.claim(second.claim()))
    finally:
        other.close()


def test_who_does_not_own_a_partition_follows_it(log: KafkaEventLog, kafka: ps.KafkaLog) -> None:
    owner = Owner()
    partition = opened(log, owner)
    other = KafkaEventLog(kafka, LIMIT)
    try:
        tail = other.follow(PARTITION)
        recovered = tail.recover()
        assert recovered.base is not None and list(tail.read()) == []
        append_all(partition, [owner.put(), owner.base(bytes(2 * MAX_VALUE_BYTES)), owner.put()])
        sync_all(partition, owner)
        assert as_pairs(tail.read()) == owner.events[1:]
        assert list(tail.read()) == []
    finally:
        other.close()


def test_a_new_owner_reads_and_cuts_what_lies_before_the_newest_base(log: KafkaEventLog, kafka: ps.KafkaLog) -> None:
    owner = Owner()
    partition = opened(log, owner)
    bases = [owner.at]
    for _ in range(6):
        append_all(partition, [owner.put(bytes(9000)) for _ in range(8)])
        assert partition.wants_base
        partition.append(owner.base(bytes(100)))
        bases.append(owner.at)
    append_all(partition, [owner.put(), owner.base(bytes(2_500_000)), owner.put()])
    sync_all(partition, owner)
    other = KafkaEventLog(kafka, LIMIT)
    try:
        again = other.open(PARTITION)
        recovered = again.recover()
        assert recovered.base is not None and len(recovered.base.bulk) == 2_500_000
        assert as_pairs(recovered.records) == owner.events[-1:]
        assert again.nbytes == partition.nbytes
        assert read_all(again) == owner.events, "bases lead back to the log's beginning"
        list(again.claim(owner.claim()))
        before = again.nbytes
        assert again.cut(bases[3] + 1) == bases[3]
        assert again.nbytes < before
        assert read_all(again) == [pair for pair in owner.events if pair[0] > bases[3]]
    finally:
        other.close()
    third = KafkaEventLog(kafka, LIMIT)
    try:
        after = third.open(PARTITION)
        after.recover()
        assert after.start == bases[3]
        with pytest.raises(ps.LogTruncated):
            after.read(bases[2], 1000)
    finally:
        third.close()


def test_a_reader_sees_all_that_counts_and_later_bases(log: KafkaEventLog, kafka: ps.KafkaLog) -> None:
    owner = Owner()
    partition = opened(log, owner)
    append_all(partition, [owner.put(), owner.base(b"second"), owner.put()])
    sync_all(partition, owner)
    with KafkaReader(kafka) as reader:
        assert reader.partitions() == [PARTITION]
        read = reader.read(PARTITION)
        assert (read.base, read.start) == (None, 0)
        records = list(read.records)
    assert as_pairs(records) == owner.events
    assert len(records) == len(owner.events) + 2
    first = owner.events[1][0]
    assert partition.cut(first + 1) == first
    with KafkaReader(kafka) as reader:
        read = reader.read(PARTITION)
        assert read.base is not None and read.start == first
        assert as_pairs(read.records) == owner.events[2:]
        with pytest.raises(ps.UnknownTopic):
            reader.read((99, 0))
