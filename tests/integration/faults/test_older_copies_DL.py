"""Fault cases D01, D05, L06 and L12: a copy that is older, of another run, or of other shards never stands for what is newer or missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import paramstream as ps
from reference.weights import check_weights

WAIT_S = 20.0


def weights(version: int) -> dict[str, npt.NDArray[np.float32]]:
    return {"w": np.full(8, version, np.float32)}


def publish(publisher: ps.Publisher, *versions: int) -> None:
    """Each version, and its number in the entry `row`; returns when all of it is durable."""
    for version in versions:
        publisher.put("row", b"%d" % version)
        publisher.publish_weights(weights(version), version=version)
    publisher.flush(WAIT_S)


def check_at(replica: ps.Replica, version: int) -> None:
    check_weights(replica.weights(), weights(version), version)
    assert replica.get("row") == b"%d" % version


def test_an_older_copy_never_overwrites_what_is_newer_and_is_served_by_its_number_only_D01(
    client: ps.Client, tmp_path: Path
) -> None:
    client.create_topic("model")
    publisher = client.publisher("model", producer="trainer")
    publish(publisher, 6)
    with client.replica("model", name="r", snapshot_dir=tmp_path) as replica:
        (made,) = replica.snapshot()
        assert made.version == 6
    publish(publisher, 7)
    for start in ("resume", f"snapshot:{tmp_path}"):
        with client.replica("model", name="r", snapshot_dir=tmp_path, start=start, arrays="numpy") as again:
            switched: list[int] = []
            again.on_switch(lambda info, switched=switched: switched.append(info.version))  # type: ignore[misc]
            check_at(again, 7)
            digest = again.digest()
            # Whoever wants the older one says so, and has it until it says otherwise.
            again.rollback(6, timeout=WAIT_S)
            check_weights(again.weights(), weights(6), 6)
            again.follow()
            check_at(again, 7)
            assert again.digest() == digest
            again.wait(publisher.put("end", b""), WAIT_S)
        assert switched == [6, 7]


def test_whoever_follows_a_trainer_that_begins_at_step_500_has_its_version_or_says_that_it_has_none_D05(
    tmp_path: Path,
) -> None:
    log = f"file:{tmp_path / 'old'}"
    with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        publish(client.publisher("model", producer="trainer"), 499, 500)
    with ps.restore(log, "model", at=500, arrays="numpy") as restored:
        checkpoint = dict(restored.weights())
    # Its log is a new one: nothing was ever published here, and the first version is no first step.
    with ps.Broker() as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        publisher = client.publisher("model", producer="trainer")
        with client.replica("model", name="r", arrays="numpy") as replica:
            with pytest.raises(ps.VersionNotHeld):
                replica.weights()
            with pytest.raises(ps.ParamstreamTimeout, match="0 of 1 replicas serve"):
                client.wait_replicas("model", 501, count=1, timeout=0.3)
            assert replica.status().version is None
            receipt = publisher.publish_weights({"w": checkpoint["w"] + 1}, version=501)
            replica.wait(receipt, WAIT_S)
            check_weights(replica.weights(), weights(501), 501)
            client.wait_replicas("model", 501, count=1, timeout=WAIT_S)
        with client.replica("model", arrays="numpy") as late:
            check_weights(late.weights(), weights(501), 501)


def test_what_another_run_left_in_the_same_folder_is_never_taken_for_this_runs_L12(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with ps.Broker(log=f"file:{tmp_path / 'a'}") as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        publish(client.publisher("model", producer="trainer"), *range(1, 9))
        with client.replica("model", name="r", snapshot_dir=kept) as replica:
            (of_a,) = replica.snapshot()
    log = f"file:{tmp_path / 'b'}"
    with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        publisher = client.publisher("model", producer="trainer")
        publish(publisher, 1, 2)
        # It goes by the topic's own id: A's state has a greater version and the same names, and is left where it is.
        with client.replica("model", name="r", start="resume", snapshot_dir=kept, arrays="numpy") as replica:
            check_at(replica, 2)
            (of_b,) = replica.snapshot()
        assert of_b.path.parent != of_a.path.parent and of_a.path.exists()
        publish(publisher, 3)
        for start in ("resume", f"snapshot:{kept}"):
            with client.replica("model", name="r", start=start, snapshot_dir=kept, arrays="numpy") as replica:
                check_at(replica, 3)
        with ps.restore(broker.endpoint, "model", snapshots=kept, arrays="numpy") as restored:
            check_at(restored, 3)
    with ps.restore(log, "model", snapshots=kept, arrays="numpy") as restored:
        check_at(restored, 3)
    # The folder alone is the newer run's.
    with ps.restore(f"snapshot:{kept}", "model", arrays="numpy") as restored:
        check_at(restored, 2)


@pytest.mark.parametrize("replicas", [1, 2, 3, 8])
def test_a_snapshot_is_opened_by_any_number_of_replicas_that_share_its_partitions_L06(
    client: ps.Client, tmp_path: Path, replicas: int
) -> None:
    partitions, keys = 4, [f"row-{number}" for number in range(37)]
    client.create_topic("model", partitions=partitions)
    publisher = client.publisher("model", producer="trainer")
    publisher.put_many({key: key.encode() for key in keys})
    publish(publisher, 1)
    with client.replica("model") as whole:
        whole.snapshot(tmp_path)
    publisher.put(keys[0], b"behind the snapshot").durable.result(WAIT_S)
    held: list[tuple[str, bytes]] = []
    for number in range(replicas):
        own = list(range(number, partitions, replicas))
        with client.replica("model", start=f"snapshot:{tmp_path}", partitions=own, arrays="numpy") as replica:
            check_weights(replica.weights(), weights(1), 1)
            for key in keys:
                try:
                    value = replica.get(key)
                except ps.InvalidEvent:
                    continue
                assert value is not None, "a partition that it follows is whole"
                held.append((key, value))
    assert sorted(key for key, _ in held) == sorted(keys), "every key once, at the replica that follows its partition"
    expected = {key: key.encode() for key in keys} | {keys[0]: b"behind the snapshot"}
    assert dict(held) == expected
