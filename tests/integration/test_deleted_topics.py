"""A topic that is deleted, or made again under its name, leaves nobody waiting and holds up nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

import paramstream as ps

ROUNDS = 10
W = {"w": np.zeros(3, np.float32)}


def make_again(client: ps.Client, partitions: int = 1) -> ps.Publisher:
    client.delete_topic("model")
    client.create_topic("model", partitions=partitions)
    return client.publisher("model", producer="trainer")


def test_what_was_not_durable_when_its_topic_was_deleted_holds_up_no_flush(client: ps.Client) -> None:
    client.create_topic("kept")
    kept = client.publisher("kept", producer="trainer")
    for version in range(ROUNDS):
        client.create_topic("model")
        pub = client.publisher("model", producer="trainer")
        receipts = [pub.put("k", b"v"), pub.publish_weights(W, version=version)]
        client.delete_topic("model")
        for receipt in receipts:
            error = receipt.durable.exception(5.0)
            assert error is None or isinstance(error, ps.UnknownTopic)
    standing = kept.put("k", b"v")
    try:
        kept.flush(5.0)
    except ps.UnknownTopic as told:
        assert told.topic == "model" and told.remedy
        kept.flush(5.0)
    assert standing.durable.result(0)


def test_a_deleted_topic_is_named_by_the_next_publish_at_once(client: ps.Client) -> None:
    client.create_topic("model")
    with client.publisher("model", producer="trainer") as pub:
        pub.put("k", b"v").durable.result(5.0)
        client.delete_topic("model")
        with pytest.raises(ps.UnknownTopic) as gone:
            pub.put("k", b"v").accepted.result(5.0)
        assert gone.value.topic == "model"


def test_a_wait_for_what_is_in_a_topic_made_again_ends_when_it_is_applied(broker: ps.Broker, client: ps.Client) -> None:
    with ps.connect(broker.endpoint) as other:
        client.create_topic("model")
        replicas = [each.replica("model", arrays="numpy") for each in (client, other)]
        for version in range(1, 4):
            pub = make_again(client, partitions=version)
            entry, weights = pub.put("k", b"%d" % version), pub.publish_weights(W, version=version)
            for replica in replicas:
                replica.wait(entry, 5.0)
                assert replica.get("k") == b"%d" % version
                replica.wait(weights, 5.0)
                assert replica.weights().version == version
        assert len({replica.digest() for replica in replicas}) == 1


def test_a_publisher_goes_on_where_a_topic_that_it_observed_was_deleted(client: ps.Client) -> None:
    client.create_topic("model")
    client.create_topic("scratch")
    with client.replica(["model", "scratch"]) as seen:
        pub = client.publisher("model", producer="trainer", observes=seen)
        seen.wait(client.publisher("scratch", producer="trainer").put("s", b"1"))
        before = pub.put("k", b"1")
        seen.wait(before)
        vector = seen.vector
        assert ("scratch", 0) in vector
        client.delete_topic("scratch")
        pub.observe(vector)
        seen.wait(vector, 5.0)
        seen.wait(before, 5.0)
        seen.wait(pub.put("k", b"2"), 5.0)
        assert seen.get("k", topic="model") == b"2"


def test_what_was_observed_of_a_topic_made_again_counts(broker: ps.Broker, client: ps.Client) -> None:
    with ps.connect(broker.endpoint) as other:
        for name in ("model", "scratch"):
            client.create_topic(name)
        pub = client.publisher("model", producer="trainer")
        old = other.publisher("scratch", producer="other").put("s", b"1").accepted.result(5.0)
        client.delete_topic("scratch")
        pub.observe(ps.VersionVector({("scratch", 0): old["scratch", 0]}))
        other.create_topic("scratch")
        new = other.publisher("scratch", producer="other").put("s", b"2")
        pub.observe(new)
        assert pub.put("k", b"v").accepted.result(5.0)["scratch", 0] == new.positions["scratch", 0]


def test_a_name_that_another_client_made_again_is_looked_up_again(broker: ps.Broker, client: ps.Client) -> None:
    with ps.connect(broker.endpoint) as other:
        client.create_topic("model")
        assert other.versions("model") == []
        make_again(client).publish_weights(W, version=7).durable.result(5.0)
        assert [found.version for found in other.versions("model")] == [7]
        make_again(client).publish_weights(W, version=8).durable.result(5.0)
        with other.replica("model") as replica:
            assert replica.weights().version == 8
        make_again(client)
        other.create_table("model", "rows", 4)
        make_again(client)
        other.subscribe("model").close()
        make_again(client)
        assert other.publisher("model", producer="second").put("k", b"v").durable.result(5.0)
        make_again(client)
        assert other.publisher("model", producer="second").put("k", b"v").durable.result(5.0)
        client.delete_topic("model")
        with pytest.raises(ps.UnknownTopic, match="'model'"):
            other.versions("model")


def test_a_replica_that_has_seen_a_deleted_topic_is_observed_by_clients_that_never_heard_of_it(
    broker: ps.Broker, client: ps.Client
) -> None:
    for name in ("gone", "kept"):
        client.create_topic(name)
    client.publisher("gone", producer="writer").put("k", b"v").accepted.result(5.0)
    written = client.publisher("kept", producer="writer").put("k", b"v")
    replica = client.replica("kept")
    replica.wait(written, 5.0)
    client.delete_topic("gone")
    with ps.connect(broker.endpoint) as other:
        pub = other.publisher("kept", producer="observer", observes=replica)
        assert ("gone", 0) in replica.vector and ("gone", 0) not in pub.put("k", b"w").accepted.result(5.0)


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_replica_of_partitions_that_its_topic_no_longer_has_says_so_and_goes_on_where_it_has_them_again(
    client: ps.Client,
) -> None:
    """And whatever else it follows goes on meanwhile."""
    client.create_topic("model", partitions=4)
    client.create_topic("wide", partitions=4)
    with client.replica(["model", "wide"], partitions=[0, 3], arrays="numpy") as replica:
        wide = client.publisher("wide", producer="trainer")
        make_again(client, partitions=2)
        until(lambda: any(isinstance(error, ps.InvalidEvent) for error in replica.status().stopped.values()))
        for key in range(8):
            replica.wait(wide.put(f"k{key}", b"1"), 5.0)
        pub = make_again(client, partitions=4)
        until(lambda: not replica.status().stopped)
        replica.wait(pub.publish_weights(W, version=1), 10.0)
        assert replica.weights(topic="model").version == 1
