"""Fault case O06: what users name is theirs: it is never taken for a field of the event, and cannot set one."""

from __future__ import annotations

import numpy as np
import pytest

import paramstream as ps

LIKE_HEADERS = ["x-event-id", "orig-event-id", "event-id"]
LIKE_FIELDS = ["producer", "incarnation", "sequence", "position", "time", "vector", "topic/model", "producer/trainer"]


def test_three_events_with_keys_like_internal_headers_are_three_events_with_keys_as_sent_O06(client: ps.Client) -> None:
    client.create_topic("model")
    publisher = client.publisher("model", producer="trainer")
    with client.subscribe("model") as events, client.replica("model", arrays="numpy") as replica:
        receipts = [publisher.put(key, b"1") for key in LIKE_HEADERS]
        for receipt in receipts:
            receipt.accepted.result(10)
        found = [next(events) for _ in LIKE_HEADERS]
        assert [event.items for event in found] == [((key.encode(), b"1", None),) for key in LIKE_HEADERS]
        assert len({event.position for event in found}) == len({event.sequence for event in found}) == 3
        replica.wait(receipts[-1])
        assert replica.get_many(LIKE_HEADERS) == [b"1"] * 3


def test_keys_and_tensors_named_like_fields_set_none_of_them_O06(client: ps.Client) -> None:
    client.create_topic("model")
    publisher = client.publisher("model", producer="trainer")
    with client.subscribe("model") as events, client.replica("model", arrays="numpy") as replica:
        for number, key in enumerate(LIKE_FIELDS, 1):
            publisher.put(key, b"999").accepted.result(10)
            event = next(events)
            assert (event.kind, event.producer, event.sequence, event.topic) == ("put", "trainer", number, "model")
            assert event.items == ((key.encode(), b"999", None),)
            assert event.position != 999 and event.time > 10**18
        names = [*LIKE_FIELDS, *LIKE_HEADERS]
        part = publisher.publish_weights({name: np.ones(1, np.float32) for name in names}, version=1, seal=False)
        replica.wait(publisher.commit(1, [part]))
        assert sorted(replica.weights()) == sorted(names)
    assert [topic.name for topic in client.topics()] == ["model"]


def test_the_registry_of_topics_is_no_topic_to_publish_to_O06(client: ps.Client) -> None:
    with pytest.raises(ps.UnknownTopic):
        client.publisher("__meta", producer="trainer")
    with pytest.raises(ps.InvalidEvent, match="reserved"):
        client.create_topic("__meta")
