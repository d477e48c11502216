"""Restores from a log in Kafka: each retained version as it was sealed, vectors, times, and what a rewind superseded."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import numpy as np
import pytest

import paramstream as ps
from paramstream.eventlog.kafka.settings import KafkaLog


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
