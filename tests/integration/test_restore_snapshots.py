"""Restores from snapshots: one by itself, and one with the log's tail where the log no longer has all of rows and KV."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import paramstream as ps
from paramstream.eventlog.local import held_partitions

PARTITIONS = 2


def weights_of(version: int) -> dict[str, npt.NDArray[Any]]:
    return {"w": np.full((20, 30), float(version), np.float32)}


def publish(trainer: ps.Publisher, live: ps.Replica, version: int) -> str:
    """`last` is the version, `k<v>` comes and `k<v - 2>` goes. Returns the digest of a replica that serves it at the head."""
    trainer.put_many({"last": str(version).encode(), f"k{version}": b"v" * version})
    trainer.delete(f"k{version - 2}")
    live.wait(trainer.publish_weights(weights_of(version), version))
    return live.digest()


@dataclass(frozen=True)
class Written:
    """Versions 1 … 6 of two starts of a broker. The state partitions of the log begin at the second start, behind 2."""

    log: str
    early: Path
    """A folder with a snapshot of version 2, before the second start."""
    tail: Path
    """One with snapshots of 3 and 5."""
    digests: dict[int, str]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    root = tmp_path_factory.mktemp("written")
    folder, early, tail = root / "log", root / "early", root / "tail"
    log = f"file:{folder}"
    digests: dict[int, str] = {}
    for versions in ((1, 2), (3, 4, 5, 6)):
        with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
            client.create_topic("model", partitions=PARTITIONS, exist_ok=True)
            trainer = client.publisher("model", producer="trainer")
            with client.replica("model", arrays="numpy") as live:
                for version in versions:
                    digests[version] = publish(trainer, live, version)
                    if version in (2, 3, 5):
                        live.snapshot(early if version == 2 else tail)
            trainer.flush()
    for topic, number in held_partitions([path.name for path in folder.iterdir()]):
        if topic and number < PARTITIONS:
            # As its owner cuts it, behind an announced snapshot: it begins with the base of the second start.
            *gone, _ = sorted((folder / f"{topic:016x}-{number}").glob("*.segment"))
            for segment in gone:
                segment.unlink()
    return Written(log, early, tail, digests)


@pytest.fixture(params=["folder", "broker"])
def source(request: pytest.FixtureRequest, written: Written) -> Iterator[str]:
    if request.param == "folder":
        yield written.log
        return
    with ps.Broker(log=written.log) as broker:
        yield broker.endpoint


def check(replica: ps.Replica, version: int, digest: str) -> None:
    assert replica.weights().version == version
    assert replica.weights()["w"].tolist() == weights_of(version)["w"].tolist()
    assert replica.get("last") == str(version).encode()
    assert [replica.get(f"k{n}") is not None for n in range(1, 7)] == [version - 1 <= n <= version for n in range(1, 7)]
    assert replica.digest() == digest


@pytest.mark.parametrize("version", [3, 4, 5, 6, None])
def test_a_snapshot_and_the_logs_tail_give_each_version(source: str, written: Written, version: int | None) -> None:
    with ps.restore(source, "model", at=version, snapshots=written.tail, arrays="numpy") as replica:
        check(replica, version or 6, written.digests[version or 6])


def test_what_lies_below_every_snapshot_is_refused_and_its_weights_are_not(source: str, written: Written) -> None:
    with pytest.raises(ps.LogTruncated) as caught:
        ps.restore(source, "model", at=2, snapshots=written.tail)
    assert caught.value.topic == "model" and caught.value.position
    with ps.restore(source, "model", at=2, dense_only=True, arrays="numpy") as replica:
        assert replica.weights()["w"].tolist() == weights_of(2)["w"].tolist()


def test_without_a_snapshot_a_log_that_was_cut_gives_weights_only(written: Written) -> None:
    with pytest.raises(ps.LogTruncated, match="snapshots=DIR"):
        ps.restore(written.log, "model", at=6)
    with pytest.raises(ps.LogTruncated):
        ps.restore(written.log, "model", at=6, snapshots=written.early)


def test_a_snapshot_by_itself_gives_its_state_and_its_version(written: Written) -> None:
    for at in (None, 5):
        with ps.restore(f"snapshot:{written.tail}", "model", at=at, arrays="numpy") as replica:
            check(replica, 5, written.digests[5])
    with ps.restore(f"snapshot:{written.tail}", "model", at=3, arrays="numpy") as replica:
        check(replica, 3, written.digests[3])
    with ps.restore(f"snapshot:{written.early}", "model", dense_only=True, arrays="numpy") as replica:
        assert replica.weights()["w"].tolist() == weights_of(2)["w"].tolist()
        with pytest.raises(ps.InvalidEvent):
            replica.get("last")


def test_a_snapshot_of_some_state_partitions_gives_the_weights_and_with_the_log_the_rest(
    written: Written, tmp_path: Path
) -> None:
    with (
        ps.Broker(log=written.log) as broker,
        ps.connect(broker.endpoint) as client,
        client.replica("model", start=f"snapshot:{written.tail}", partitions=[1], arrays="numpy") as part,
    ):
        part.snapshot(tmp_path)
    alone = f"snapshot:{tmp_path}"
    with pytest.raises(ps.LogTruncated, match="all state partitions") as refused:
        ps.restore(alone, "model", arrays="numpy")
    assert refused.value.partition == 0
    with ps.restore(alone, "model", dense_only=True, arrays="numpy") as replica:
        assert replica.weights().version == 6


def test_what_a_snapshot_has_not_is_refused_with_what_there_is(written: Written) -> None:
    with pytest.raises(ps.VersionNotHeld, match="3, 5"):
        ps.restore(f"snapshot:{written.tail}", "model", at=4)
    with pytest.raises(ps.InvalidEvent, match="by itself"):
        ps.restore(f"snapshot:{written.tail}", "model", at=ps.VersionVector())
    with pytest.raises(ps.UnknownTopic, match="model"):
        ps.restore(f"snapshot:{written.tail}", "other")


def test_a_damaged_snapshot_is_passed_for_an_older_one(written: Written, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(written.tail, copy)
    newest = max(copy.glob("*/snapshot-*"))
    page = next(newest.glob("state-*.safetensors"))
    data = bytearray(page.read_bytes())
    data[-1] ^= 1
    page.write_bytes(data)
    with ps.restore(written.log, "model", at=6, snapshots=copy, arrays="numpy") as replica:
        check(replica, 6, written.digests[6])
    with ps.restore(f"snapshot:{copy}", "model", arrays="numpy") as replica:
        check(replica, 3, written.digests[3])
    with pytest.raises(ps.CorruptLog, match="state-"):
        ps.restore(f"snapshot:{copy}", "model", at=5)


def test_damaged_manifests_are_named_where_a_version_or_all_of_it_is_not_found(
    written: Written, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(written.tail, copy)
    oldest, newest = sorted(copy.glob("*/snapshot-*/manifest.json"))
    newest.write_text("{}")
    with pytest.raises(ps.VersionNotHeld, match=re.escape(str(newest))):
        ps.restore(f"snapshot:{copy}", "model", at=5)
    oldest.write_text("{}")
    with pytest.raises(ps.CorruptLog, match=re.escape(str(newest))):
        ps.restore(f"snapshot:{copy}", "model")


def test_weights_that_left_the_log_come_from_a_snapshot(written: Written, tmp_path: Path) -> None:
    log = f"file:{tmp_path / 'log'}"
    with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model", retain_versions=1)
        with client.replica("model") as live:
            trainer = client.publisher("model", producer="trainer")
            live.wait(trainer.publish_weights(weights_of(1), 1))
            live.snapshot(tmp_path / "snapshots")
            trainer.publish_weights(weights_of(2), 2)
            trainer.flush()
    with pytest.raises(ps.VersionNotHeld):
        ps.restore(log, "model", at=7, dense_only=True, snapshots=tmp_path / "snapshots")
    for path in (tmp_path / "log").glob("*-1"):
        for segment in path.glob("*"):
            segment.unlink()
    with ps.restore(log, "model", at=1, dense_only=True, snapshots=tmp_path / "snapshots", arrays="numpy") as replica:
        assert replica.weights()["w"].tolist() == weights_of(1)["w"].tolist()
