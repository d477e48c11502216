"""Fault cases J, end to end: what is larger than a frame is cut and put together; a small event behind it arrives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from paramstream.events.limits import MAX_EVENT_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES
from reference.weights import check_weights, digest_of


def test_a_tensor_over_a_limit_of_1_MiB_arrives_and_so_does_a_small_event_J01(client: ps.Client) -> None:
    client.create_topic("model")
    publisher = client.publisher("model", producer="trainer")
    assert MAX_EVENT_BYTES < 1 << 20
    large = np.random.default_rng(1).integers(0, 256, (1 << 20) + 64).astype(np.uint8)
    with client.replica("model", arrays="numpy") as replica, client.subscribe("model") as events:
        publisher.publish_weights({"large": large}, version=1)
        publisher.put("small", b"0123456789").durable.result()
        assert [events.next(timeout=5.0).kind for _ in range(5)] == ["chunk", "chunk", "part", "commit", "put"]
        replica.wait_version(1)
        check_weights(replica.weights(), {"large": large}, 1)
        replica.wait(publisher.put("small", b"0123456789"))
        assert replica.get("small") == b"0123456789"


@pytest.mark.slow
def test_a_tensor_over_2_GiB_arrives_and_so_does_a_small_event_J01(tmp_path: Path) -> None:
    large = np.arange(((2 << 30) + 64) // 8, dtype=np.uint64).view(np.uint8)
    with (
        ps.Broker(log=f"file:{tmp_path}", log_limit="4GiB") as broker,
        ps.connect(broker.endpoint) as client,
        ps.TieredStore(dram="5GiB") as store,
    ):
        client.create_topic("model")
        publisher = client.publisher("model", producer="trainer")
        with client.replica("model", arrays="numpy", store=store) as replica:
            publisher.publish_weights({"large": large}, version=1, timeout=300.0)
            publisher.put("small", b"0123456789").durable.result(300.0)
            replica.wait_version(1, timeout=300.0)
            replica.wait(publisher.put("small", b"0123456789"))
            assert replica.get("small") == b"0123456789"
            held = replica.weights()
            assert held.digest == digest_of({"large": large})
            assert np.array_equal(held["large"], large)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (b"k" * MAX_KEY_BYTES, b"v" * (MAX_VALUE_BYTES + 1), f"{MAX_VALUE_BYTES + 1} bytes is over the limit of {MAX_VALUE_BYTES}"),
        (b"k" * (MAX_KEY_BYTES + 1), b"v", f"a key of {MAX_KEY_BYTES + 1} bytes; it must have 1 to {MAX_KEY_BYTES}"),
    ],
)  # fmt: skip
def test_an_entry_over_a_limit_is_refused_with_size_and_limit_J01(
    client: ps.Client, key: bytes, value: bytes, says: str
) -> None:
    client.create_topic("model")
    publisher = client.publisher("model", producer="trainer")
    with client.subscribe("model") as events:
        with pytest.raises(ps.InvalidEvent, match=says) as refused:
            publisher.put_many({b"good": b"v", key: value})
        assert refused.value.item is not None and refused.value.item.startswith("b'kkkk")
        largest = b"v" * MAX_VALUE_BYTES
        publisher.put(b"k" * MAX_KEY_BYTES, largest).durable.result()
        (item,) = events.next(timeout=5.0).items
        assert item == (b"k" * MAX_KEY_BYTES, largest, None), "nothing of the refused call was sent"


def test_a_call_larger_than_the_window_goes_event_by_event_J01(client: ps.Client) -> None:
    client.create_topic("model", partitions=3)
    publisher = client.publisher("model", producer="trainer")
    entries = {f"key-{number}": bytes([number]) * (700 << 10) for number in range(60)}
    publisher.put_many(entries).durable.result()
    with client.replica("model") as replica:
        assert replica.get_many(entries) == list(entries.values())
