"""Fault cases F03, F06, F09, F10, end to end: consumers that are slow, fickle, or interrupted lose nothing and tear nothing."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from paramstream.consumers.subscriber import BUFFER_BYTES
from paramstream.consumers.subscription_core import BUDGET_BYTES
from processes.child import Child

START_S = 120.0


def numbers(event: ps.Event) -> list[int]:
    """Which puts of a burst it carries: puts that go to one partition are batched."""
    return [int(key) for key, _, _ in event.items]


def numbers_of(events: ps.Subscription, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += numbers(events.next(30))
    return found


def burst(publisher: ps.Publisher, count: int) -> ps.Receipt:
    value = bytes(1024)
    receipts: list[ps.Receipt] = []
    for n in range(1, count + 1):
        receipts.append(publisher.put(f"{n:06d}", value))
        # An event for each put, not one for hundreds.
        receipts[-1].accepted.result(30)
    publisher.flush(120)
    return receipts[-1]


def take_a_burst(count: int, paused_s: float, tmp_path: Path) -> None:
    """Neither a replica that is stopped nor a subscription that nobody reads loses one of `count` events."""
    with (
        ps.Broker(bind=f"ipc://{tmp_path}/b") as broker,
        ps.connect(broker.endpoint) as client,
        Child("slow_replica", broker.endpoint, "model", "slow", "latest", errors=tmp_path / "errors") as slow,
    ):
        client.create_topic("model", exist_ok=True)
        publisher = client.publisher("model", producer="trainer")
        publisher.publish_weights({"w": np.zeros(4, np.float32)}, version=1)
        assert slow.read(START_S)["up"]
        with client.subscribe("model") as events, client.replica("model", arrays="numpy") as other:
            slow.pause()
            began = time.monotonic()
            last = burst(publisher, count)
            other.wait(last, 60)
            time.sleep(max(0.0, began + paused_s - time.monotonic()))
            slow.resume()
            assert events.buffered_bytes < BUFFER_BYTES + 3 * BUDGET_BYTES
            assert numbers_of(events, count) == list(range(1, count + 1))
            vector = str(last.accepted.result(1))
            assert slow.ask("wait", 90, version=1, vector=vector, within=60)["error"] == ""
            assert slow.ask("state", 30)["digest"] == other.digest()


def test_a_burst_reaches_those_who_did_not_read_without_a_gap_F03(tmp_path: Path) -> None:
    take_a_burst(2_000, 0.0, tmp_path)


@pytest.mark.slow
def test_a_burst_of_50000_events_reaches_those_who_did_not_read_without_a_gap_F03(tmp_path: Path) -> None:
    take_a_burst(50_000, 5.0, tmp_path)


def test_whoever_has_come_and_gone_unread_gets_the_next_events_F06(client: ps.Client) -> None:
    client.create_topic("model")
    publisher = client.publisher("model", producer="trainer")
    for turn in range(5):
        client.subscribe("model").close()
        client.replica("model", name="fickle").close()
        publisher.put(f"{turn:06d}", b"unread")
    publisher.flush(10)
    with client.subscribe("model") as events, client.replica("model", name="fickle") as replica:
        last = burst(publisher, 3)
        assert numbers_of(events, 3) == [1, 2, 3]
        replica.wait(last, 10)
        assert replica.get("000003") == bytes(1024)


def full_speed(versions: int, broker: ps.Broker, client: ps.Client) -> None:
    """Two replicas that want the newest only, of which one is slow to switch, see whole versions that only go up."""
    client.create_topic("model")
    publisher = client.publisher("model", producer="trainer")
    with ps.connect(broker.endpoint) as far:
        replicas = [far.replica("model", arrays="numpy"), client.replica("model", arrays="numpy")]
        seen: list[list[int]] = [[], []]
        torn = threading.Event()
        for replica, versions_seen in zip(replicas, seen, strict=True):

            def look(info: ps.VersionInfo, replica: ps.Replica = replica, found: list[int] = versions_seen) -> None:
                weights = replica.weights()
                found.append(info.version)
                ends = {int(np.asarray(value)[at]) for value in weights.values() for at in (0, -1)}
                if ends != {weights.version}:
                    torn.set()
                if replica is replicas[1]:
                    time.sleep(0.02)

            replica.on_switch(look)
        for version in range(1, versions + 1):
            arrays = {name: np.full(160_000, version, np.int64) for name in ("first", "second")}
            publisher.publish_weights(arrays, version=version)
        publisher.flush(60)
        for replica, versions_seen in zip(replicas, seen, strict=True):
            replica.wait_version(versions, 60)
            assert versions_seen == sorted(set(versions_seen))
            assert replica.weights().version == versions
        assert replicas[0].digest() == replicas[1].digest()
        assert not torn.is_set()
        print(f"switches: {len(seen[0])} and {len(seen[1])} of {versions} versions")


def test_two_replicas_of_the_newest_version_see_whole_versions_that_go_up_F09(
    broker: ps.Broker, client: ps.Client
) -> None:
    full_speed(100, broker, client)


@pytest.mark.slow
def test_two_replicas_of_the_newest_of_1000_versions_see_whole_ones_that_go_up_F09(
    broker: ps.Broker, client: ps.Client
) -> None:
    full_speed(1_000, broker, client)


async def read_with_cancels(events: ps.Subscription, count: int) -> tuple[list[int], int]:
    """The numbers read, and the most reads on end, of 1 ms or less each, in which none came although some waited.

    Reads are counted, not seconds: a busy machine makes a second of anything.
    """
    chance, found, most, vain = random.Random(5), list[int](), 0, 0
    deadline = time.monotonic() + 300

    async def take() -> None:
        found.extend(numbers(await anext(events)))

    while len(found) < count:
        before = len(found)
        reading = asyncio.ensure_future(take())
        if chance.random() < 0.5:
            await asyncio.wait([reading], timeout=0.001)
        else:
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        if reading.cancelled():
            assert len(found) == before
        else:
            reading.result()
        vain = vain + 1 if len(found) == before and events.buffered_bytes else 0
        most = max(most, vain)
        assert time.monotonic() < deadline, f"nothing came after {found[-1:]}"
    return found, most


def read_interrupted(client: ps.Client, count: int) -> None:
    client.create_topic("model")
    publisher = client.publisher("model", producer="trainer")
    with client.subscribe("model") as events:
        writer = threading.Thread(target=burst, args=(publisher, count), name="writer")
        writer.start()
        try:
            found, most = asyncio.run(read_with_cancels(events, count))
        finally:
            writer.join(60)
        assert found == list(range(1, count + 1))
        assert most < 100, "events that wait are read at once"
        print(f"{most} reads in vain")
        assert not vars(events)["_waiters"], "a cancelled read leaves nothing behind"
        with pytest.raises(ps.ParamstreamTimeout):
            events.next(0.1)


def test_a_cancelled_read_loses_nothing_F10(client: ps.Client) -> None:
    read_interrupted(client, 2_000)


@pytest.mark.slow
def test_10000_events_with_reads_cancelled_at_random_come_once_and_in_order_F10(client: ps.Client) -> None:
    read_interrupted(client, 10_000)
