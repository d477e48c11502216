"""A replica that begins at a vector: complete state there, then it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from paramstream.consistency.position import position
from reference.waiting import eventually

VERSIONS = range(1, 6)


class Stage:
    """Version v of five holds v, and before it "last" was put as v."""

    def __init__(self, client: ps.Client, retain: int) -> None:
        client.create_topic("model", partitions=2, retain_versions=retain)
        self.client = client
        self.trainer = client.publisher("model", producer="trainer")
        self.vectors: dict[int, ps.VersionVector[str]] = {}
        for version in VERSIONS:
            self.publish(version)
        self.trainer.flush()

    def publish(self, version: int) -> None:
        self.trainer.put_many({"last": str(version).encode(), f"k{version}": b"1"})
        receipt = self.trainer.publish_weights({"w": np.full(50_000, float(version))}, version)
        self.vectors[version] = receipt.accepted.result(10)

    def replica(self, start: ps.VersionVector[str]) -> ps.Replica:
        return self.client.replica("model", start=start, catch_up="all", keep_versions=9, arrays="numpy")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with ps.Broker(log=f"file:{tmp_path / 'log'}") as broker, ps.connect(broker.endpoint) as client:
        yield Stage(client, 8)


@pytest.mark.parametrize("version", [1, 3, 5])
def test_the_version_at_the_vector_is_served_first_and_then_those_after_it(stage: Stage, version: int) -> None:
    with stage.replica(stage.vectors[version]) as replica:
        replica.wait_version(version, timeout=0)
        assert [replica.get(f"k{n}") for n in range(1, version + 1)] == [b"1"] * version
        replica.wait_version(5)
        for held in range(version, 6):
            assert (replica.weights(held)["w"] == held).all()
        with pytest.raises(ps.VersionNotHeld):
            replica.weights(version - 1)
        with stage.client.replica("model") as head:
            replica.wait(head.vector)
            assert replica.digest() == head.digest()
        stage.publish(6)
        replica.wait_version(6)
        assert replica.get("last") == b"6"


def test_a_vector_that_is_not_closed_is_lowered_to_the_newest_version_that_is(stage: Stage) -> None:
    mixed = ps.VersionVector({**stage.vectors[2], ("model", 2): stage.vectors[4]["model", 2]})
    with stage.replica(mixed) as replica:
        assert (replica.weights(2)["w"] == 2).all()
        replica.wait_version(5)
        with pytest.raises(ps.VersionNotHeld):
            replica.weights(1)


def test_at_an_empty_vector_every_version_comes(stage: Stage) -> None:
    with stage.replica(ps.VersionVector()) as replica:
        replica.wait_version(5)
        assert [replica.weights(version).version for version in VERSIONS] == list(VERSIONS)


def test_a_vector_ahead_of_the_log_is_refused_at_once(stage: Stage) -> None:
    ahead = {**stage.vectors[5], ("model", 0): position(1 << 35, 7)}
    with pytest.raises(ps.EventLost, match="the log ends at") as caught:
        stage.replica(ps.VersionVector(ahead))
    assert (caught.value.topic, caught.value.partition) == ("model", 0)


def test_a_vector_that_names_what_an_epoch_lost_is_refused_at_once(tmp_path: Path) -> None:
    log = f"file:{tmp_path / 'log'}"
    with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        seen = client.publisher("model", producer="p").put("k", b"1").durable.result(10)
    lost = ps.VersionVector({partition: at + 1 for partition, at in seen.items()})
    with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
        client.publisher("model", producer="p").put("k", b"2").durable.result(10)
        with pytest.raises(ps.EventLost, match="what was lost since"):
            client.replica("model", start=lost)
        client.replica("model", start=seen).close()


def test_a_version_that_has_left_the_log_is_named_with_the_oldest_that_has_not(tmp_path: Path) -> None:
    with ps.Broker(log="memory:", log_limit="8MiB") as broker, ps.connect(broker.endpoint) as client:
        stage = Stage(client, 1)
        versions = iter(range(6, 10_000))

        def second_is_gone() -> bool:
            with suppress(ps.StorageFull):
                stage.publish(next(versions))
            return client.versions("model")[0].position > stage.vectors[2]["model", 2]

        eventually(second_is_gone, 30.0)
        with pytest.raises(ps.LogTruncated, match="The oldest whole version is") as caught:
            stage.replica(stage.vectors[2])
        assert (caught.value.partition, caught.value.position) == (2, stage.vectors[2]["model", 2])
        newest = max(stage.vectors)
        with stage.replica(stage.vectors[newest]) as replica:
            assert replica.weights().version == newest
