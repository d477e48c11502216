"""Fault cases O03 and O04, end to end: what cannot be decoded stops its partition, is named, and is neither skipped nor read for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paramstream as ps
from paramstream.brokers import fetching
from paramstream.brokers.partitions import Partitions
from paramstream.events.digest import partition_of, tensor_digest, version_digest
from paramstream.events.kinds import Chunk, Commit, Part, PartRef, Segment, TensorSpec
from paramstream.transport.messages import Ack, Fetch
from reference.waiting import eventually
from reference.weights import check_weights
from wire.peer import Peer
from wire.spoil import Spoil, of_format, spoil_appended, undecodable

PARTITIONS = 2
POISON = b"this one is spoilt"
KEYS = [[key for key in map(str, range(60)) if partition_of(key.encode(), PARTITIONS) == n][:12] for n in range(PARTITIONS)]  # fmt: skip
"""Twelve keys of each partition."""


@pytest.fixture
def publisher(client: ps.Client) -> ps.Publisher:
    client.create_topic("model", partitions=PARTITIONS)
    return client.publisher("model", producer="trainer")


def publish_ten(publisher: ps.Publisher) -> list[int]:
    """Ten events of partition 0, the fifth of which is the poison: their positions."""
    receipts = [
        publisher.put(key, POISON if number == 5 else b"value").accepted.result()
        for number, key in enumerate(KEYS[0][:10], start=1)
    ]
    return [receipt["model", 0] for receipt in receipts]


SPOILS = [
    pytest.param(undecodable, r"a put event cannot be decoded", id="undecodable-O04"),
    pytest.param(of_format(2), r"format 2, this reader knows format 1", id="another format-O03"),
]


@pytest.mark.parametrize(("spoil", "says"), SPOILS)
def test_an_event_that_cannot_be_decoded_stops_its_partition_and_no_other_O04(
    client: ps.Client, publisher: ps.Publisher, monkeypatch: pytest.MonkeyPatch, spoil: Spoil, says: str
) -> None:
    fetches: list[Fetch] = []
    read = fetching.read_events

    def counted(partitions: Partitions, fetch: Fetch) -> Any:
        fetches.append(fetch)
        return read(partitions, fetch)

    monkeypatch.setattr(fetching, "read_events", counted)
    spoil_appended(monkeypatch, POISON, spoil)
    with client.replica("model", name="reader", arrays="numpy") as replica:
        positions = publish_ten(publisher)
        with pytest.raises(ps.CorruptLog, match=says) as stopped:
            replica.wait(ps.VersionVector({("model", 0): positions[-1]}), timeout=10.0)
        assert (stopped.value.topic, stopped.value.partition) == ("model", 0)
        # The four before it are applied, it and what stands behind it are not, and nothing moved past it.
        assert replica.get_many(KEYS[0][:10]) == [b"value"] * 4 + [None] * 6
        status = replica.status()
        assert status.applied["model", 0] == positions[3]
        assert list(status.stopped) == [("model", 0)] and isinstance(status.stopped["model", 0], ps.CorruptLog)
        assert status.stale and "CorruptLog" in status.last_error and status.lag_events >= 1
        # All other partitions go on.
        other = client.publisher("model", producer="other")
        for key in KEYS[1]:
            replica.wait(other.put(key, b"value"))
        assert replica.get_many(KEYS[1]) == [b"value"] * 12
        other.publish_weights({"w": np.ones(3)}, version=1).accepted.result()
        replica.wait_version(1)
        check_weights(replica.weights(), {"w": np.ones(3)}, 1)
        (seen,) = eventually(lambda: [each for each in client.replicas("model") if each.last_error])
        assert "CorruptLog" in seen.last_error
        # It was not read for ever.
        assert len([fetch for fetch in fetches if fetch.partition == 0]) <= 4


@pytest.mark.parametrize(("spoil", "says"), SPOILS)
def test_whoever_comes_late_is_told_of_an_event_that_cannot_be_decoded_O04(
    client: ps.Client, publisher: ps.Publisher, monkeypatch: pytest.MonkeyPatch, spoil: Spoil, says: str
) -> None:
    spoil_appended(monkeypatch, POISON, spoil)
    positions = publish_ten(publisher)
    publisher.put(KEYS[1][0], b"value").accepted.result()
    with pytest.raises(ps.CorruptLog, match=says) as stopped:
        client.replica("model", timeout=10.0)
    assert (stopped.value.topic, stopped.value.partition) == ("model", 0)
    with client.replica("model", partitions=[1]) as other:
        assert other.get(KEYS[1][0]) == b"value"
    with client.subscribe("model", start="earliest", ordering="pram") as events:
        read: list[ps.Event] = []
        with pytest.raises(ps.CorruptLog, match=says):
            while True:
                read.append(events.next(timeout=5.0))
        assert [event.position for event in read if event.partition == 0] == positions[:4]


def test_weights_that_are_not_what_their_part_says_are_never_shown_O04(
    broker: ps.Broker, client: ps.Client, publisher: ps.Publisher
) -> None:
    """A writer that keeps none of the library's rules: the frames are whole, and the values are not those of the digest."""
    good, bad = np.ones(4, np.float32), np.zeros(4, np.float32)
    publisher.publish_weights({"w": good}, version=1).accepted.result()
    with client.replica("model", arrays="numpy") as replica, Peer(broker.endpoint) as peer:
        peer.hello()
        writer = peer.join("rogue")
        weights = max(writer.epochs)
        chunk = writer.send(weights, Chunk(2, (Segment("w", 0, 16),)), [bad.tobytes()])
        spec = TensorSpec("w", "float32", (4,), tensor_digest(good.tobytes()), 16, chunk, chunk)
        part = writer.send(weights, Part(2, (spec,)))
        writer.send(weights, Commit(2, (PartRef("rogue", writer.incarnation, part),), version_digest([spec])))
        peer.hear(Ack)
        with pytest.raises(ps.CorruptLog, match=r"'w'.*digest") as stopped:
            replica.wait_version(2, timeout=10.0)
        assert (stopped.value.topic, stopped.value.partition, stopped.value.version) == ("model", PARTITIONS, 2)
        check_weights(replica.weights(), {"w": good}, 1)
        # What is waited for in the stopped partition is applied: its error ends no wait for another one.
        written = publisher.put(KEYS[0][0], b"value").accepted.result()
        with pytest.raises(ps.ParamstreamTimeout):
            replica.wait(written.merge(ps.VersionVector[str]({("model", 0): written["model", 0] + 9})), timeout=0.2)
        replica.wait(written)
        assert replica.get(KEYS[0][0]) == b"value"


def test_a_broker_that_finds_it_in_its_own_log_names_it_O04(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = f"file:{tmp_path}"
    with monkeypatch.context() as spoiling, ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
        spoil_appended(spoiling, POISON, undecodable)
        client.create_topic("model", partitions=PARTITIONS)
        publisher = client.publisher("model", producer="trainer")
        positions = publish_ten(publisher)
        publisher.put(KEYS[1][0], b"value").durable.result()
    for _ in range(2):
        # Nothing is written behind what cannot be read: the next start finds it as it was.
        with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
            [stopped] = broker.status().stopped.values()
            assert "cannot be decoded" in stopped and str(positions[4]) in stopped
            with pytest.raises(ps.CorruptLog, match="cannot be decoded") as found:
                client.replica("model")
            assert (found.value.topic, found.value.partition, found.value.position) == ("model", 0, positions[4])
            client.create_topic("other", exist_ok=True)
            client.publisher("other", producer="trainer").put("k", b"v").durable.result(10)
            # A producer that comes back hears of the damage too, and goes on in the partitions that are whole.
            publisher = client.publisher("model", producer="trainer")
            with pytest.raises(ps.CorruptLog, match="cannot be decoded") as told:
                publisher.put(KEYS[0][0], b"value")
            assert (told.value.topic, told.value.partition) == ("model", 0)
            publisher.put(KEYS[1][0], b"value").durable.result(10)
