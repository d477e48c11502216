"""Whoever asks what became of a publish is told the reason, and what went wrong once goes wrong no second time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from paramstream.errors import StorageFull
from paramstream.eventlog.partition import LocalPartition
from paramstream.events.codec import Buffer


def test_an_event_that_the_log_does_not_take_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ps.Broker(log=f"file:{tmp_path}") as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        with client.replica("model") as replica:
            publisher = client.publisher("model", producer="trainer")
            replica.wait(publisher.put("k", b"before"))
            append = LocalPartition.append

            def full(partition: LocalPartition, frame: Buffer) -> None:
                if b"after" in bytes(frame):
                    raise StorageFull("the disk is full")
                append(partition, frame)

            monkeypatch.setattr(LocalPartition, "append", full)
            receipts = [publisher.put("k", b"after") for _ in range(2)]
            for receipt in receipts:
                with pytest.raises(ps.StorageFull, match="the disk is full"):
                    receipt.accepted.result(5.0)
                assert receipt.outcome == "refused"
            assert replica.get("k") == b"before"


def test_what_is_observed_and_was_never_sequenced_costs_one_publish_and_not_the_session(client: ps.Client) -> None:
    client.create_topic("model", partitions=2)
    client.create_topic("seen")
    publisher, other = client.publisher("model", producer="trainer"), client.publisher("seen", producer="other")
    seen = other.put("k", b"v").accepted.result()
    publisher.observe(seen)
    publisher.put("first", b"v").accepted.result()
    [(at, position)] = [item for item in seen.items() if item[0][0] == "seen"]
    publisher.observe(ps.VersionVector({at: position + 1000}))
    poisoned = publisher.put("k", b"refused")
    with pytest.raises(ps.InvalidEvent, match="not sequenced yet") as refused:
        poisoned.accepted.result()
    assert (refused.value.topic, refused.value.partition, refused.value.position) == ("seen", 0, position + 1000)
    after = publisher.put("k", b"accepted").accepted.result()
    assert after[at] == position, "it depends on what was sequenced of it, as before"
    publisher.publish_weights({"w": np.ones(3)}, version=1).accepted.result()


def test_publishes_on_their_way_behind_one_that_is_refused_for_what_it_observed_are_accepted(client: ps.Client) -> None:
    client.create_topic("model")
    publisher = client.publisher("model", producer="trainer")
    beyond = publisher.put("k", b"v").positions[("model", 0)] + 5
    other = client.publisher("model", producer="other")
    other.observe(ps.VersionVector({("model", 0): beyond}))
    receipts = [other.put("k", b"%d" % number) for number in range(10)]
    outcomes: list[str] = []
    for receipt in receipts:
        try:
            receipt.accepted.result(5.0)
            outcomes.append("accepted")
        except ps.InvalidEvent:
            outcomes.append("refused")
    assert outcomes == ["refused", *["accepted"] * 9]
