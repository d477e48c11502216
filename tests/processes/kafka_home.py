"""A log in Kafka that brokers share: any of them may be killed or stand still, and so may Kafka."""

from __future__ import annotations

import random
import time
import uuid
from pathlib import Path

import paramstream as ps
from realkafka.cluster import Cluster

from .child import Child
from .kafka_records import counted, read_frames
from .reference import Reference, read_topic

SESSION_S = 2.0
"""How long Kafka waits for a broker that it hears nothing from."""
START_S = 60.0
STILL_S = (0.5, 2.0 * SESSION_S)
"""So long something stands still; a broker that does so for longer than its session loses its partitions to another."""


class KafkaHome:
    """One Kafka node, with a prefix of its own in it."""

    progress_s = 60.0
    refusals = ("BackpressureTimeout",)
    """Where Kafka and brokers die in turn, a call may wait longer for those before it than its own time."""

    def __init__(self, cluster: Cluster, chance: random.Random, *, brokers: int) -> None:
        """The `cluster` is not closed."""
        self._cluster = cluster
        self._chance = chance
        self._prefix = f"kills-{uuid.uuid4().hex[:8]}."
        self._children: dict[str, Child] = {}
        self.brokers = tuple(f"broker-{number}" for number in range(brokers))
        self.others = ("kafka", "kafka", *(f"{name} in sleep" for name in self.brokers))

    def may_lose(self, persistence: str) -> bool:
        """What a killed broker had accepted and Kafka did not have."""
        return persistence == "write_back"

    def harm(self, what: str) -> None:
        (node,) = self._cluster.nodes
        if what != "kafka":
            child = self._children[what.removesuffix(" in sleep")]
            child.pause()
            time.sleep(self._chance.uniform(*STILL_S))
            child.resume()
        elif self._chance.random() < 0.5:
            node.pause()
            time.sleep(self._chance.uniform(*STILL_S))
            node.resume()
        else:
            node.kill()
            node.start()
            node.wait_ready(time.monotonic() + START_S)

    def start_broker(self, name: str, endpoint: str, errors: Path) -> Child:
        arguments = (self._cluster.bootstrap, self._prefix, endpoint, SESSION_S)
        child = self._children[name] = Child("kafka_broker", *arguments, errors=errors)
        return child

    def kill_broker(self, child: Child, *, is_up: bool) -> None:
        child.kill()

    def read(self, topic: ps.TopicInfo) -> Reference:
        partitions = read_frames(self._cluster.bootstrap, self._prefix, topic.id, topic.partitions + 1)
        return read_topic(topic.name, [counted(frames) for frames in partitions], constant=True)
