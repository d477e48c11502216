"""A position that the log does not have: below its start, or above its end. It is named; nothing is skipped silently."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import paramstream as ps
from feeding.fakes import FakeBroker
from paramstream.consumers.replica import Replica
from reference.waiting import eventually
from reference.weights import check_weights


def weights_of(version: int) -> dict[str, npt.NDArray[np.float32]]:
    return {"w": np.full(50_000, version, np.float32)}


def test_a_position_below_the_logs_start_is_named_with_the_range_that_is_gone_I04() -> None:
    with ps.Broker(log="memory:", log_limit="4MiB") as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model", retain_versions=1)
        trainer = client.publisher("model", producer="trainer")
        committed = trainer.publish_weights(weights_of(1), 1).durable.result(10)
        for version in range(2, 40):
            trainer.publish_weights(weights_of(version), version).durable.result(10)
        oldest = min(each.position for each in client.versions("model") if each.restorable)
        assert oldest > committed["model", 1]
        with pytest.raises(ps.LogTruncated) as caught:
            client.subscribe("model", start=committed)
        assert caught.value.position == committed["model", 1] and caught.value.partition == 1
        with pytest.raises(ps.LogTruncated) as caught:
            client.replica("model", start=committed)
        assert caught.value.position == committed["model", 1]
        with pytest.raises(ps.LogTruncated):
            ps.restore(broker.endpoint, "model", at=committed)
        # Whoever says so begins with what there is.
        with client.replica("model", arrays="numpy") as replica:
            check_weights(replica.weights(), weights_of(39), 39)


def test_a_replica_whose_next_event_has_left_the_log_stops_and_says_so_I04() -> None:
    broker = FakeBroker()
    with Replica(["model"], directory=broker.directory, make_link=broker.make_link, timeout=2.0) as replica:
        broker.state.put(b"k", b"40")
        broker.settle()
        broker.demote(broker.state.partition)
        for number in range(41, 151):
            broker.state.put(b"k", str(number).encode())
            if number == 99:
                broker.starts[broker.state.partition] = broker.state.position
        broker.beat(1.0)
        (error,) = replica.status().stopped.values()
        assert isinstance(error, ps.LogTruncated) and (error.topic, error.partition) == ("model", 0)
        assert replica.get("k") == b"40" and replica.status().stale
        with pytest.raises(ps.LogTruncated):
            replica.wait(ps.VersionVector({("model", 0): broker.state.position}), timeout=1.0)


@contextmanager
def running(endpoint: str, folder: Path) -> Generator[ps.Publisher]:
    with ps.Broker(bind=endpoint, log=f"file:{folder}"), ps.connect(endpoint) as client:
        client.create_topic("model", exist_ok=True)
        yield client.publisher("model", producer="trainer")


def test_a_replica_ahead_of_a_log_that_was_put_back_stops_and_never_mixes_the_two_I04(tmp_path: Path) -> None:
    endpoint, folder, copy = f"ipc://{tmp_path / 'b'}", tmp_path / "log", tmp_path / "copy"
    with running(endpoint, folder) as trainer:
        trainer.put("k", b"1")
        trainer.publish_weights(weights_of(1), 1)
        trainer.flush()
    shutil.copytree(folder, copy)
    with ps.Broker(bind=endpoint, log=f"file:{folder}") as broker, ps.connect(endpoint) as watching:
        replica = watching.replica("model", arrays="numpy")
        with ps.connect(endpoint) as client:
            trainer = client.publisher("model", producer="trainer")
            trainer.put("k", b"2")
            trainer.put("gone", b"2")
            trainer.publish_weights(weights_of(2), 2)
            trainer.flush()
        eventually(lambda: all(durable == accepted > 0 for accepted, durable in replica.status().heads.values()))
        replica.wait_version(2)
        broker.close()
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)
        with running(endpoint, folder) as trainer:
            trainer.put("k", b"3")
            trainer.publish_weights(weights_of(3), 3)
            trainer.flush()
            eventually(lambda: len(replica.status().stopped) == 2)
            for error in replica.status().stopped.values():
                assert isinstance(error, ps.EventLost) and "for good" in str(error)
            with pytest.raises(ps.EventLost):
                replica.wait_version(3, timeout=5.0)
            # What it had is whole, old, and said to be: nothing of the other history is among it.
            check_weights(replica.weights(), weights_of(2), 2)
            assert (replica.get("k"), replica.get("gone")) == (b"2", b"2") and replica.status().stale
            with ps.connect(endpoint) as client, client.replica("model", arrays="numpy") as anew:
                check_weights(anew.weights(), weights_of(3), 3)
                assert (anew.get("k"), anew.get("gone")) == (b"3", None)
        replica.close()
