"""What one death of a broker costs, made to happen at the worst moment: accepted and seen by all, and not synced yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from paramstream.consumers.events import Event
from processes.load import weights_of
from processes.reference import digest_of
from processes.victim import Victim
from processes.world import START_S
from reference.waiting import eventually

TOPIC = "model"
WAIT_S = 30.0


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    with Victim(tmp_path) as found:
        yield found


@pytest.fixture
def client(victim: Victim) -> Iterator[ps.Client]:
    with ps.connect(victim.endpoint, timeout=START_S) as connected:
        yield connected


def end_of(receipts: list[ps.Receipt]) -> ps.VersionVector[str]:
    """Where the events of `receipts` stand."""
    vector: ps.VersionVector[str] = ps.VersionVector()
    for receipt in receipts:
        vector = vector.merge(receipt.positions)
    return vector


def events_until(events: ps.Subscription, kind: str, key: bytes = b"") -> list[Event]:
    """The next events, up to the first one of `kind` (that writes `key`, where one is given)."""
    found: list[Event] = []
    while not found or found[-1].kind != kind or (key and found[-1].items[0][0] != key):
        found.append(events.next(WAIT_S))
    return found


def test_a_power_failure_loses_only_what_was_not_durable_and_everybody_says_so(
    victim: Victim, client: ps.Client
) -> None:
    client.create_topic(TOPIC)
    with (
        client.publisher(TOPIC, producer="trainer") as pub,
        client.replica(TOPIC, arrays="numpy") as rep,
        client.subscribe(TOPIC, start="earliest") as events,
    ):
        kept = [pub.put("kept", b"old"), pub.publish_weights(weights_of(1), version=1)]
        pub.flush(WAIT_S)
        victim.hold_syncs()
        gone = [pub.put("kept", b"new"), pub.put("gone", b"x"), pub.publish_weights(weights_of(2), version=2)]
        for receipt in gone:
            rep.wait(receipt, WAIT_S)
        assert (rep.get("kept"), rep.get("gone"), rep.weights().version) == (b"new", b"x", 2)
        # A heartbeat that knows of them calls none of them durable.
        at = gone[1].positions[TOPIC, 0]
        accepted, durable = eventually(lambda: (heads := rep.status().heads[TOPIC, 0])[0] >= at and heads)
        assert accepted >= at > durable
        assert [receipt.outcome for receipt in gone] == ["accepted"] * 3

        victim.die(power=True)
        victim.start_again()

        for receipt in gone:
            with pytest.raises(ps.EventLost):
                receipt.durable.result(WAIT_S)
        with pytest.raises(ps.EventLost):
            pub.flush(WAIT_S)
        assert [receipt.outcome for receipt in kept] == ["durable"] * 2

        after = pub.put("after", b"y")
        pub.flush(WAIT_S)
        rep.wait(after, WAIT_S)
        assert (rep.get("kept"), rep.get("gone"), rep.get("after")) == (b"old", None, b"y")
        with pytest.raises(ps.EventLost):
            rep.wait(gone[1].positions, WAIT_S)

        again = pub.publish_weights({name: values * 10 for name, values in weights_of(2).items()}, version=2)
        pub.flush(WAIT_S)
        rep.wait(again, WAIT_S)
        assert (rep.weights().version, float(rep.weights()["scale"])) == (2, 20.0)

        # Each "lost" names the end of its partition's epoch: what was yielded of that epoch above it is gone.
        said = [event for event in events_until(events, "put", b"after") if event.partition == 0]
        assert [event.kind for event in said] == ["put", "put", "put", "lost", "put"]
        end = said[3].position
        assert [event.items[0][1] for event in said[:3] if event.position > end] == [b"new", b"x"]

        reference = victim.log(client)
        assert rep.digest() == digest_of([reference])
        assert reference.standing == {b"kept": b"old", b"after": b"y"}
        with client.replica(TOPIC, arrays="numpy") as fresh:
            assert fresh.digest() == rep.digest()


def test_a_version_that_was_lost_gives_way_to_the_one_before_it(victim: Victim, client: ps.Client) -> None:
    client.create_topic(TOPIC)
    with client.publisher(TOPIC, producer="trainer") as pub, client.replica(TOPIC, arrays="numpy") as rep:
        pub.publish_weights(weights_of(1), version=1)
        pub.flush(WAIT_S)
        victim.hold_syncs()
        lost = pub.publish_weights(weights_of(2), version=2)
        rep.wait(lost, WAIT_S)
        victim.die(power=True)
        victim.start_again()
        with pytest.raises(ps.EventLost):
            lost.durable.result(WAIT_S)
        eventually(lambda: rep.weights().version == 1)
        rep.wait(pub.publish_weights(weights_of(3), version=3), WAIT_S)
        assert [found.version for found in client.versions(TOPIC)] == [1, 3]
        with pytest.raises(ps.VersionNotHeld):
            rep.weights(version=2)
        assert np.all(rep.weights(version=1)["layer.bias"] == 1.0)


def test_a_killed_broker_loses_nothing_that_it_accepted(victim: Victim, client: ps.Client) -> None:
    client.create_topic(TOPIC, partitions=2)
    with (
        client.publisher(TOPIC, producer="trainer") as pub,
        client.replica(TOPIC, arrays="numpy") as rep,
        client.subscribe(TOPIC, start="earliest") as events,
    ):
        pub.put_many({f"k{n}": b"before" for n in range(20)})
        pub.flush(WAIT_S)
        victim.hold_syncs()
        accepted = [pub.put(f"k{n}", f"v{n}".encode()) for n in range(20)]
        accepted.append(pub.publish_weights(weights_of(1), version=1))
        for receipt in accepted:
            receipt.accepted.result(WAIT_S)
        assert {receipt.outcome for receipt in accepted} == {"accepted"}

        victim.die()
        down = pub.put("while it is down", b"z")
        victim.start_again()

        for receipt in (*accepted, down):
            receipt.durable.result(WAIT_S)
        pub.flush(WAIT_S)
        rep.wait(end_of([*accepted, down]), WAIT_S)
        reference = victim.log(client)
        assert all(count == 1 for count in reference.identities.values())
        assert rep.digest() == digest_of([reference])
        assert reference.standing[b"while it is down"] == b"z"
        seen = [events.next(WAIT_S) for _ in reference.events]
        assert {(event.partition, event.position) for event in seen} == reference.events.keys()


def test_a_power_failure_costs_nothing_under_write_through(victim: Victim, client: ps.Client) -> None:
    client.create_topic(TOPIC, persistence="write_through")
    with client.publisher(TOPIC, producer="trainer") as pub, client.replica(TOPIC, arrays="numpy") as rep:
        pub.put("k", b"old")
        pub.flush(WAIT_S)
        victim.hold_syncs()
        waiting = [pub.put("k", b"new"), pub.put("l", b"too")]
        with pytest.raises(ps.ParamstreamTimeout):
            waiting[0].accepted.result(0.3)
        assert rep.get("k") == b"old"

        victim.die(power=True)
        victim.start_again()

        for receipt in waiting:
            receipt.durable.result(WAIT_S)
        pub.flush(WAIT_S)
        rep.wait(end_of(waiting), WAIT_S)
        assert (rep.get("k"), rep.get("l")) == (b"new", b"too")
        reference = victim.log(client)
        assert all(count == 1 for count in reference.identities.values())
        assert rep.digest() == digest_of([reference])


def test_what_a_closed_client_cannot_learn_any_more_ends_as_unknown(victim: Victim) -> None:
    with ps.connect(victim.endpoint, timeout=START_S) as client:
        client.create_topic(TOPIC)
        publisher = client.publisher(TOPIC, producer="trainer")
        publisher.put("k", b"durable").durable.result(WAIT_S)
        victim.hold_syncs()
        receipt = publisher.put("k", b"accepted")
        receipt.accepted.result(WAIT_S)
    with pytest.raises(ps.OutcomeUnknown, match="closed before this was known to be durable"):
        receipt.durable.result(WAIT_S)
    assert receipt.accepted.done()
