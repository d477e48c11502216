"""Fault cases K03 and K07 of the ssd tier: what leaves a replica is right wherever it lay, and what SSD damages comes from the log again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import paramstream as ps
from fakes.changelogs import FakeChangelogs
from paramstream.consumers.changelog.seeding import seed_of
from paramstream.transport.calls import TopicRecord
from reference.waiting import eventually
from reference.weights import check_weights

WAIT_S = 20.0
KEYS = 150
FLOATS = 30_000


def weights(version: int) -> dict[str, npt.NDArray[np.float32]]:
    return {"w": np.full(FLOATS, version, np.float32), "buffer": np.arange(100, dtype=np.float32)}


def value_of(number: int) -> bytes:
    return b"%08d" % number * 500


def damage(folder: Path) -> None:
    """Another byte in the middle of each file."""
    for path in folder.glob("*.tier"):
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 4)
            byte = file.read(1)[0]
            file.seek(path.stat().st_size // 4)
            file.write(bytes([byte ^ 1]))


@pytest.fixture
def publisher(client: ps.Client) -> ps.Publisher:
    client.create_topic("model")
    return client.publisher("model", producer="trainer")


def test_a_version_that_ssd_damaged_is_fetched_from_the_log_again_K03(
    client: ps.Client, publisher: ps.Publisher, tmp_path: Path
) -> None:
    for version in (1, 2):
        publisher.publish_weights(weights(version), version=version)
    publisher.flush(WAIT_S)
    with (
        ps.TieredStore(dram="4MiB", ssd=f"{tmp_path}:4MiB") as store,
        client.replica("model", store=store, arrays="numpy") as replica,
    ):
        digest = replica.weights().digest
        replica.demote()
        damage(tmp_path)
        check_weights(replica.weights(), weights(2), 2)
        assert replica.weights().digest == digest
        assert str(tmp_path) in replica.status().last_error
        # What is in no log any more stays a gap with a name; what is served goes on.
        replica.demote()
        damage(tmp_path)
        client.delete_topic("model")
        with pytest.raises(ps.CorruptTier, match=r"version 2") as caught:
            replica.promote(timeout=2.0)
        assert str(tmp_path) in str(caught.value)


def test_a_damaged_version_is_not_mended_with_another_one_of_its_number_K03(
    client: ps.Client, publisher: ps.Publisher, tmp_path: Path
) -> None:
    publisher.publish_weights(weights(1), version=1).durable.result(WAIT_S)
    with (
        ps.TieredStore(dram="4MiB", ssd=f"{tmp_path}:4MiB") as store,
        client.replica("model", store=store, arrays="numpy") as replica,
    ):
        replica.rollback(1)
        replica.wait(publisher.publish_weights(weights(9), version=1, rewind=True), WAIT_S)
        check_weights(replica.weights(), weights(1), 1)
        replica.demote()
        damage(tmp_path)
        with pytest.raises(ps.CorruptTier, match="version 1"):
            replica.weights()
        # The one that has the number now is damaged too, and the log has it.
        replica.follow()
        check_weights(replica.weights(), weights(9), 1)


def test_a_value_that_ssd_damaged_is_fetched_from_the_log_again_K03(
    client: ps.Client, publisher: ps.Publisher, tmp_path: Path
) -> None:
    with (
        ps.TieredStore(dram="512KiB", ssd=f"{tmp_path}:4MiB") as store,
        client.replica("model", store=store, arrays="numpy") as replica,
    ):
        items = [(b"k%d" % n, value_of(n)) for n in range(KEYS)]
        replica.wait(publisher.put_many([*items, (b"k5", b"twice in one event" * 300)]), WAIT_S)
        digest = replica.digest()
        damage(tmp_path)
        with pytest.raises(ps.CorruptTier, match="ssd"):
            replica.digest()
        assert [replica.get(key) for key, _ in items] == [
            b"twice in one event" * 300 if key == b"k5" else value for key, value in items
        ]
        assert replica.digest() == digest
        assert "ssd" in replica.status().last_error


def test_what_leaves_a_replica_is_whole_although_most_of_it_lies_on_ssd_K07(
    client: ps.Client, publisher: ps.Publisher, tmp_path: Path
) -> None:
    folder, kept = tmp_path / "tier", tmp_path / "kept"
    changelogs = FakeChangelogs()
    with (
        ps.TieredStore(dram="512KiB", ssd=f"{folder}:4MiB") as store,
        client.replica("model", name="r", store=store, snapshot_dir=kept, visibility="durable", arrays="numpy") as rep,
        client.replica("model", visibility="durable") as large,
    ):
        writing = rep.write_back(changelogs)
        publisher.publish_weights(weights(1), version=1)
        publisher.put_many([(b"k%d" % n, value_of(n)) for n in range(KEYS)])
        publisher.put("k7", value_of(1007))
        publisher.delete("k8")
        publisher.flush(WAIT_S)
        expected = {b"k%d" % n: value_of(n) for n in range(KEYS) if n != 8} | {b"k7": value_of(1007)}
        for each in (rep, large):
            each.wait(client.publisher("model", producer="end").put("end", b""), WAIT_S)
        expected[b"end"] = b""
        (_, ssd) = rep.status().tiers
        assert ssd.demoted > KEYS // 2 and ssd.held > KEYS // 2 * 4000
        assert rep.digest() == large.digest()
        eventually(lambda: [tier.tier for tier in client.replicas("model")[0].tiers][:1] == ["dram"])
        rep.snapshot()
        writing.close(WAIT_S)
        (found,) = [topic for topic in client.topics() if topic.name == "model"]
        record = TopicRecord(found.name, found.id, found.partitions, found.persistence, found.retain_versions)
        (state,) = seed_of(changelogs, record, [0]).state
        assert {key: entry.value for key, entry in state.entries()} == expected
    assert list(folder.iterdir()) == []
    with (
        ps.TieredStore(dram="512KiB", ssd=f"{folder}:4MiB") as store,
        ps.restore(f"snapshot:{kept}", "model", arrays="numpy", store=store) as restored,
    ):
        check_weights(restored.weights(), weights(1), 1)
        assert {key: restored.get(key) for key in expected} == expected
