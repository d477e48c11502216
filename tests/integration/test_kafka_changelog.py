"""Changelogs in a real Kafka: compacted topics, whole writes, one writer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import paramstream as ps
from paramstream.eventlog.changelog import ChangelogRecord
from paramstream.eventlog.kafka.changelog import KafkaChangelog, KafkaChangelogs
from paramstream.eventlog.kafka.log import KafkaEventLog
from paramstream.eventlog.kafka.topics import COMPACTION_LAG_S, changelog_name, new_changelog_settings
from realkafka.stranger import Stranger
from reference.waiting import eventually

PARTITION = (7, 1)


@pytest.fixture
def changelogs(kafka: ps.KafkaLog) -> Iterator[KafkaChangelogs]:
    opened = KafkaChangelogs(kafka)
    yield opened
    opened.close()


def opened(changelogs: KafkaChangelogs) -> KafkaChangelog:
    return changelogs.open(PARTITION, "model", 2)


def records_of(*pairs: tuple[str, str | None]) -> list[ChangelogRecord]:
    return [ChangelogRecord(key.encode(), None if value is None else value.encode()) for key, value in pairs]


def test_what_was_written_is_read_tombstones_too(changelogs: KafkaChangelogs) -> None:
    changelog = opened(changelogs)
    assert list(changelog.read()) == []
    changelog.open_writer()
    first, second = records_of(("a", "1"), ("b", "2")), records_of(("a", None), ("m", "mark"))
    changelog.write(first)
    changelog.write(second)
    assert list(changelog.read()) == first + second
    changelog.close()
    # Another partition of the topic has records of its own.
    assert list(changelogs.open((7, 0), "model", 2).read()) == []


def test_a_writer_that_was_fenced_writes_nothing_more(changelogs: KafkaChangelogs) -> None:
    old, new = opened(changelogs), opened(changelogs)
    old.open_writer()
    old.write(records_of(("a", "old")))
    new.open_writer()
    with pytest.raises(ps.Fenced, match="newer writer"):
        old.write(records_of(("a", "older"), ("m", "mark")))
    new.write(records_of(("a", "new")))
    with pytest.raises(ps.Fenced):
        old.write(records_of(("a", "oldest")))
    assert list(new.read()) == records_of(("a", "old"), ("a", "new"))
    old.close()
    new.close()


def test_many_records_go_in_one_write_and_come_in_order(changelogs: KafkaChangelogs) -> None:
    changelog = opened(changelogs)
    changelog.open_writer()
    written = records_of(*((f"key-{n}", "v" * 600) for n in range(5000)))
    changelog.write([*written, ChangelogRecord(b"large", bytes(900_000))])
    assert list(changelog.read()) == [*written, ChangelogRecord(b"large", bytes(900_000))]
    changelog.close()


def test_the_changelog_stands_beside_its_topic_and_goes_with_it(
    kafka: ps.KafkaLog, changelogs: KafkaChangelogs
) -> None:
    log = KafkaEventLog(kafka)
    try:
        log.create_topic(7, "model", 3)
        assert changelog_name(kafka.topic_prefix, "model", 7) == log.describe_topic(7)["name"] + ".changelog"
        changelog = opened(changelogs)
        changelog.open_writer()
        changelog.write(records_of(("a", "1")))
        changelog.close()
        name = changelog_name(kafka.topic_prefix, "model", 7)
        assert Stranger(kafka).has_topic(name)
        log.drop_topic(7)
        eventually(lambda: not Stranger(kafka).has_topic(name))
    finally:
        log.close()


def test_the_changelog_of_a_long_name_has_a_name_that_kafka_takes() -> None:
    name = changelog_name("p" * 100, "n" * 300, 9)
    assert len(name) == 249 and name.endswith(".0000000000000009.changelog")


def test_a_record_is_not_replaced_while_anybody_may_read_up_to_an_end_before_the_newer_one() -> None:
    settings = new_changelog_settings(ps.KafkaLog("localhost:1"))
    assert int(settings["min.compaction.lag.ms"]) == 1000 * COMPACTION_LAG_S < int(settings["delete.retention.ms"])
