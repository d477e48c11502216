"""The broker is gone, and comes back or does not: who waits, who goes on, and what is said meanwhile."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from processes.world import free_port
from reference.waiting import eventually

TOPIC = "model"
WAIT_S = 30.0


@pytest.fixture
def endpoint() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


def knows_that_it_is_gone(client: ps.Client) -> bool:
    """The client's link has no connection any more."""
    try:
        client.topics(timeout=0.05)
    except ps.ParamstreamTimeout as error:
        return "could not be sent" in str(error)
    except ps.OutcomeUnknown:
        pass  # It went with the connection.
    return False


def value(version: int) -> dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    return {"step": np.array([version], np.int64)}


def test_a_broker_that_is_gone_and_back_is_met_again_by_everybody(endpoint: str, tmp_path: Path) -> None:
    log = f"file:{tmp_path / 'log'}"
    with ps.Broker(endpoint, log):
        client = ps.connect(endpoint)
        client.create_topic(TOPIC, partitions=2)
        pub = client.publisher(TOPIC, producer="trainer")
        rep = client.replica(TOPIC, arrays="numpy")
        events = client.subscribe(TOPIC, start="earliest")
        pub.put("k", b"before")
        pub.publish_weights(value(1), version=1)
        pub.flush(WAIT_S)
        rep.wait_version(1, WAIT_S)
    try:
        # What is served stays, and is called stale; what is published waits, in its order.
        eventually(lambda: rep.status().stale and not rep.status().connected)
        assert rep.weights().version == 1 and rep.get("k") == b"before"
        meanwhile = [pub.put("k", str(n).encode()) for n in range(50)]
        assert {receipt.outcome for receipt in meanwhile} <= {"pending", "unknown"}
        with pytest.raises(ps.ParamstreamTimeout):
            pub.flush(0.2)
        with pytest.raises(ps.ParamstreamError) as refused:
            client.create_topic("other", timeout=0.3)
        assert refused.value.retriable

        with ps.Broker(endpoint, log):
            pub.flush(WAIT_S)
            assert {receipt.outcome for receipt in meanwhile} == {"durable"}
            rep.wait(meanwhile[-1], WAIT_S)
            assert rep.get("k") == b"49"
            last = pub.publish_weights(value(2), version=2)
            rep.wait(last, WAIT_S)
            assert rep.weights().version == 2
            eventually(lambda: (now := rep.status()).connected and not now.stale)
            # Each once, in order, without a gap over the absence.
            puts = (event for event in events if event.kind == "put")
            values = [event.items[0][1] for event in islice(puts, 51)]
            assert values == [b"before", *(str(n).encode() for n in range(50))]
            client.create_topic("other")
            client.close()
    finally:
        client.close(timeout=1.0)


def test_a_broker_that_comes_back_without_its_log_is_an_empty_one(endpoint: str) -> None:
    with ps.Broker(endpoint, "memory:"):
        client = ps.connect(endpoint)
        client.create_topic(TOPIC)
        pub = client.publisher(TOPIC, producer="trainer")
        rep = client.replica(TOPIC, arrays="numpy")
        pub.put("k", b"v")
        pub.publish_weights(value(1), version=1)
        pub.flush(WAIT_S)
        rep.wait_version(1, WAIT_S)
    try:
        with ps.Broker(endpoint, "memory:"):
            # Nothing pretends that the topic is still there.
            waiting = pub.put("k", b"w")
            with pytest.raises(ps.Fenced, match="does not know incarnation"):
                waiting.durable.result(WAIT_S)
            assert client.topics() == []
            status = eventually(lambda: (now := rep.status()).connected and now.last_error and now)
            assert status.stale and rep.weights().version == 1

            # A new topic of the name is another one, and takes over with its first commit.
            client.create_topic(TOPIC)
            again = client.publisher(TOPIC, producer="trainer")
            again.put("l", b"new")
            again.publish_weights(value(1000), version=1000).durable.result(WAIT_S)
            rep.wait_version(1000, WAIT_S)
            eventually(lambda: rep.get("l") == b"new")
            assert rep.get("k") is None and not rep.status().stale
            client.close()
    finally:
        client.close(timeout=1.0)


@pytest.mark.parametrize("limit_s", [0.5, 2.0])
def test_close_with_100_unsent_events_returns_in_time_and_names_their_sequences_G06(
    endpoint: str, limit_s: float
) -> None:
    with ps.Broker(endpoint, "memory:"):
        client = ps.connect(endpoint)
        client.create_topic(TOPIC)
        pub = client.publisher(TOPIC, producer="trainer")
        pub.put("k", b"sent").accepted.result(WAIT_S)
    try:
        eventually(lambda: knows_that_it_is_gone(client))
        receipts = [pub.put("k", b"never sent") for _ in range(100)]
        began = time.monotonic()
        with pytest.raises(ps.OutcomeUnknown, match=r"model/0: never sent are sequences 2–101"):
            pub.close(timeout=limit_s)
        assert limit_s * 0.9 < time.monotonic() - began < limit_s + 1.0
        # Each has its outcome, and nobody waits for ever.
        for receipt in receipts:
            with pytest.raises(ps.OutcomeUnknown):
                receipt.durable.result(1.0)
    finally:
        began = time.monotonic()
        client.close(timeout=limit_s)
        assert time.monotonic() - began < limit_s + 1.0
