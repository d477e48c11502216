"""Persistence "none": the broker's memory serves, and after the broker's loss a replica says what is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from paramstream.brokers import partition
from paramstream.brokers.owned import Owned
from paramstream.eventlog import counting


def eventually(true: Callable[[], bool], timeout: float = 15.0) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def fill(client: ps.Client, producer: str) -> ps.Receipt:
    client.create_topic("cache", persistence="none", exist_ok=True)
    pub = client.publisher("cache", producer=producer)
    pub.publish_weights({"w": np.ones(4, np.float32)}, version=1)
    return pub.put("k", b"v")


def test_a_receipt_says_at_once_that_it_never_becomes_durable(client: ps.Client) -> None:
    receipt = fill(client, "t0")
    with pytest.raises(ps.NotDurable):
        _ = receipt.durable
    receipt.accepted.result(5)


def test_a_late_joiner_is_served_from_the_brokers_memory(client: ps.Client) -> None:
    receipt = fill(client, "t0")
    with client.replica("cache", arrays="numpy") as replica:
        replica.wait(receipt, 5)
        assert replica.get("k") == b"v"
        assert replica.weights().version == 1


@pytest.mark.parametrize("epochs_missed", [0, 2])
def test_after_the_brokers_loss_entries_go_and_the_served_version_stays_stale(
    tmp_path: Path, epochs_missed: int
) -> None:
    log = f"file:{tmp_path / 'log'}"
    endpoint = f"ipc://{tmp_path}/broker.sock"
    with ps.Broker(bind=endpoint, log=log):
        client = ps.connect(endpoint)
        receipt = fill(client, "t0")
        replica = client.replica("cache", arrays="numpy")
        replica.wait(receipt, 5)
    for _ in range(epochs_missed):
        ps.Broker(log=log).close()
    with ps.Broker(bind=endpoint, log=log):
        eventually(lambda: replica.get("k") is None)
        eventually(lambda: replica.status().connected)
        served = replica.status().served["cache"]
        assert (served.version, served.stale) == (1, True)
        assert replica.weights()["w"].tolist() == [1, 1, 1, 1]
        pub = client.publisher("cache", producer="t0")
        replica.wait(pub.put("k", b"again"), 10)
        replica.wait(pub.publish_weights({"w": np.zeros(4, np.float32)}, version=2), 10)
        assert replica.get("k") == b"again"
        served = replica.status().served["cache"]
        assert (served.version, served.stale) == (2, False)
        client.close()


def test_nothing_is_accepted_in_an_epoch_whose_beginning_is_not_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power failure takes the epoch out of the log, and nobody says that what was accepted in it is lost."""
    for module in (partition, counting):
        monkeypatch.setattr(module, "MAX_OFFSET", 8)
    may_sync = threading.Event()
    with ps.Broker(log=f"file:{tmp_path / 'log'}") as broker, ps.connect(broker.endpoint) as client:
        topic = client.create_topic("cache", persistence="none", partitions=1)
        owned: Owned = vars(broker)["_partitions"].owned[topic.id, 0]
        pub, sync = client.publisher("cache", producer="t0"), owned.durable.sync

        def sync_later() -> int:
            may_sync.wait(15)
            return sync()

        monkeypatch.setattr(owned.durable, "sync", sync_later)
        try:
            epoch, receipts = owned.core.epoch, [pub.put("k", b"%d" % n) for n in range(8)]
            receipts[-1].accepted.result(10)
            late = pub.put("k", b"late")
            eventually(lambda: owned.core.epoch > epoch)
            with pytest.raises(ps.ParamstreamTimeout):
                late.accepted.result(0.3)
        finally:
            may_sync.set()
        late.accepted.result(10)
