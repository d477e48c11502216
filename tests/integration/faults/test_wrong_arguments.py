"""What is no argument of a call is refused with the library's own error, names itself, and changes nothing."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paramstream as ps

W = {"w": np.zeros(3, np.float32)}
OBJECTS: Any = np.array([object()])
LOOP: dict[str, Any] = {}
LOOP["again"] = LOOP
REFUSED: list[Callable[[Any], object]] = [
    lambda pub: pub.put("k", np.array([object()])),
    lambda pub: pub.put("k", memoryview(OBJECTS)),
    lambda pub: pub.put_many([1, 2]),
    lambda pub: pub.put_many([("a", b"b", 3)]),
    lambda pub: pub.put_many(None),
    lambda pub: pub.observe("model/0=1:1"),
    lambda pub: pub.observe(None),
    lambda pub: pub.commit(1, parts=None),
    lambda pub: pub.commit(1, parts=pub.publish_weights(W, version=1, seal=False)),
    lambda pub: pub.publish_weights(LOOP, version=1),
]


@pytest.fixture
def publisher(client: ps.Client) -> ps.Publisher:
    client.create_topic("model", partitions=2)
    return client.publisher("model", producer="trainer")


@pytest.fixture
def replica(client: ps.Client, publisher: ps.Publisher) -> Iterator[ps.Replica]:
    publisher.publish_weights(W, version=1).durable.result(5)
    with client.replica("model", arrays="numpy") as following:
        yield following


@pytest.mark.parametrize("version", [-1, 1 << 63, 1.5, True, "1"])
def test_what_is_no_version_is_refused_wherever_one_is_asked_for(
    client: ps.Client, replica: ps.Replica, version: Any
) -> None:
    for call in (replica.weights, replica.wait_version, replica.rollback):
        with pytest.raises(ps.InvalidEvent, match="version"):
            call(version)
    with pytest.raises(ps.InvalidEvent, match="version"):
        client.wait_replicas("model", version, 1, timeout=1)


@pytest.mark.parametrize("at", ["1", 1.5, (1,)])
def test_a_restore_at_what_is_no_moment_is_not_a_restore_of_the_head(
    broker: ps.Broker, replica: ps.Replica, at: Any
) -> None:
    with pytest.raises(ps.InvalidEvent, match="moment"):
        ps.restore(broker.endpoint, "model", at=at)


@pytest.mark.parametrize("key", [5, None, ("a",), "\ud800"])
def test_a_key_that_cannot_be_put_cannot_be_asked_for_either(replica: ps.Replica, key: Any) -> None:
    with pytest.raises(ps.InvalidEvent, match="key"):
        replica.get(key)
    with pytest.raises(ps.InvalidEvent, match="key"):
        replica.get_many([b"fine", key])


@pytest.mark.parametrize("call", REFUSED)
def test_what_no_publisher_takes_is_refused(publisher: ps.Publisher, call: Callable[[Any], object]) -> None:
    with pytest.raises(ps.InvalidEvent):
        call(publisher)
    publisher.put("k", b"v")
    publisher.flush(5)


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (torch.zeros(3, device="meta"), "Materialize"),
        (torch.eye(3).to_sparse(), "to_dense"),
    ],
)
def test_a_tensor_without_plain_values_is_refused_with_what_to_do(
    publisher: ps.Publisher, value: torch.Tensor, remedy: str
) -> None:
    with pytest.raises(ps.InvalidEvent, match=remedy):
        publisher.publish_weights({"w": value}, version=1)


@pytest.mark.parametrize(
    "options",
    [{"keep_versions": 1.5}, {"keep_versions": 0}, {"store": 5}, {"partitions": ["0"]}, {"start": None}, {"start": 5}],
)
def test_options_that_no_replica_has_are_refused_at_once(
    client: ps.Client, publisher: ps.Publisher, options: dict[str, Any]
) -> None:
    with pytest.raises(ps.InvalidEvent):
        client.replica("model", **options)


def test_what_nobody_can_wait_for_bind_or_parse_is_refused(client: ps.Client, replica: ps.Replica) -> None:
    wrong: Any = "model/0=1:1"
    with pytest.raises(ps.InvalidEvent):
        replica.wait(wrong)
    with pytest.raises(ps.InvalidEvent):
        replica.bind(wrong)
    with pytest.raises(ps.InvalidEvent):
        ps.Receipt.parse(wrong.encode())
    replica.close()
    with pytest.raises(ps.ParamstreamError, match="closed"):
        replica.digest()


def test_a_wait_without_an_end_is_a_timeout_too(broker: ps.Broker) -> None:
    with ps.connect(broker.endpoint, timeout=math.inf) as client:
        client.create_topic("model", timeout=1e300)
        pub = client.publisher("model", producer="trainer", timeout=math.inf)
        receipt = pub.publish_weights(W, version=1, timeout=math.inf)
        receipt.durable.result(math.inf)
        pub.flush(math.inf)
        with client.replica("model", timeout=math.inf) as replica:
            replica.wait_version(1, timeout=math.inf)
            later = threading.Timer(0.2, lambda: pub.put("k", b"v"))
            later.start()
            with client.subscribe("model") as events:
                assert events.next(timeout=math.inf).kind == "put"
            later.join()


def test_a_connect_that_is_interrupted_leaves_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(TypeError):
        ps.connect(f"ipc://{tmp_path}/nobody", timeout="soon")  # type: ignore[arg-type]
    assert set(threading.enumerate()) == before


def test_a_closed_client_says_so_instead_of_a_timeout(broker: ps.Broker) -> None:
    client = ps.connect(broker.endpoint)
    client.close()
    with pytest.raises(ps.ParamstreamError, match="closed") as told:
        client.topics()
    assert not isinstance(told.value, ps.ParamstreamTimeout)


def test_a_fork_that_closes_its_copy_of_a_broker_changes_nothing(tmp_path: Path) -> None:
    with ps.Broker(bind=f"ipc://{tmp_path}/b", log=f"file:{tmp_path}/log") as broker:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                broker.close(1)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with ps.connect(broker.endpoint) as client:
            client.create_topic("model")
            assert client.publisher("model", producer="trainer").put("k", b"v").durable.result(5)
