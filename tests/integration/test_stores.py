"""A store serves one replica at a time, and one that was full serves again once there is room."""

from __future__ import annotations

import time

import numpy as np
import pytest

import paramstream as ps

VALUES = 500_000


def test_a_store_in_use_is_given_to_no_second_replica(broker: ps.Broker, client: ps.Client) -> None:
    client.create_topic("model")
    pub = client.publisher("model", producer="trainer")
    before = pub.put("k", b"old").accepted.result(5)
    pub.put("k", b"new").durable.result(5)
    with ps.TieredStore(dram="16MiB") as store:
        with client.replica("model", name="first", store=store) as first:
            with pytest.raises(ps.InvalidEvent, match="first"):
                client.replica("model", store=store)
            with pytest.raises(ps.InvalidEvent, match="first"):
                ps.restore(broker.endpoint, "model", at=before, store=store)
            assert first.get("k") == b"new"
        with ps.restore(broker.endpoint, "model", at=before, store=store) as restored:
            assert restored.get("k") == b"old"
    with pytest.raises(ps.InvalidEvent, match="closed"):
        client.replica("model", store=store)


@pytest.mark.parametrize("catch_up", ["latest", "all"])
def test_a_replica_goes_on_once_readers_let_go_of_what_filled_its_store(client: ps.Client, catch_up: str) -> None:
    client.create_topic("model")
    pub = client.publisher("model", producer="trainer")
    with (
        ps.TieredStore(dram="9MiB") as store,
        client.replica("model", store=store, catch_up=catch_up, keep_versions=1, arrays="numpy") as replica,
    ):
        held: list[ps.Weights] = []
        with pytest.raises(ps.StorageFull, match="let go"):
            for version in range(1, 10):
                replica.wait(pub.publish_weights({"w": np.full(VALUES, version, np.float32)}, version=version), 5)
                held.append(replica.weights())
        assert replica.status().stopped and all((old["w"] == old.version).all() for old in held)
        newest = pub.publish_weights({"w": np.full(VALUES, 20, np.float32)}, version=20)
        held.clear()
        deadline = time.monotonic() + 10.0
        while replica.status().stopped and time.monotonic() < deadline:
            time.sleep(0.02)
        replica.wait(newest, 10.0)
        assert (replica.weights()["w"] == 20.0).all()
