"""Fault case H06: wall clocks never decide an order."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import paramstream as ps

HOUR_S = 3600.0


@contextmanager
def clock_off_by(seconds: float) -> Generator[None]:
    """Whoever asks for the time of day in here gets another one."""
    real_s, real_ns = time.time, time.time_ns
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: real_s() + seconds)
        patch.setattr(time, "time_ns", lambda: real_ns() + int(seconds * 1e9))
        yield


def write(endpoint: str, name: str, value: bytes, off_s: float) -> None:
    """A writer that has read what is there, on a machine with a wrong clock."""
    with clock_off_by(off_s), ps.connect(endpoint) as client, client.replica("model", arrays="numpy") as seen:
        publisher = client.publisher("model", producer=name, observes=seen)
        publisher.put("k", value)
        publisher.publish_weights({"w": np.frombuffer(value * 4, np.uint8)}, version=int(value))
        publisher.flush(10)


def test_the_last_write_wins_whatever_the_writers_clocks_say_H06(tmp_path: Path) -> None:
    """A's clock is an hour ahead; the broker restarts with one an hour behind; C's is an hour behind."""
    log = f"file:{tmp_path / 'log'}"
    address = f"ipc://{tmp_path}/b"
    with ps.Broker(address, log=log) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        write(address, "A", b"1", HOUR_S)
        write(address, "B", b"2", 0.0)
        before = [event.position for event in client.versions("model")]
    with clock_off_by(-HOUR_S):
        broker = ps.Broker(address, log=log)
    with broker, ps.connect(address) as client, client.replica("model", arrays="numpy") as replica:
        write(address, "C", b"3", -HOUR_S)
        last = client.publisher("model", producer="end").put("end", b"")
        replica.wait(last)
        replica.wait_version(3)
        with client.replica("model", start="earliest", arrays="numpy") as late:
            for each in (replica, late):
                assert each.get("k") == b"3"
                assert (each.weights().version, bytes(each.weights()["w"])) == (3, b"3333")
            assert replica.digest() == late.digest()
        versions = client.versions("model")
        assert [found.position for found in versions][:2] == before
        assert [found.version for found in versions] == [1, 2, 3]
        assert [found.time for found in versions] == sorted(found.time for found in versions)
    with ps.restore(log, "model", arrays="numpy") as restored:
        assert (restored.get("k"), restored.weights().version) == (b"3", 3)
