"""The view of `paramstream top`, from records as a broker gives them."""

from collections.abc import Sequence

import msgspec

from paramstream.cli.top import MIB, lines
from paramstream.consistency.position import position
from paramstream.transport.calls import (
    BrokerRecord,
    FollowerRecord,
    PartitionLoad,
    ProducerRecord,
    ReplicaRecord,
    TopicRecord,
)

S = 1_000_000_000
LOAD = PartitionLoad(
    topic=7, partition=0, accepted=position(3, 9), durable=position(3, 7), time=100 * S, last_time=99 * S, log_bytes=MIB,
    records=10, nbytes=2 * MIB, undurable_s=0.25, durable_after_s=0.002, ring_bytes=0, demotions=0, error="", versions=0,
    newest=None,
)  # fmt: skip
REPLICA = ReplicaRecord("serving", 7, 4, 2, 1.5, 12, 0.3, "")


def broker(
    loads: Sequence[PartitionLoad] = (LOAD,),
    replicas: Sequence[ReplicaRecord] = (),
    followers: Sequence[FollowerRecord] = (),
    name: str = "one",
) -> BrokerRecord:
    topics = (TopicRecord("model", 7, 1, "write_back", 8),)
    producers = (ProducerRecord("trainer", 1, None, ()),)
    return BrokerRecord(name, MIB, 64 * MIB, 3, topics, tuple(loads), producers, tuple(followers), tuple(replicas))


def row(shown: Sequence[str], begin: str) -> list[str]:
    (line,) = (line for line in shown if line.startswith(begin))
    return line.split()


def test_both_heads_are_shown_and_what_lies_between_them() -> None:
    found = row(lines(broker(), None), "model/0")
    assert found[1:3] == ["3:9", "3:7"]
    assert " ".join(found[3:7]) == "2 for 250.0 ms"
    assert " ".join(found[7:9]) == "2.0 ms"


def test_rates_are_between_two_looks_by_the_partitions_own_time() -> None:
    later = msgspec.structs.replace(LOAD, time=102 * S, records=30, nbytes=12 * MIB)
    found = row(lines(broker([later]), broker()), "model/0")
    assert "10" in found and "5.00" in found


def test_a_broker_that_was_restarted_has_no_rate_yet() -> None:
    restarted = broker([msgspec.structs.replace(LOAD, time=102 * S, records=1)], name="another")
    assert row(lines(restarted, broker()), "model/0").count("-") == 2


def test_a_producer_that_has_not_written_has_no_age() -> None:
    assert row(lines(broker(), None), "trainer") == ["trainer", "-"]


def test_a_replica_shows_how_far_it_is_behind_and_that_it_fetches() -> None:
    followers = [FollowerRecord("serving", "ab", 7, 0, 0, 0), FollowerRecord("other", "cd", 7, 0, position(3, 1), 5)]
    found = row(lines(broker(replicas=[REPLICA], followers=followers), None), "serving")
    assert " ".join(found) == "serving model 4 2 1.5 s 12 300.0 ms ago 0 0.0 MiB fetching"


def test_a_replica_without_a_connection_is_gone_and_its_error_stays() -> None:
    replica = msgspec.structs.replace(
        REPLICA, version=None, stale_s=None, error="the log is cut", tiers=(("dram", 4000, 3000), ("ssd", 100, 0))
    )
    found = row(lines(broker(replicas=[replica]), None), "serving")
    assert " ".join(found) == "serving model - 2 - 12 300.0 ms ago gone 0.0 MiB dram 75 %, ssd 0 % the log is cut"


def test_what_is_not_sent_to_a_follower_yet_is_counted() -> None:
    followers = [FollowerRecord("serving", "ab", 7, 0, position(3, 4), 3 * MIB)]
    found = row(lines(broker(replicas=[REPLICA], followers=followers), None), "serving")
    assert found[-3:] == ["5", "3.0", "MiB"]
