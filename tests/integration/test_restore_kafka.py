"""Restores from a log in Kafka: each retained version as it was sealed, vectors, times, and what a rewind superseded."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import numpy as np
import pytest

import paramstream as ps
from paramstream.brokers import registry
from paramstream.consumers.restore import restore as restore_from
from paramstream.eventlog.kafka.reading import KafkaReader
from paramstream.eventlog.kafka.settings import KafkaLog
from reference.waiting import eventually


def test_each_version_comes_back_from_kafka_as_it_was_sealed(kafka: KafkaLog) -> None:
    digests: dict[str, str] = {}
    vectors: dict[str, ps.VersionVector[str]] = {}
    times: dict[str, datetime] = {}
    for names in (("1", "2", "3"), ("4", "5", "3'", "4'")):
        with ps.Broker(log=kafka) as broker, ps.connect(broker.endpoint) as client:
            client.create_topic("model", partitions=2, exist_ok=True)
            trainer = client.publisher("model", producer="trainer")
            with client.replica("model", arrays="numpy") as live:
                for name in names:
                    version, value = int(name[0]), float(name[0]) + len(name)
                    trainer.put_many({"last": name.encode(), f"k{name}": b"1"})
                    receipt = trainer.publish_weights({"w": np.full((200, 700), value)}, version, rewind=name == "3'")
                    vectors[name] = receipt.durable.result(30)
                    live.wait(receipt)
                    digests[name] = live.digest()
                    time.sleep(0.002)
                    times[name] = datetime.now(UTC)
                    time.sleep(0.002)
            for at, name in ((1, "1"), (4, "4'"), (None, names[-1])):
                if int(name[0]) <= int(names[0]) or at is None:
                    with ps.restore(broker.endpoint, "model", at=at) as replica:
                        assert replica.digest() == digests[name]
    moments: list[tuple[int | ps.VersionVector[str] | datetime | None, str]] = [
        (None, "4'"),
        (1, "1"),
        (2, "2"),
        (3, "3'"),
        (4, "4'"),
    ]
    moments += [(vectors[name], name) for name in ("3", "5", "3'")] + [(times[name], name) for name in ("2", "5", "3'")]
    for moment, name in moments:
        with ps.restore(kafka, "model", at=moment, arrays="numpy") as replica:
            assert replica.weights()["w"][0, 0] == float(name[0]) + len(name)
            assert (replica.get("last"), replica.digest()) == (name.encode(), digests[name])
    with pytest.raises(ps.VersionNotHeld, match="A rewind superseded this one"):
        ps.restore(kafka, "model", at=5)
    with pytest.raises(ps.UnknownTopic):
        ps.restore(kafka, "other")


def test_a_log_that_its_owner_cuts_while_it_is_read_is_read_again(kafka: KafkaLog) -> None:
    with (
        ps.Broker(log=kafka, log_limit=64 << 20) as broker,
        ps.connect(broker.endpoint) as client,
        KafkaReader(kafka) as reader,
    ):
        topic = client.create_topic("model", partitions=1, retain_versions=1)
        trainer = client.publisher("model", producer="trainer")
        published: list[int] = []

        def publish() -> None:
            published.append(len(published) + 1)
            weights = {f"w{n}": np.full(1 << 18, published[-1], np.float32) for n in range(12)}
            trainer.publish_weights(weights, published[-1]).durable.result(30)

        def start() -> int:
            return reader.read((topic.id, 1)).start

        publish()
        publish()
        begun, cut = start(), list[int]()

        def progress(nbytes: int) -> None:
            if not cut:
                cut.append(nbytes)
                for _ in range(3):
                    publish()
                eventually(lambda: start() > begun, 30)  # What is being read has left the log.

        restored = restore_from(kafka, "model", dense_only=True, registry=registry, arrays="numpy", progress=progress)
        with restored as replica:
            assert replica.weights().version == published[-1] == 5
