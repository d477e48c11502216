"""A replica goes back to versions that it never held: from the log, or from its snapshots. The trainer is gone."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import paramstream as ps
from reference.waiting import eventually
from reference.weights import check_weights


def weights_of(version: int) -> dict[str, npt.NDArray[np.float32]]:
    return {"w": np.full((100, 500), version, np.float32), "b": np.full(3, -version, np.float32)}


def train(endpoint: str, versions: range, *, rewind: bool = False) -> None:
    """By a client that is gone when this returns; each version is durable before the next one, so that a small log is trimmed."""
    with ps.connect(endpoint) as client:
        trainer = client.publisher("model", producer="trainer")
        for version in versions:
            trainer.publish_weights(weights_of(version), version, rewind=rewind).durable.result(30)


def test_any_retained_version_is_served_long_after_its_trainer_is_gone(tmp_path: Path) -> None:
    with ps.Broker(log=f"file:{tmp_path / 'log'}") as broker:
        with ps.connect(broker.endpoint) as client:
            client.create_topic("model")
        train(broker.endpoint, range(1, 7))
        with ps.connect(broker.endpoint) as client, client.replica("model", arrays="numpy") as replica:
            for version in (3, 1, 6, 2, 5, 4):
                replica.rollback(version)
                check_weights(replica.weights(), weights_of(version), version)
                with ps.restore(broker.endpoint, "model", at=version, arrays="numpy") as restored:
                    check_weights(restored.weights(), weights_of(version), version)
            train(broker.endpoint, range(7, 9))
            check_weights(replica.weights(), weights_of(4), 4)
            replica.follow()
            replica.wait_version(8)
            with pytest.raises(ps.VersionNotHeld, match="the log has: 1, 2, 3, 4, 5, 6, 7, 8"):
                replica.rollback(9)
            check_weights(replica.weights(), weights_of(8), 8)


def test_a_rollback_ends_by_its_deadline(tmp_path: Path) -> None:
    log = f"file:{tmp_path / 'log'}"
    with ps.Broker(bind=f"ipc://{tmp_path / 'b'}", log=log) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        train(broker.endpoint, range(1, 4))
        with client.replica("model", arrays="numpy") as replica:
            broker.close()
            began = time.monotonic()
            with pytest.raises((ps.ParamstreamTimeout, ps.ConnectFailed)):
                replica.rollback(1, timeout=0.3)
            assert time.monotonic() - began < 5.0
            check_weights(replica.weights(), weights_of(3), 3)


def test_a_version_that_left_the_log_comes_from_a_snapshot_of_the_replica(tmp_path: Path) -> None:
    with ps.Broker(log="memory:", log_limit="8MiB") as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model", retain_versions=1)
        with client.replica("model", keep_versions=1, snapshot_dir=tmp_path, arrays="numpy") as replica:
            for version in (1, 2, 3):
                train(broker.endpoint, range(version, version + 1))
                replica.wait_version(version)
                if version != 3:
                    replica.snapshot()
            train(broker.endpoint, range(4, 60))
            replica.wait_version(59)
            for version in (2, 1):
                replica.rollback(version)
                check_weights(replica.weights(), weights_of(version), version)
            with pytest.raises(ps.VersionNotHeld):
                replica.rollback(3)
            check_weights(replica.weights(), weights_of(1), 1)
            train(broker.endpoint, range(1, 2), rewind=True)
            replica.follow()
            eventually(lambda: replica.weights().version == 1)
            with pytest.raises(ps.VersionNotHeld, match="the log has: 1 "):
                # A snapshot has it, and a rewind has taken its number away.
                replica.rollback(2)
