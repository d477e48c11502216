"""A log is bounded: at its limit publishes are refused and nothing is lost; versions that nobody needs go by themselves."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import paramstream as ps
from paramstream.consistency.vector import PartitionId, VersionVector
from paramstream.eventlog.files import Disk
from paramstream.events.codec import encode_vector
from paramstream.transport.calls import DescribePartitions, ListTopics, PartitionRecord, TopicRecord
from paramstream.transport.messages import Report
from reference.waiting import eventually
from reference.weights import check_weights
from wire.peer import Peer

MIB = 1 << 20
VALUE = bytes(64 << 10)
LIMIT = 4 * MIB


def fill(publisher: ps.Publisher) -> dict[str, bytes]:
    """Put until the log is full: what was accepted."""
    kept: dict[str, bytes] = {}
    for number in range(2 * LIMIT // len(VALUE)):
        key, value = f"key-{number}", number.to_bytes(4, "little") + VALUE
        try:
            publisher.put(key, value).accepted.result()
        except ps.StorageFull as full:
            assert full.retriable and (full.topic, full.partition) == ("model", 0)
            return kept
        kept[key] = value
    raise AssertionError("the log has no limit")


def test_a_full_log_refuses_loses_nothing_and_takes_more_when_its_limit_is_raised(tmp_path: Path) -> None:
    log = f"file:{tmp_path}"
    broker = ps.Broker(log=log, log_limit=LIMIT)
    try:
        with ps.connect(broker.endpoint) as client:
            client.create_topic("model")
            publisher = client.publisher("model", producer="trainer")
            kept = fill(publisher)
            assert len(kept) * len(VALUE) >= LIMIT // 2, "the limit is of what it holds, not of a part of it"
            assert broker.status().log_bytes <= LIMIT
            # What is refused is refused again, weights and small things too where they have no room; reads go on.
            with pytest.raises(ps.StorageFull):
                publisher.put("large", bytes(700 << 10)).accepted.result()
            with pytest.raises(ps.StorageFull):
                publisher.publish_weights({"w": np.zeros(MIB, np.uint8)}, version=1).accepted.result()
            with pytest.raises(ps.StorageFull):
                publisher.flush()
            with client.replica("model") as replica:
                assert replica.get_many(kept) == list(kept.values())
                digest = replica.digest()
                broker.close()
                broker = ps.Broker(bind=broker.endpoint, log=log, log_limit=4 * LIMIT)
                # The same session goes on, without anybody's care.
                kept["after"] = b"value"
                replica.wait(publisher.put("after", b"value"))
                assert replica.get_many(kept) == list(kept.values()) and replica.digest() != digest
                publisher.flush()
            with client.replica("model", start="earliest") as late:
                assert late.get_many(kept) == list(kept.values())
                assert late.get("large") is None
    finally:
        broker.close()


def test_a_full_log_takes_more_when_a_topic_is_deleted() -> None:
    with ps.Broker(log_limit=LIMIT) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        client.create_topic("other")
        publisher, other = (client.publisher(topic, producer=topic) for topic in ("model", "other"))
        fill(publisher)
        with pytest.raises(ps.StorageFull):
            other.put("key", VALUE).accepted.result()
        client.delete_topic("model")
        other.put("key", VALUE).accepted.result()
        with client.replica("other") as replica:
            assert replica.get("key") == VALUE


def version_of(number: int) -> dict[str, npt.NDArray[np.int32]]:
    return {"w": np.full(MIB // 4, number, np.int32)}


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_log_of_weights_stays_bounded_while_a_replica_keeps_up(kind: str, tmp_path: Path) -> None:
    retained, limit, versions = 3, 64 * MIB, 300
    log = "memory:" if kind == "memory" else f"file:{tmp_path}"
    with ps.Broker(log=log, log_limit=limit) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model", retain_versions=retained)
        publisher = client.publisher("model", producer="trainer")
        with client.replica("model", arrays="numpy") as replica:
            for number in range(1, versions + 1):
                publisher.publish_weights(version_of(number), version=number)
                if number > 4:
                    replica.wait_version(number - 4)
                assert broker.status().log_bytes <= limit
            publisher.flush()
            replica.wait_version(versions)
            check_weights(replica.weights(), version_of(versions), versions)
        restorable = [each.version for each in client.versions("model") if each.restorable]
        assert restorable == list(range(versions - retained + 1, versions + 1))
        # It comes down to what is retained, and a little for segments.
        eventually(lambda: broker.status().log_bytes <= limit * 3 // 4)
        with client.replica("model", start="earliest", catch_up="all", arrays="numpy", keep_versions=retained) as late:
            for number in restorable:
                check_weights(late.weights(version=number), version_of(number), number)
        with pytest.raises(ps.VersionNotHeld), ps.restore(broker.endpoint, "model", at=1):
            pass
        with ps.restore(broker.endpoint, "model", at=versions - 1, arrays="numpy") as restored:
            check_weights(restored.weights(), version_of(versions - 1), versions - 1)


def test_a_file_that_cannot_be_removed_is_removed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[Path] = []
    unlink = Disk.unlink

    def refuse(disk: Disk, path: Path) -> None:
        if path.suffix == ".segment" and len(refused) < 3:
            refused.append(path)
            raise OSError(errno.EIO, "told to fail", str(path))
        unlink(disk, path)

    monkeypatch.setattr(Disk, "unlink", refuse)
    limit, versions = 8 * MIB, 30
    with ps.Broker(log=f"file:{tmp_path}", log_limit=limit) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model", retain_versions=2)
        publisher = client.publisher("model", producer="trainer")
        for number in range(1, versions + 1):
            publisher.publish_weights(version_of(number), version=number).durable.result()
        assert len(refused) == 3 and not any(path.exists() for path in refused)
        assert broker.status().log_bytes <= limit
    with ps.Broker(log=f"file:{tmp_path}", log_limit=limit) as broker, ps.connect(broker.endpoint) as client:
        assert [each.version for each in client.versions("model") if each.restorable][-1] == versions


def test_a_lease_holds_the_version_that_a_replica_serves() -> None:
    with ps.Broker(log_limit=32 * MIB) as broker, ps.connect(broker.endpoint) as client, Peer(broker.endpoint) as slow:
        client.create_topic("model", retain_versions=2)
        publisher = client.publisher("model", producer="trainer")
        commits = [
            publisher.publish_weights(version_of(number), version=number).accepted.result()["model", 1]
            for number in (1, 2, 3)
        ]
        slow.hello()
        (topic,) = slow.request(ListTopics(), list[TopicRecord])
        weights: PartitionId = topic.id, 1

        def begins_behind(commit: int) -> bool:
            found: list[PartitionRecord] = slow.request(DescribePartitions(topic.id), list[PartitionRecord])
            return found[1].start >= commit

        slow.say(_report(weights, 3, commits[2]))
        for number in range(4, 24):
            commits.append(publisher.publish_weights(version_of(number), version=number).accepted.result()["model", 1])
        # Over half of the limit, so the log is trimmed; the version that is served stays, and so does all behind it.
        eventually(lambda: begins_behind(commits[0]))
        assert not begins_behind(commits[2])
        slow.say(_report(weights, 20, commits[19]))
        eventually(lambda: begins_behind(commits[10]))
        assert not begins_behind(commits[19])


def _report(weights: PartitionId, version: int, commit: int) -> Report:
    served = ((weights[0], version, commit, "00" * 16),)
    return Report(
        "slow", (weights[0],), served, encode_vector(VersionVector({weights: commit})), 0, ((*weights, commit),)
    )
