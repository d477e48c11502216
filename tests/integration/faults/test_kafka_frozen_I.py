"""Kafka is frozen, killed and started again: what was accepted is stored once it is back, once each and in order."""

import threading
import time
from functools import partial
from pathlib import Path

import pytest

import paramstream as ps
from paramstream.eventlog.kafka.log import KafkaEventLog
from paramstream.eventlog.kafka.reading import KafkaReader
from realkafka import cluster
from realkafka.owning import opened, sync_all, take_over
from records.frames import PARTITION, Owner, as_pairs, read_all
from reference.waiting import eventually

REQUEST_S = 0.5
FROZEN_S = 5.0
"""Longer than any request, and than the broker's session with Kafka."""
NUMBERED = 20_000
PACE_S = 0.001
WAIT_S = 60.0


def settings_for(kafka: cluster.Cluster, prefix: str) -> ps.KafkaLog:
    return ps.KafkaLog(kafka.bootstrap, topic_prefix=prefix, request_timeout_s=REQUEST_S)


def test_sends_that_time_out_while_kafka_is_frozen_are_settled_and_stand_once_I08(
    mortal_kafka: cluster.Cluster,
) -> None:
    log = KafkaEventLog(settings_for(mortal_kafka, "frozen."))
    try:
        owner = Owner()
        partition = opened(log, owner)
        sync_all(partition, owner)
        for _ in range(2):
            cluster.freeze(mortal_kafka.nodes[0])
            try:
                for _ in range(5):
                    partition.append(owner.put())
                    assert partition.sync() < owner.at, "nothing is durable that nobody acknowledged"
                frozen_until = time.monotonic() + 3 * REQUEST_S
                while time.monotonic() < frozen_until:
                    partition.sync()
                assert partition.trouble
            finally:
                mortal_kafka.nodes[0].resume()
            sync_all(partition, owner)
            eventually(lambda: not partition.trouble)
        assert read_all(partition) == owner.events
        with KafkaReader(log.settings) as reader:
            assert as_pairs(reader.read(PARTITION).records) == owner.events
    finally:
        log.close()


@pytest.mark.slow
def test_every_event_put_while_kafka_freezes_and_thaws_stands_once_and_in_order_I08(
    mortal_kafka: cluster.Cluster,
) -> None:
    settings = ps.KafkaLog(
        mortal_kafka.bootstrap, topic_prefix="thaws.", request_timeout_s=2.0, session_timeout_s=FROZEN_S / 2
    )
    receipts: list[ps.Receipt] = []
    with ps.Broker(log=settings) as broker, ps.connect(broker.endpoint, timeout=WAIT_S) as client:
        client.create_topic("model", persistence="write_through", timeout=WAIT_S)
        publisher = client.publisher("model", producer="trainer")

        def publish() -> None:
            for number in range(NUMBERED):
                receipts.append(publisher.put(f"key-{number % 10}", b"%d" % number, timeout=2 * WAIT_S))
                time.sleep(PACE_S)

        def has_put(count: int) -> bool:
            return len(receipts) >= count

        publishing = threading.Thread(target=publish, name="publishing")
        publishing.start()
        try:
            for _ in range(5):
                goal = len(receipts) + 100
                eventually(partial(has_put, goal), WAIT_S)
                cluster.freeze(mortal_kafka.nodes[0])
                try:
                    time.sleep(FROZEN_S)
                finally:
                    mortal_kafka.nodes[0].resume()
        finally:
            publishing.join()
        publisher.flush(2 * WAIT_S)
        assert [receipt.outcome for receipt in receipts] == ["durable"] * NUMBERED
        stands: list[bytes | None] = []
        with client.subscribe("model", start="earliest") as events:
            while len(stands) < NUMBERED:
                stands += [value for _, value, _ in events.next(WAIT_S).items]
    assert stands == [b"%d" % number for number in range(NUMBERED)]


def test_what_was_appended_while_kafka_was_down_is_stored_when_it_is_back_J03(mortal_kafka: cluster.Cluster) -> None:
    log = KafkaEventLog(settings_for(mortal_kafka, "killed."))
    try:
        owner = Owner()
        partition = opened(log, owner)
        for _ in range(200):
            partition.append(owner.put(bytes(500)))
        mortal_kafka.nodes[0].kill()
        try:
            for _ in range(200):
                partition.append(owner.put(bytes(500)))
            partition.sync()
        finally:
            mortal_kafka.nodes[0].start()
            mortal_kafka.nodes[0].wait_ready(time.monotonic() + 60)
        sync_all(partition, owner)
        assert read_all(partition) == owner.events
        partition.append(owner.put())
        sync_all(partition, owner)
    finally:
        log.close()
    again = KafkaEventLog(settings_for(mortal_kafka, "killed."))
    try:
        next_owner = Owner()
        next_owner.nonce = 500
        assert take_over(again.open(PARTITION), next_owner) == owner.events[1:]
    finally:
        again.close()


def test_a_broker_says_that_kafka_does_not_answer_and_goes_on_when_it_does_I14(
    mortal_kafka: cluster.Cluster, tmp_path: Path
) -> None:
    log = settings_for(mortal_kafka, "said.")
    with (
        ps.Broker(bind=f"ipc://{tmp_path}/broker", log=log) as broker,
        ps.connect(broker.endpoint, timeout=30) as client,
    ):
        client.create_topic("model")
        pub = client.publisher("model", producer="trainer")
        pub.put("before", b"1").durable.result(30)
        assert broker.status().troubled == {}
        cluster.freeze(mortal_kafka.nodes[0])
        try:
            receipt = pub.put("meanwhile", b"2")
            eventually(lambda: broker.status().troubled, 30)
            assert any(load.error for load in client.describe_broker().partitions)
            assert not receipt.durable.done()
        finally:
            mortal_kafka.nodes[0].resume()
        receipt.durable.result(30)
        eventually(lambda: not broker.status().troubled, 30)
        pub.put("after", b"3").durable.result(30)


@pytest.mark.slow
def test_nothing_is_lost_where_each_of_three_nodes_is_killed_in_turn(tmp_path: Path) -> None:
    with cluster.start(3, data=tmp_path) as kafka:
        settings = ps.KafkaLog(kafka.bootstrap, replication_factor=3, request_timeout_s=2.0)
        log = KafkaEventLog(settings)
        try:
            owner = Owner()
            partition = opened(log, owner)
            for node in kafka.nodes:
                node.kill()
                for _ in range(300):
                    partition.append(owner.put(bytes(2000)))
                    partition.sync()
                sync_all(partition, owner)
                node.start()
                node.wait_ready(time.monotonic() + 60)
            assert read_all(partition) == owner.events
        finally:
            log.close()
        with KafkaReader(settings) as reader:
            assert as_pairs(reader.read(PARTITION).records) == owner.events
