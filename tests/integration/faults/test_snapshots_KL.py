"""Snapshots and what is begun from them: killed while they are made, older than a delete, opened elsewhere."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest

import paramstream as ps
from paramstream.consumers.snapshots.reading import open_snapshot
from paramstream.events.manifest import decode_manifest, encode_manifest
from processes.child import Child

WAIT_S = 20.0
LIMIT = 4 << 20
"""Of a log from which state leaves behind its keeper's snapshots."""


@pytest.fixture
def pub(client: ps.Client) -> ps.Publisher:
    client.create_topic("model", partitions=2)
    return client.publisher("model", producer="trainer")


def test_a_replica_killed_while_it_applies_and_keeps_resumes_where_its_state_stood_I01(
    broker: ps.Broker, client: ps.Client, pub: ps.Publisher, tmp_path: Path
) -> None:
    folder, stop, rounds = tmp_path / "kept", threading.Event(), 2
    chance = random.Random(1)

    def publish() -> None:
        number = 0
        while not stop.is_set():
            for _ in range(20):
                number += 1
                pub.put(f"k{number % 300}", b"%d" % number)
            pub.delete(f"k{number % 290}")
            pub.publish_weights({"w": np.full(5000, number, np.float32)}, version=number)
            time.sleep(0.005)

    publishing = threading.Thread(target=publish)
    publishing.start()
    try:
        for number in range(rounds):
            with Child("resumed_replica", broker.endpoint, "model", folder, errors=tmp_path / "errors") as child:
                assert child.read(WAIT_S) == {"began": number > 0}
                for _ in range(chance.randint(2, 4)):
                    assert "kept" in child.read(WAIT_S)
                time.sleep(chance.random() * 0.02)
                child.kill()
            assert open_snapshot(folder, "model").damaged == ()
    finally:
        stop.set()
        publishing.join()
    pub.flush(WAIT_S)
    reference = client.replica("model")
    with Child("resumed_replica", broker.endpoint, "model", folder, errors=tmp_path / "errors") as child:
        assert child.read(WAIT_S) == {"began": True}
        child.send("digest", vector=str(reference.vector))
        line = child.read(WAIT_S)
        while "digest" not in line:
            line = child.read(WAIT_S)
        assert line["digest"] == reference.digest()
        child.end(WAIT_S)


def test_a_key_deleted_after_a_snapshot_stays_deleted_L09(client: ps.Client, pub: ps.Publisher, tmp_path: Path) -> None:
    pub.put("k", b"1")
    pub.put("short", b"1", ttl=0.05)
    pub.put("kept", b"1").durable.result(WAIT_S)
    with client.replica("model") as replica:
        replica.snapshot(tmp_path)
    pub.delete("k").durable.result(WAIT_S)
    time.sleep(0.06)
    pub.put("kept", b"2").durable.result(WAIT_S)
    with client.replica("model", start=f"snapshot:{tmp_path}") as again, client.replica("model") as reference:
        assert (again.get("k"), again.get("kept"), again.get("short")) == (None, b"2", None)
        assert again.digest() == reference.digest()


def test_a_snapshot_older_than_a_delete_that_has_left_the_log_is_refused_and_the_key_stays_deleted_L09(
    tmp_path: Path,
) -> None:
    log, keeper = f"file:{tmp_path}/log", tmp_path / "keeper"
    with ps.Broker(log=log, log_limit=LIMIT, keeper=keeper) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        pub = client.publisher("model", producer="trainer")
        pub.put("k", b"1").durable.result(WAIT_S)
        with client.replica("model") as replica:
            replica.snapshot(tmp_path / "old")
        deleted = pub.delete("k").durable.result(WAIT_S)
        deadline = time.monotonic() + 2 * WAIT_S
        number = 0
        while not _has_left_the_log(client, deleted):
            assert time.monotonic() < deadline
            number += 1
            # Where the log is full, its keeper makes room.
            with suppress(ps.StorageFull):
                pub.put(f"other-{number % 100}", bytes(LIMIT // 256)).accepted.result(WAIT_S)
        with pytest.raises(ps.LogTruncated) as caught:
            client.replica("model", start=f"snapshot:{tmp_path}/old")
        assert (caught.value.topic, caught.value.partition) == ("model", 0)
        with client.replica("model") as late:
            assert late.get("k") is None
    with ps.restore(log, "model", snapshots=keeper) as restored:
        assert restored.get("k") is None


def _has_left_the_log(client: ps.Client, vector: ps.VersionVector[str]) -> bool:
    try:
        client.subscribe("model", start=vector).close()
    except ps.LogTruncated:
        return True
    return False


def test_a_delete_older_than_the_put_that_a_snapshot_holds_removes_nothing_H12(
    client: ps.Client, pub: ps.Publisher, tmp_path: Path
) -> None:
    pub.put("k", b"1")
    floor = pub.put("other", b"1").durable.result(WAIT_S)
    pub.delete("k")
    pub.put("k", b"2").durable.result(WAIT_S)
    with client.replica("model") as replica:
        (made,) = replica.snapshot(tmp_path)
        reference = replica.digest()
    # As if the copy had begun before the delete, and met the key after the second put: the delete is replayed over it.
    snapshot = open_snapshot(tmp_path, "model")
    _begin_before(snapshot.path, {number: at for (_, number), at in floor.items()})
    with client.replica("model", start=f"snapshot:{tmp_path}") as again:
        assert again.get("k") == b"2" and again.digest() == reference
    assert made.path == snapshot.path


def _begin_before(path: Path, floors: dict[int, int]) -> None:
    """Rewrite the manifest of a snapshot with earlier floors."""
    place = path / "manifest.json"
    manifest, _ = decode_manifest(place.read_bytes(), str(place))
    state = tuple(msgspec.structs.replace(each, floor=floors.get(each.number, each.floor)) for each in manifest.state)
    place.write_bytes(encode_manifest(msgspec.structs.replace(manifest, state=state))[0])


def test_a_snapshot_is_listed_and_opened_by_a_process_without_any_device_L08(
    client: ps.Client, pub: ps.Publisher, tmp_path: Path
) -> None:
    pub.publish_weights({"a": np.arange(8, dtype=np.float32), "b": np.ones((2, 2), np.float16)}, version=4)
    pub.put("k", b"v").durable.result(WAIT_S)
    with client.replica("model") as replica:
        replica.snapshot(tmp_path)
        digest = replica.weights().digest
    listing = (
        "import sys; from pathlib import Path\n"
        "from paramstream.consumers.snapshots.reading import open_snapshot\n"
        "from paramstream.tiers.store import TieredStore\n"
        "s = open_snapshot(Path(sys.argv[1]), 'model')\n"
        "print([t.name for t in s.manifest.weights.sealed.tensors], 'torch' in sys.modules, 'cupy' in sys.modules)\n"
        "store = TieredStore(dram='1MiB'); sealed = s.sealed(store); print(sealed.digest); sealed.dense.release(); store.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", listing, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split("\n")[:2] == ["['a', 'b'] False False", digest]
