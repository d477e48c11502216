"""Fault case F07: a network that breaks without a close is noticed on both sides, and what was missed is fetched."""

from __future__ import annotations

import time

import numpy as np
import pytest

import paramstream as ps
from paramstream.consumers.status import STALE_S
from reference.waiting import eventually
from wire.hole import Hole

HEARTBEAT_S = 0.5
MARGIN_S = 1.0
"""For a busy machine, beside what is promised."""


def break_for(seconds: float, broker: ps.Broker, client: ps.Client) -> None:
    """`client` reaches the broker without the hole."""
    client.create_topic("model", partitions=2)
    publisher = client.publisher("model", producer="trainer")
    version = 0

    def publish() -> ps.Receipt:
        nonlocal version
        version += 1
        publisher.put(f"key-{version % 7}", str(version).encode())
        return publisher.publish_weights({"w": np.full(4096, version, np.int64)}, version=version)

    publish()
    with (
        Hole(broker) as hole,
        ps.connect(hole.endpoint) as far,
        far.replica("model", name="far", arrays="numpy") as replica,
        client.replica("model", name="near", arrays="numpy") as near,
    ):
        replica.wait(publisher.put("fleeting", b"value", ttl=1.0))
        eventually(lambda: not replica.status().stale and len(client.replicas("model")) == 2)
        hole.swallow()
        broken = time.monotonic()
        while not replica.status().stale:
            publish()
            time.sleep(0.02)
        noticed = time.monotonic() - broken
        status = replica.status()
        assert noticed < STALE_S + MARGIN_S and status.age_s > STALE_S
        eventually(lambda: any(r.name == "far" and r.stale for r in client.replicas("model")), STALE_S + MARGIN_S)
        (seen,) = [r for r in client.replicas("model") if r.name == "far"]
        assert seen.age_s > STALE_S
        assert [r.stale for r in client.replicas("model") if r.name == "near"] == [False]
        while time.monotonic() - broken < seconds:
            publish()
            time.sleep(0.02)
        # Cut off it goes on serving, says so, and hides what has expired.
        assert replica.weights().version < version and replica.status().stale and replica.status().age_s > STALE_S
        assert replica.get("fleeting") is None
        hole.give_back()
        last = publish()
        for each in (replica, near):
            each.wait_version(version, timeout=20)
            each.wait(last, timeout=20)
            each.wait(publisher.put("end", b"value"), timeout=20)
        assert replica.digest() == near.digest()
        eventually(lambda: not replica.status().stale)
        eventually(lambda: not any(r.stale for r in client.replicas("model")))


def test_a_break_without_a_close_is_noticed_by_both_sides_and_made_good_F07_M08(
    broker: ps.Broker, client: ps.Client
) -> None:
    break_for(4.0, broker, client)


@pytest.mark.slow
def test_a_break_of_ten_seconds_without_a_close_is_noticed_by_both_sides_and_made_good_F07(
    broker: ps.Broker, client: ps.Client
) -> None:
    break_for(10.0, broker, client)


def test_three_heartbeats_missed_are_stale() -> None:
    assert STALE_S == 3 * HEARTBEAT_S
