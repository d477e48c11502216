"""What several brokers answer to one call becomes the answer that one broker would have given."""

from __future__ import annotations

from typing import Any

import pytest

from paramstream.consistency.vector import PartitionId
from paramstream.transport.calls import (
    AwaitDurable,
    BrokerRecord,
    Call,
    CreateTable,
    DescribeBroker,
    DescribePartitions,
    ListReplicas,
    ListTopics,
    ListVersions,
    PartitionRecord,
    ProducerRecord,
    ReplicaRecord,
    TopicRecord,
    VersionRecord,
)
from paramstream.transport.merging import MERGES, merged
from paramstream.transport.messages import Report
from paramstream.transport.slots import META
from paramstream.transport.wire import To

TOPIC = TopicRecord("t", 5, 2, "write_back", 8)


def owner_of(partition: PartitionId) -> int:
    """Even partitions are the first broker's, odd ones the second's; `__meta` is the second's."""
    return 1 if partition == META else partition[1] % 2


def test_every_call_that_goes_to_several_brokers_has_a_way_to_merge_their_answers() -> None:
    several = {call for call in Call.__subclasses__() if call.to in (To.EVERY, To.META_FIRST)}
    assert set(MERGES) == several
    assert {DescribePartitions, CreateTable} <= several


def test_one_brokers_answer_stays_as_it_is() -> None:
    answer = object()
    assert merged(ListTopics(), [answer], owner_of) is answer


def test_partitions_come_in_their_order_whoever_owns_them() -> None:
    def record(number: int) -> PartitionRecord:
        return PartitionRecord(5, number, 1, 0, 0, 0, 0, (), 0)

    found: list[PartitionRecord] = merged(DescribePartitions(5), [[record(0), record(2)], [record(1)]], owner_of)
    assert [each.partition for each in found] == [0, 1, 2]


def test_versions_are_those_of_the_one_broker_that_has_the_weights() -> None:
    version = VersionRecord(7, 9, 0, 1, 1, b"", True)
    assert merged(ListVersions(5), [[], [version]], owner_of) == [version]


def test_of_a_replicas_reports_the_newest_counts() -> None:
    def report(name: str, age_s: float) -> Report:
        return Report(name, (5,), (), b"", 0, (), age_s=age_s)

    found: list[Report] = merged(
        ListReplicas(5), [[report("a", 0.4), report("b", 0.1)], [report("a", 0.2), report("b", 3.0)]], owner_of
    )
    assert sorted((each.name, each.age_s) for each in found) == [("a", 0.2), ("b", 0.1)]


@pytest.mark.parametrize(
    ("answers", "lost"),
    [
        ([[(5, 1, 9)], []], []),
        ([[], [(5, 0, 9)]], []),
        ([[(5, 0, 9), (5, 1, 9)], [(5, 1, 9)]], [(5, 0, 9), (5, 1, 9)]),
    ],
)
def test_a_position_is_lost_only_if_its_owner_says_so(answers: list[Any], lost: list[tuple[int, int, int]]) -> None:
    assert merged(AwaitDurable(((5, 0, 9), (5, 1, 9))), answers, owner_of) == lost


def test_a_look_at_several_brokers_adds_up() -> None:
    def broker(name: str, producer: ProducerRecord, replica: ReplicaRecord) -> BrokerRecord:
        topics = (TOPIC,) if name == "second" else ()
        return BrokerRecord(name, 10, 100, 3, topics, (), (producer,), (), (replica,))

    first = broker("first", ProducerRecord("p", 1, None, ((5, 0, 9),)), ReplicaRecord("r", 5, 3, 0, 0.0, 4, 0.1, "new"))
    second = broker(
        "second", ProducerRecord("p", 1, 0.5, ((5, 1, 8),)), ReplicaRecord("r", 5, 2, 2, 1.5, 6, 0.3, "old")
    )
    found: BrokerRecord = merged(DescribeBroker(), [first, second], owner_of)
    assert (found.broker, found.log_bytes, found.log_limit, found.clients) == ("first+second", 20, 200, 3)
    assert found.topics == (TOPIC,)
    assert found.producers == (ProducerRecord("p", 1, 0.5, ((5, 0, 9), (5, 1, 8))),)
    assert found.replicas == (ReplicaRecord("r", 5, 3, 2, 1.5, 10, 0.1, "new"),)
