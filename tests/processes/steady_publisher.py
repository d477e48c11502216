"""A publisher that keeps to a rate: `python -m processes.steady_publisher ENDPOINT TOPIC NBYTES VERSIONS_PER_S PUTS_PER_S KEYS`.

It publishes version after version of `NBYTES`, every element the version's number, and puts small values under `KEYS` keys in
turn. One that cannot keep up goes on as fast as it can. Asked to `stop` it flushes and says how far it came.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import numpy as np

import paramstream as ps

from .lines import Lines, say

TENSORS = 4
VALUE_NBYTES = 100


@dataclass(slots=True)
class Beat:
    """When the next one of a steady row is due. What was missed is not made up for."""

    period_s: float
    due_s: float

    def is_due(self, now: float) -> bool:
        if now < self.due_s:
            return False
        self.due_s = max(self.due_s + self.period_s, now)
        return True


def main(endpoint: str, topic: str, nbytes: int, versions_per_s: float, puts_per_s: float, keys: int) -> None:
    weights = {f"layer.{n}": np.zeros(nbytes // TENSORS // 4, dtype=np.float32) for n in range(TENSORS)}
    lines = Lines(0)
    with ps.connect(endpoint, timeout=60) as client, client.publisher(topic, producer="steady") as publisher:
        version = puts = 0
        say(up=True)
        now = time.monotonic()
        versions_beat, puts_beat = Beat(1 / versions_per_s, now), Beat(1 / puts_per_s, now)
        while lines.next(max(0.0, min(versions_beat.due_s, puts_beat.due_s) - time.monotonic())) is None:
            if puts_beat.is_due(time.monotonic()):
                publisher.put(f"key-{puts % keys}", puts.to_bytes(VALUE_NBYTES, "little"))
                puts += 1
            if versions_beat.is_due(time.monotonic()):
                version += 1
                for values in weights.values():
                    values.fill(version)
                publisher.publish_weights(weights, version, timeout=60)
        last = publisher.put("last", puts.to_bytes(VALUE_NBYTES, "little"))
        publisher.flush(60)
        say(version=version, puts=puts, vector=str(last.durable.result(60)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]), int(sys.argv[6]))
