"""Closing a broker has a deadline, whatever its disk does."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import paramstream as ps
from paramstream.eventlog.partition import LocalPartition
from processes.world import free_port


def test_a_close_beside_a_disk_that_hangs_says_so_in_time_and_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, real = threading.Event(), LocalPartition.sync

    def sync(partition: LocalPartition) -> int:
        assert hangs.wait(30.0)
        return real(partition)

    broker = ps.Broker(log=f"file:{tmp_path}/log")
    try:
        with ps.connect(broker.endpoint) as client:
            client.create_topic("t")
            publisher = client.publisher("t", producer="trainer")
            monkeypatch.setattr(LocalPartition, "sync", sync)
            publisher.put("k", b"v").accepted.result(5)
        started = time.monotonic()
        with pytest.raises(ps.ParamstreamTimeout, match="did not stop"):
            broker.close(timeout=0.3)
        assert time.monotonic() - started < 5.0
    finally:
        hangs.set()
        broker.close()


def test_an_address_is_free_again_at_once_when_a_broker_could_not_start(tmp_path: Path) -> None:
    endpoint, log = f"tcp://127.0.0.1:{free_port()}", f"file:{tmp_path}"
    with ps.Broker(log=log):
        for _ in range(20):
            with pytest.raises(ps.BindFailed, match="is held by"):
                ps.Broker(endpoint, log)
