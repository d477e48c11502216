"""Restores: any retained version comes back as it was sealed, from a log's folder or a broker, rows and KV with it."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import paramstream as ps
from paramstream.brokers import registry
from paramstream.consumers.sources import LogSource
from paramstream.consumers.targets import tensors_of
from paramstream.eventlog.reading import FolderReader

VERSIONS = 6


@dataclass(frozen=True)
class Written:
    """A log with versions 0 … 5; version v holds v everywhere, and before it `last` was put as v, and `k<v>`."""

    log: str
    folder: Path
    digests: list[str]
    """Of a live replica that served each version at the head."""
    after_3: ps.VersionVector[str]
    then: datetime
    """After version 3, before version 4."""
    versions: list[ps.VersionInfo]


def weights_of(version: int) -> dict[str, npt.NDArray[Any]]:
    return {"w": np.full((300, 1000), float(version)), "b": np.full(3, version, dtype=np.int8)}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("log")
    log = f"file:{folder}"
    digests: list[str] = []
    with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model", partitions=3)
        trainer = client.publisher("model", producer="trainer")
        live = client.replica("model", arrays="numpy")
        after_3, then = ps.VersionVector[str](), datetime.now(UTC)
        for version in range(VERSIONS):
            trainer.put_many({"last": str(version).encode(), f"k{version}": b"v"})
            receipt = trainer.publish_weights(weights_of(version), version)
            live.wait(receipt)
            digests.append(live.digest())
            if version == 3:
                trainer.flush()
                after_3, then = receipt.vector, datetime.now(UTC)
        trainer.flush()
        versions = client.versions("model")
    return Written(log, folder, digests, after_3, then, versions)


@pytest.fixture(params=["folder", "broker"])
def source(request: pytest.FixtureRequest, written: Written) -> Iterator[str]:
    if request.param == "folder":
        yield written.log
        return
    with ps.Broker(log=written.log) as broker:
        yield broker.endpoint


def check(replica: ps.Replica, version: int, digest: str) -> None:
    weights = replica.weights()
    assert weights.version == version
    assert {name: array.tolist() for name, array in weights.items()} == {
        name: array.tolist() for name, array in weights_of(version).items()
    }
    assert replica.get("last") == str(version).encode()
    assert [replica.get(f"k{number}") is not None for number in range(VERSIONS)] == [
        number <= version for number in range(VERSIONS)
    ]
    assert replica.digest() == digest


@pytest.mark.parametrize("version", [0, 3, VERSIONS - 1])
def test_a_version_comes_back_with_the_entries_of_its_commit(source: str, written: Written, version: int) -> None:
    with ps.restore(source, "model", at=version, arrays="numpy") as replica:
        check(replica, version, written.digests[version])


def test_the_head_comes_back_unless_a_version_is_named(source: str, written: Written) -> None:
    with ps.restore(source, "model", arrays="numpy") as replica:
        check(replica, VERSIONS - 1, written.digests[-1])


def test_a_vector_gives_the_state_that_had_seen_it(source: str, written: Written) -> None:
    with ps.restore(source, "model", at=written.after_3, arrays="numpy") as replica:
        check(replica, 3, written.digests[3])


def test_a_vector_that_is_not_closed_is_lowered_to_what_is(source: str, written: Written) -> None:
    # The commit of version 3 without the entries that it and the older ones depend on.
    commit = {partition: at for partition, at in written.after_3.items() if partition == ("model", 3)}
    with ps.restore(source, "model", at=ps.VersionVector(commit)) as replica:
        assert [replica.get(f"k{number}") for number in range(VERSIONS)] == [None] * VERSIONS
        with pytest.raises(ps.VersionNotHeld):
            replica.weights()


def test_a_vector_of_the_weights_alone_serves_for_weights_alone(written: Written) -> None:
    commit = {partition: at for partition, at in written.after_3.items() if partition == ("model", 3)}
    with ps.restore(written.log, "model", at=ps.VersionVector(commit), dense_only=True, arrays="numpy") as replica:
        assert replica.weights().version == 3


def test_a_time_gives_the_state_of_that_time(written: Written) -> None:
    with ps.restore(written.log, "model", at=written.then, arrays="numpy") as replica:
        check(replica, 3, written.digests[3])


def test_the_time_that_is_told_of_a_version_gives_that_version(written: Written) -> None:
    for info in written.versions:
        with ps.restore(written.log, "model", at=info.time, arrays="numpy") as replica:
            assert replica.weights().version == info.version


def test_a_time_before_the_first_version_gives_none_and_says_so(written: Written) -> None:
    with (
        ps.restore(written.log, "model", at=datetime(2020, 1, 1, tzinfo=UTC), arrays="numpy") as replica,
        pytest.raises(ps.VersionNotHeld, match="a moment before the first version"),
    ):
        replica.weights()


def test_a_time_without_a_zone_is_refused(written: Written) -> None:
    with pytest.raises(ps.InvalidEvent, match="no time zone"):
        ps.restore(written.log, "model", at=datetime(2030, 1, 1))


def test_weights_alone_come_without_entries(source: str) -> None:
    with ps.restore(source, "model", at=2, dense_only=True, arrays="numpy") as replica:
        assert replica.weights().version == 2
        assert float(replica.weights()["w"][0, 0]) == 2.0
        with pytest.raises(ps.InvalidEvent):
            replica.get("last")


def test_a_restored_replica_follows_nothing(written: Written) -> None:
    with (
        ps.Broker(log=written.log) as broker,
        ps.connect(broker.endpoint) as client,
        ps.restore(broker.endpoint, "model", arrays="numpy") as replica,
    ):
        before = replica.digest()
        other = client.publisher("model", producer="other")
        receipt = other.put("later", b"1")
        with client.replica("model") as live:
            live.wait(receipt)
            assert live.get("later") == b"1"
        assert replica.get("later") is None
        assert replica.digest() == before
        assert not replica.status().connected
        other.delete("later")
        other.flush()


def test_a_version_that_is_not_there_is_refused_with_those_that_are(source: str) -> None:
    with pytest.raises(ps.VersionNotHeld, match="0, 1, 2, 3, 4, 5") as caught:
        ps.restore(source, "model", at=77)
    assert caught.value.version == 77


def test_an_unknown_topic_is_refused_with_those_there_are(source: str) -> None:
    with pytest.raises(ps.UnknownTopic, match="model"):
        ps.restore(source, "nothing")


def test_a_folder_that_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ps.CorruptLog, match="no log"):
        ps.restore(f"file:{tmp_path}", "model")


@pytest.mark.parametrize("source", ["kafka://", "memory:", "/a/path", ""])
def test_a_source_that_cannot_be_read_is_refused(source: str) -> None:
    with pytest.raises(ps.InvalidEvent):
        ps.restore(source, "model")


def test_what_is_not_durable_by_settings_is_refused() -> None:
    with ps.Broker() as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("fast", persistence="none")
        client.publisher("fast", producer="t").publish_weights({"w": np.ones(1)}, version=1).accepted.result()
        with pytest.raises(ps.NotDurable):
            ps.restore(broker.endpoint, "fast")


def test_a_rewound_version_comes_back_as_it_was_sealed_last(tmp_path: Path) -> None:
    log = f"file:{tmp_path / 'log'}"
    with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        trainer = client.publisher("model", producer="trainer")
        for version, value in ((1, 1.0), (2, 2.0), (3, 3.0)):
            trainer.publish_weights({"w": np.full(2, value)}, version)
        trainer.publish_weights({"w": np.full(2, 20.0)}, 2, rewind=True)
        trainer.flush()
    with ps.restore(log, "model", at=2, arrays="numpy") as replica:
        assert replica.weights()["w"].tolist() == [20.0, 20.0]
    with ps.restore(log, "model", arrays="numpy") as replica:
        assert replica.weights().version == 2
    with pytest.raises(ps.VersionNotHeld, match=r"There are: 1, 2\. A rewind superseded this one"):
        ps.restore(log, "model", at=3)


def test_topics_are_known_from_a_base_once_the_records_before_it_are_gone(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    log = f"file:{folder}"
    for version in (1, 2):
        with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
            client.create_topic("model", exist_ok=True)
            trainer = client.publisher("model", producer="trainer")
            trainer.publish_weights({"w": np.full(2, float(version))}, version)
            trainer.flush()
    # As a broker cuts it some time after a restart: the registry begins with the base of its last opening.
    segments = sorted((folder / f"{0:016x}-0").glob("*.segment"))
    assert len(segments) > 1, segments
    segments[0].unlink()
    with ps.restore(log, "model", at=1, arrays="numpy") as replica:
        assert replica.weights()["w"].tolist() == [1.0, 1.0]


def test_the_tensors_of_a_version_are_known_before_it_is_restored(written: Written) -> None:
    with closing(LogSource(FolderReader(written.folder), "model", registry)) as source:
        for version in source.versions():
            assert tensors_of(source, version) == {"w": 300 * 1000 * 8, "b": 3}
