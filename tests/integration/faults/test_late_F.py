"""Fault case F01: who comes late misses nothing."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import paramstream as ps
from reference.weights import check_weights

VERSIONS = 50
STARTS = ("latest", "earliest")


def weights(version: int) -> dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    return {"step": np.array([version], np.int64), "square": np.array([version * version], np.int64)}


def one_run(broker: ps.Broker, topic: str, start: str) -> None:
    """A publisher sends all versions the moment it is up; a replica connects when it is near the 20th, and ends at the last."""
    near_20 = threading.Event()

    def publish() -> None:
        with ps.connect(broker.endpoint) as client, client.publisher(topic, producer=f"of-{topic}") as publisher:
            for version in range(1, VERSIONS + 1):
                publisher.publish_weights(weights(version), version=version)
                publisher.put(f"put-{version}", str(version).encode())
                if version == 18:
                    near_20.set()
            publisher.flush(30)

    with ps.connect(broker.endpoint) as client:
        client.create_topic(topic, retain_versions=VERSIONS)
        trainer = threading.Thread(target=publish, name=f"trainer-of-{topic}")
        trainer.start()
        try:
            assert near_20.wait(30)
            replica = client.replica(topic, start=start, arrays="numpy")
            replica.wait_version(VERSIONS, timeout=30)
        finally:
            trainer.join(60)
        check_weights(replica.weights(), weights(VERSIONS), VERSIONS)
        sealed = client.versions(topic)
        assert [found.version for found in sealed] == list(range(1, VERSIONS + 1))
        assert replica.weights().digest == sealed[-1].digest
        replica.wait(client.publisher(topic, producer=f"last-of-{topic}").put("last", b"put"), 30)
        keys = [f"put-{version}" for version in range(1, VERSIONS + 1)]
        assert replica.get_many(keys) == [str(version).encode() for version in range(1, VERSIONS + 1)]
        assert not replica.status().stopped and replica.status().lag_events == 0
        client.delete_topic(topic)


def test_a_replica_that_comes_near_version_20_of_50_ends_at_50_F01(broker: ps.Broker) -> None:
    for run in range(10):
        one_run(broker, f"model-{run}", STARTS[run % 2])


@pytest.mark.slow
def test_a_hundred_replicas_that_come_near_version_20_of_50_end_at_50_F01(broker: ps.Broker) -> None:
    for run in range(100):
        one_run(broker, f"model-{run}", STARTS[run % 2])
