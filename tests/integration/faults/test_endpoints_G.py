"""Fault cases G, end to end: names that two want at once, endpoints that are wrong, taken, or open to all."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from paramstream.client import CONNECT_S
from reference.waiting import eventually
from reference.weights import check_weights


def value(version: int) -> dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    return {"w": np.array([version], np.int64)}


def test_of_two_replicas_of_one_name_the_newer_is_served_and_the_older_is_told_G07(broker: ps.Broker) -> None:
    with ps.connect(broker.endpoint) as one, ps.connect(broker.endpoint) as two:
        one.create_topic("model", partitions=2)
        publisher = one.publisher("model", producer="trainer")
        publisher.publish_weights(value(1), version=1).accepted.result()
        older = one.replica("model", name="reader", arrays="numpy")
        newer = two.replica("model", name="reader", arrays="numpy")
        with pytest.raises(ps.Fenced, match="reader"):
            older.wait_version(2, timeout=10.0)
        # Never a share each: the newer one has every event, the older one none.
        for number in range(20):
            publisher.put(f"key-{number}", b"value")
        publisher.publish_weights(value(2), version=2).accepted.result()
        newer.wait_version(2)
        newer.wait(publisher.put("last", b"value"))
        assert newer.get_many([f"key-{number}" for number in range(20)]) == [b"value"] * 20
        check_weights(newer.weights(), value(2), 2)
        check_weights(older.weights(), value(1), 1)
        status = older.status()
        assert status.stale and "Fenced" in status.last_error and len(status.stopped) == 3
        assert not newer.status().stale
        assert older.get("key-0") is None


def test_a_replica_that_is_back_within_100_ms_has_lost_nothing_G07(broker: ps.Broker, client: ps.Client) -> None:
    client.create_topic("model")
    publisher = client.publisher("model", producer="trainer")
    for version in range(1, 6):
        publisher.publish_weights(value(version), version=version).accepted.result()
        publisher.put(f"key-{version}", b"value").accepted.result()
        with ps.connect(broker.endpoint) as other:
            replica = other.replica("model", name="reader", arrays="numpy")
            check_weights(replica.weights(), value(version), version)
            keys = [f"key-{each}" for each in range(1, version + 1)]
            assert replica.get_many(keys) == [b"value"] * version
            # Gone without a goodbye of its own, and back at once.
    assert [replica.name for replica in client.replicas("model")] in ([], ["reader"])


def test_a_second_publisher_of_a_name_fences_the_first_G07(broker: ps.Broker) -> None:
    with ps.connect(broker.endpoint) as one, ps.connect(broker.endpoint) as two:
        one.create_topic("model", partitions=3)
        older = one.publisher("model", producer="trainer")
        accepted = older.put("k", b"1")
        accepted.accepted.result()
        newer = two.publisher("model", producer="trainer")
        refused = older.put("k", b"2")
        with pytest.raises(ps.Fenced, match="'trainer'"):
            refused.accepted.result()
        assert refused.outcome == "refused"
        # Fenced or not: what was accepted has its outcome too.
        accepted.durable.result(5.0)
        with pytest.raises(ps.Fenced, match="'trainer'"):
            older.put("k", b"3")
        with pytest.raises(ps.Fenced, match="'trainer'"):
            older.publish_weights(value(1), version=1)
        newer.put("j", b"4").accepted.result()
        with one.replica("model") as replica:
            assert replica.get_many(["k", "j"]) == [b"1", b"4"]
        # The name can be had again, by opening it: the newer one is the older one then.
        back = one.publisher("model", producer="trainer")
        back.put("k", b"5").accepted.result()
        with pytest.raises(ps.Fenced):
            newer.put("k", b"6").accepted.result()


def test_publishers_of_one_client_share_the_session_of_a_name_G07(client: ps.Client) -> None:
    for topic in ("a", "b"):
        client.create_topic(topic)
    one, two = client.publisher("a", producer="trainer"), client.publisher("b", producer="trainer")
    first, second = one.put("k", b"1"), two.put("k", b"2")
    assert first.accepted.result() <= second.accepted.result(), "the second depends on the first"
    one.close()
    two.put("k", b"3").accepted.result()
    with client.replica(["a", "b"]) as replica:
        assert (replica.get("k", topic="a"), replica.get("k", topic="b")) == (b"1", b"3")


@pytest.mark.parametrize("kind", ["nobody", "silent", "no path", "nonsense"])
def test_a_wrong_endpoint_is_named_within_five_seconds_G01(kind: str, tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        if kind == "silent":
            silent.listen()
        endpoint = {
            "nobody": f"tcp://127.0.0.1:{port}",
            "silent": f"tcp://127.0.0.1:{port}",
            "no path": f"ipc://{tmp_path}/nobody",
            "nonsense": "127.0.0.1",
        }[kind]
        timeout = CONNECT_S if kind == "nobody" else 1.0
        started = time.monotonic()
        with pytest.raises(ps.ConnectFailed) as failed:
            ps.connect(endpoint, timeout=timeout)
        assert time.monotonic() - started < timeout + 1.0 <= 6.0
        assert endpoint in str(failed.value)


@pytest.mark.parametrize("bind", ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://[::]:0", "tcp://localhost.example.org:0"])
def test_a_bind_beyond_loopback_is_refused_unless_it_is_asked_for_G01(bind: str) -> None:
    with pytest.raises(ps.AccessDenied, match="insecure") as denied:
        ps.Broker(bind=bind)
    assert bind in str(denied.value)


def test_a_bind_beyond_loopback_can_be_asked_for_G01() -> None:
    with ps.Broker(bind="tcp://0.0.0.0:0", insecure=True) as broker:
        port = broker.endpoint.rpartition(":")[2]
        with ps.connect(f"tcp://127.0.0.1:{port}") as client:
            client.create_topic("model")
            client.publisher("model", producer="trainer").put("k", b"v").durable.result()
            # Fetches go to the host that the client knows the broker by.
            with client.subscribe("model", start="earliest") as events:
                assert events.next(timeout=5.0).items == ((b"k", b"v", None),)


def test_a_taken_port_is_named_G01(broker: ps.Broker, tmp_path: Path) -> None:
    with pytest.raises(ps.BindFailed) as failed:
        ps.Broker(bind=broker.endpoint)
    assert broker.endpoint in str(failed.value)
    bind = f"ipc://{tmp_path}/broker"
    with ps.Broker(bind=bind) as other:
        with pytest.raises(ps.BindFailed, match=bind):
            ps.Broker(bind=bind)
        # Whoever was there first is unhurt.
        with ps.connect(other.endpoint) as client:
            assert client.topics() == []


def test_the_folder_of_a_log_has_one_owner_G01(tmp_path: Path) -> None:
    log = f"file:{tmp_path}"
    with ps.Broker(log=log), pytest.raises(ps.BindFailed, match=str(tmp_path)):
        ps.Broker(log=log)
    with ps.Broker(log=log) as broker:
        eventually(lambda: broker.status().partitions == 1)
