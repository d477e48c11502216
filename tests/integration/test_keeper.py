"""A broker's keeper: rows and KV leave the log behind its snapshots, and late replicas get them all the same."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from paramstream.consumers.keeping import Keeping
from processes.child import Child

WAIT_S = 30.0
LIMIT = 8 << 20
VALUE = bytes(range(250)) * 16


def until(reached: Callable[[], bool], timeout: float = WAIT_S) -> None:
    deadline = time.monotonic() + timeout
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ps.Broker]:
    with ps.Broker(log=f"file:{tmp_path}/log", log_limit=LIMIT, keeper=tmp_path / "keeper") as running:
        yield running


def put(pub: ps.Publisher, nbytes: int, keys: int = 200) -> None:
    """That much of KV, however small the log is: what is refused for want of room is put again a little later."""
    deadline = time.monotonic() + WAIT_S
    done = 0
    while done * len(VALUE) < nbytes:
        receipts = [pub.put(f"k{(done + number) % keys}", VALUE) for number in range(50)]
        try:
            for receipt in receipts:
                receipt.accepted.result(WAIT_S)
            done += len(receipts)
        except ps.StorageFull:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_state_much_larger_than_the_log_goes_on_and_a_late_replica_has_all_of_it(
    broker: ps.Broker, client: ps.Client, tmp_path: Path
) -> None:
    client.create_topic("kv", partitions=2)
    client.create_table("kv", "users", dim=2, optimizer=ps.Adagrad(0.5))
    pub = client.publisher("kv", producer="p")
    pub.put("first", b"1")
    pub.publish_gradients("users", range(50), np.ones((50, 2), np.float32))
    pub.delete_rows("users", [7])
    with client.replica("kv") as reference:
        put(pub, LIMIT)
        last = pub.put("last", b"2")
        last.durable.result(WAIT_S)
        reference.wait(last, WAIT_S)
        assert broker.status().log_bytes <= LIMIT and broker.status().keeper == ""
        with pytest.raises(ps.LogTruncated, match="left the log"):
            client.replica("kv", start="earliest")
        with client.replica("kv") as late:
            assert late.digest() == reference.digest() and late.get("first") == b"1"
            assert late.table("users").rows == 49
            vector = reference.vector
            assert late.vector == vector
        # A keeper serves nobody, and is not counted.
        with pytest.raises(ps.ParamstreamTimeout):
            client.wait_replicas("kv", 1, 1, 0.2)


def test_what_a_late_replica_is_given_of_a_damaged_snapshot_is_the_one_before(
    broker: ps.Broker, client: ps.Client, tmp_path: Path
) -> None:
    client.create_topic("kv")
    pub = client.publisher("kv", producer="p")
    put(pub, LIMIT)
    deadline = time.monotonic() + WAIT_S
    while len(list((tmp_path / "keeper").glob("kv-*/snapshot-*/manifest.json"))) < 2:
        put(pub, LIMIT // 8)
        assert time.monotonic() < deadline
    put(pub, LIMIT)
    keeper = broker._keeper  # pyright: ignore[reportPrivateUsage]
    # It makes no newer one meanwhile.
    assert keeper is not None and keeper.close(WAIT_S)
    reference = client.replica("kv")
    with pytest.raises(ps.LogTruncated):
        client.replica("kv", start="earliest")
    (folder,) = (tmp_path / "keeper").glob("kv-*")
    newest = folder / (folder / "latest").read_text().strip() / "state-0-0000.safetensors"
    data = newest.read_bytes()
    newest.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with client.replica("kv") as late:
        assert late.digest() == reference.digest()


def test_a_keeper_that_dies_is_started_again_and_ends_with_its_broker(broker: ps.Broker, client: ps.Client) -> None:
    keeper = broker._keeper  # pyright: ignore[reportPrivateUsage]
    assert keeper is not None
    until(lambda: keeper.pid is not None)
    first = keeper.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: "exit code -9" in broker.status().keeper)
    until(lambda: keeper.pid not in (None, first))
    second = keeper.pid
    assert second is not None
    until(lambda: broker.status().keeper == "")
    broker.close()
    until(lambda: not _lives(second), 5.0)


def test_a_keeper_does_not_outlive_a_broker_that_was_killed(tmp_path: Path) -> None:
    with Child("keeping_broker", tmp_path / "log", tmp_path / "keeper", errors=tmp_path / "errors") as child:
        pid = child.read(WAIT_S)["keeper"]
        assert _lives(pid)
        child.kill()
    until(lambda: not _lives(pid), 5.0)


def test_a_disk_that_takes_nothing_is_tried_again_more_and_more_seldom_K10(
    broker: ps.Broker,
    client: ps.Client,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.create_topic("kv")
    pub = client.publisher("kv", producer="p")
    pub.put("k", b"1").durable.result(WAIT_S)
    tries: list[float] = []
    full = True
    snapshot = ps.Replica.snapshot

    def refused(replica: ps.Replica, *arguments: object, **options: object) -> object:
        tries.append(now)
        if full:
            raise ps.StorageFull("no space is left")
        return snapshot(replica, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(ps.Replica, "snapshot", refused)
    with Keeping(broker.endpoint, tmp_path / "other", "0" * 32, interval_s=0.0) as keeping:
        now = 0.0
        while now < 60.0:
            keeping.step(now)
            now += 0.5
        assert 4 <= len(tries) <= 8 and all(later - before >= 1.0 for before, later in pairwise(tries))
        assert "StorageFull" in keeping.error and len(caplog.records) < 20
        full, now = False, 200.0
        keeping.step(now)
        assert keeping.error == "" and list((tmp_path / "other").glob("kv-*/latest"))


def test_the_status_of_a_broker_shows_what_keeps_its_keeper_from_its_work_K10(
    broker: ps.Broker, client: ps.Client, tmp_path: Path
) -> None:
    client.create_topic("kv")
    (topic,) = client.topics()
    # Nothing can be written where a file stands in the place of a folder.
    blocked = tmp_path / "keeper" / f"kv-{topic.id:016x}"
    blocked.touch()
    pub = client.publisher("kv", producer="p")
    receipts = [pub.put(f"k{number % 50}", VALUE) for number in range(400)]
    receipts[-1].durable.result(WAIT_S)
    until(lambda: blocked.name in broker.status().keeper)
    blocked.unlink()
    until(lambda: broker.status().keeper == "")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_topic_that_does_not_last_leaves_memory_behind_snapshots_of_its_epoch(
    broker: ps.Broker, client: ps.Client, tmp_path: Path
) -> None:
    client.create_topic("kv", persistence="none")
    pub = client.publisher("kv", producer="p")
    pub.put("first", b"1").accepted.result(WAIT_S)
    put(pub, LIMIT)
    with client.replica("kv") as late:
        assert late.get("first") == b"1"
        late.snapshot(tmp_path / "own")
        with client.replica("kv", start=f"snapshot:{tmp_path}/own") as again:
            assert again.digest() == late.digest()
    with pytest.raises(ps.NotDurable):
        client.replica("kv", start="resume", name="r", snapshot_dir=tmp_path / "own")
    with pytest.raises(ps.NotDurable):
        ps.restore(f"snapshot:{tmp_path}/own", "kv")
