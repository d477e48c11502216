"""What a replica serves when it is told to, and who hears of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import paramstream as ps
from feeding.fakes import FakeBroker
from paramstream.consistency.position import position
from paramstream.consumers.replica import Replica

KEPT = 3


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def replica(broker: FakeBroker) -> Iterator[Replica]:
    with Replica(
        ["model"],
        directory=broker.directory,
        make_link=broker.make_link,
        keep_versions=KEPT,
        arrays="numpy",
        timeout=2.0,
    ) as replica:
        yield replica


def publish(broker: FakeBroker, *numbers: int, durable: bool = True) -> None:
    for number in numbers:
        broker.weights.version(number, {"w": np.full(8, number, np.float32)})
        broker.settle()
        if durable:
            broker.durable[broker.weights.partition] = broker.weights.position
        broker.beat()


def test_a_pinned_version_is_served_until_the_replica_follows_again(broker: FakeBroker, replica: Replica) -> None:
    publish(broker, 1, 2, 3)
    module = torch.nn.Module()
    module.register_buffer("w", torch.zeros(8))
    bound = replica.bind(module)
    replica.rollback(2)
    assert (replica.weights().version, bound.version) == (2, 2)
    assert replica.status().served["model"].pinned
    publish(broker, 4, 5, 6, 7)
    broker.state.put(b"k", b"new")
    broker.settle()
    assert replica.weights().version == 2 and (replica.weights()["w"] == 2.0).all()
    assert replica.weights(7).version == 7 and replica.weights(2).version == 2
    with pytest.raises(ps.VersionNotHeld, match="kept are: 5, 6, 7"):
        replica.weights(4)
    assert replica.get("k") == b"new", "rows and KV stay at the head"
    replica.wait_version(2, timeout=1.0)
    with pytest.raises(ps.ParamstreamTimeout):
        replica.wait_version(7, timeout=0.05)
    replica.follow()
    assert (replica.weights().version, bound.version) == (7, 7)
    assert not replica.status().served["model"].pinned
    with pytest.raises(ps.VersionNotHeld):
        replica.weights(2)
    replica.follow()
    publish(broker, 8)
    assert replica.weights().version == bound.version == 8


def test_a_pinned_version_that_is_lost_is_not_served(broker: FakeBroker, replica: Replica) -> None:
    publish(broker, 1)
    kept = broker.weights.position
    publish(broker, 2, 3, durable=False)
    replica.rollback(2)
    broker.weights.open_epoch(end=kept)
    broker.settle()
    assert replica.weights().version == 1 and not replica.status().served["model"].pinned


def test_a_pin_outlives_the_topic_and_says_that_it_is_stale(broker: FakeBroker, replica: Replica) -> None:
    publish(broker, 1, 2)
    replica.rollback(1)
    broker.disconnect()
    broker.replace_topic()
    broker.connect()
    broker.beat(1.0)
    broker.beat(2.0)
    publish(broker, 9)
    served = replica.status().served["model"]
    assert (served.version, served.pinned, served.stale) == (1, True, True)
    replica.follow()
    served = replica.status().served["model"]
    assert (served.version, served.pinned, served.stale) == (9, False, False)


def test_every_switch_is_told_in_order_and_what_a_listener_raises_ends_nothing(
    broker: FakeBroker, replica: Replica
) -> None:
    told: list[ps.VersionInfo] = []
    seen: list[int] = []

    def note(info: ps.VersionInfo) -> None:
        told.append(info)
        seen.append(replica.weights().version)
        if info.version == 2:
            raise ValueError("no room for 2")

    replica.on_switch(note)
    publish(broker, 1, 2, 3)
    assert [info.version for info in told] == seen == [1, 2, 3]
    assert (told[0].tensors, told[0].bytes) == (1, 32) and len(told[0].digest) == 32
    assert told[2].position == position(5, 9) and told[2].time.tzinfo is not None
    assert replica.status().last_error == "on_switch of version 2: ValueError: no room for 2"
    replica.rollback(2)
    assert len(told) == 3, "the caller's thread is not the replica's"
    broker.beat()
    replica.follow()
    broker.beat()
    assert [info.version for info in told[3:]] == [2, 3]
