"""Two brokers over one real Kafka: one is killed or stopped, and the other owns all within the session timeout."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from fakes.flood import Flood
from paramstream.eventlog.kafka.settings import KafkaLog
from processes.child import Child
from processes.world import free_port
from reference.waiting import eventually

TOPIC = "model"
START_S = 30.0
WAIT_S = 30.0
SLACK_S = 6.0
"""For Kafka to share out anew, for the takeovers, and for clients to connect, on a busy machine."""


class Pair:
    """Two brokers, each in a process of its own, and a client of both."""

    def __init__(self, kafka: KafkaLog, folder: Path) -> None:
        self._kafka = kafka
        self._folder = folder
        self.endpoints = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
        self.brokers = [self._start(number) for number in range(2)]
        for broker in self.brokers:
            broker.read(START_S)
        self.client = ps.connect(self.endpoints, timeout=START_S)

    def start_again(self, number: int) -> None:
        self.brokers[number] = self._start(number)
        self.brokers[number].read(START_S)

    def owners(self) -> int:
        """How many brokers the client is connected to."""
        return len(self.client.describe_broker(WAIT_S).broker.split("+"))

    def begin(self) -> ps.Publisher:
        """Once both have their share: a topic with a version."""
        eventually(lambda: self.owners() == 2, START_S)
        self.client.create_topic(TOPIC, partitions=6, timeout=START_S)
        pub = self.client.publisher(TOPIC, "trainer")
        pub.publish_weights({"step": np.array([1])}, version=1)
        return pub

    def close(self) -> None:
        self.client.close()
        for broker in self.brokers:
            broker.kill()

    def _start(self, number: int) -> Child:
        kafka = self._kafka
        servers = ",".join(kafka.bootstrap_servers)
        arguments = (servers, kafka.topic_prefix, self.endpoints[number], kafka.session_timeout_s)
        return Child("kafka_broker", *arguments, errors=self._folder / f"broker-{number}")


@pytest.fixture
def pair(kafka: KafkaLog, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(kafka, tmp_path)
    try:
        yield pair
    finally:
        pair.close()


def check(pair: Pair, pub: ps.Publisher, flood: Flood, early: ps.Replica) -> None:
    """Every put has one outcome, and a replica that was there all the time has what one has that reads the whole log now."""
    with contextlib.suppress(ps.EventLost):
        pub.flush(WAIT_S)
    last = pub.put("last", b"value", timeout=WAIT_S)
    pub.flush(WAIT_S)
    outcomes = Counter(receipt.outcome for receipt in flood.receipts)
    assert set(outcomes) <= {"durable", "lost"} and outcomes["durable"] > outcomes["lost"], outcomes
    early.wait(last, WAIT_S)
    with pair.client.replica(TOPIC, arrays="numpy", start="earliest") as late:
        late.wait(last, WAIT_S)
        assert late.digest() == early.digest()
        assert late.weights().version == 1


def test_a_killed_brokers_partitions_are_the_others_within_the_session_timeout(pair: Pair, kafka: KafkaLog) -> None:
    pub = pair.begin()
    with pair.client.replica(TOPIC, arrays="numpy", start="earliest") as early:
        with Flood([pub]) as flood:
            flood.go_on(200)
            pair.brokers[0].kill()
            killed_at = time.monotonic()
            flood.go_on(200)
            assert time.monotonic() - killed_at < kafka.session_timeout_s + SLACK_S
            assert pair.owners() == 1
            pair.start_again(0)
            eventually(lambda: pair.owners() == 2, WAIT_S)
            flood.go_on(200)
        check(pair, pub, flood, early)


def test_a_stopped_broker_that_comes_back_finds_its_partitions_elsewhere(pair: Pair, kafka: KafkaLog) -> None:
    pub = pair.begin()
    with pair.client.replica(TOPIC, arrays="numpy", start="earliest") as early:
        with Flood([pub]) as flood:
            flood.go_on(200)
            pair.brokers[0].pause()
            paused_at = time.monotonic()
            flood.go_on(200)
            assert time.monotonic() - paused_at < kafka.session_timeout_s + SLACK_S
            assert pair.owners() == 1
            # It believes for a moment that it still owns them.
            pair.brokers[0].resume()
            eventually(lambda: pair.owners() == 2, WAIT_S)
            flood.go_on(200)
        check(pair, pub, flood, early)
