"""Fault case K05, of the log: a disk that was full costs what was refused meanwhile, and nothing once there is room again."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from paramstream.brokers import owning
from paramstream.eventlog.files import Disk
from reference.waiting import eventually
from reference.weights import check_weights

FREED_S = 10.0
WAIT_S = 20.0
VALUE = bytes(64 << 10)


class Room:
    """How much the disk still takes; files keep what they have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nbytes: int | None = None
        write, create = Disk.write, Disk.create

        def write_within(disk: Disk, handle: int, data: memoryview, offset: int) -> None:
            grown = max(0, offset + len(data) - os.fstat(handle).st_size)
            missing = 0 if self.nbytes is None else max(0, grown - self.nbytes)
            if self.nbytes is not None:
                self.nbytes -= grown - missing
            write(disk, handle, data[: len(data) - missing], offset)
            if missing:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def create_within(disk: Disk, path: Path) -> int:
            if self.nbytes == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return create(disk, path)

        monkeypatch.setattr(Disk, "write", write_within)
        monkeypatch.setattr(Disk, "create", create_within)

    @contextmanager
    def only(self, nbytes: int) -> Generator[None]:
        self.nbytes = nbytes
        try:
            yield
        finally:
            self.nbytes = None


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    monkeypatch.setattr(owning, "CLAIM_AGAIN_S", (0.05, 0.1))
    return Room(monkeypatch)


def weights(version: int) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float32]]]:
    return {"w": np.full(1000, version, np.float32)}


def put_until_full(publisher: ps.Publisher, kept: dict[str, bytes], folder: Path) -> None:
    """Every partition meets the full disk; what is durable goes into `kept`."""
    full = set[str]()
    for number in range(1000):
        key, value = f"key-{number}", number.to_bytes(4, "little") + VALUE
        try:
            publisher.put(key, value).durable.result(WAIT_S)
            kept[key] = value
        except ps.StorageFull as error:
            assert error.retriable and error.topic == "model" and str(folder) in str(error)
            full.add(str(error))
        except ps.EventLost:
            pass
        if len(full) == 2:
            return
    raise AssertionError("the disk is never full")


@pytest.mark.parametrize("persistence", ["write_through", "write_back"])
def test_a_log_whose_disk_was_full_goes_on_by_itself_once_there_is_room_K05(
    persistence: str, room: Room, tmp_path: Path
) -> None:
    log = f"file:{tmp_path}/log"
    kept: dict[str, bytes] = {}
    with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model", partitions=2, persistence=persistence)
        publisher = client.publisher("model", producer="trainer")
        publisher.publish_weights(weights(1), version=1).durable.result(WAIT_S)
        with client.replica("model", name="reader", arrays="numpy") as replica:
            with room.only(1 << 20):
                put_until_full(publisher, kept, tmp_path / "log")
                # All that is durable is read on, and whoever is new hears what is wrong.
                assert replica.get_many(kept) == list(kept.values())
                check_weights(replica.weights(), weights(1), 1)
                with pytest.raises(ps.StorageFull):
                    client.create_topic("other")
                assert broker.status().stopped
                began = time.monotonic()
                while time.monotonic() - began < 0.5:  # Some tries in vain, which change nothing.
                    with pytest.raises(ps.StorageFull):
                        publisher.put("key-0", b"in vain").accepted.result(WAIT_S)
            freed = time.monotonic()
            after = {f"after-{number}": b"value" for number in range(20)}
            for key, value in after.items():
                replica.wait(_durable(partial(publisher.put, key, value), freed + FREED_S), WAIT_S)
            replica.wait(_durable(lambda: publisher.publish_weights(weights(2), version=2), freed + FREED_S), WAIT_S)
            eventually(lambda: not broker.status().stopped, FREED_S)
            kept |= after
            assert replica.get_many(kept) == list(kept.values())
            client.create_topic("other")
            with ps.connect(broker.endpoint) as anew, anew.replica("model", start="earliest", arrays="numpy") as late:
                assert late.digest() == replica.digest()
                check_weights(late.weights(), weights(2), 2)
    assert not list((tmp_path / "log").glob("room*"))
    with ps.restore(log, "model", arrays="numpy") as restored:
        assert restored.get_many(kept) == list(kept.values())


def _durable(publish: Callable[[], ps.Receipt], deadline: float) -> ps.Receipt:
    """As a user who is told that it can be tried again, or, of what was on its way when the log went on, that it is lost."""
    while True:
        try:
            receipt = publish()
            receipt.durable.result(WAIT_S)
            return receipt
        except (ps.StorageFull, ps.EventLost):
            assert time.monotonic() < deadline, "the disk has room, and the log does not go on"
            time.sleep(0.05)
