"""`lost="again"` through a power failure: what was accepted and is lost is published again, and its receipts name that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from processes.load import weights_of
from processes.reference import digest_of
from processes.victim import Victim
from processes.world import START_S

WAIT_S = 30.0


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    with Victim(tmp_path) as found:
        yield found


@pytest.fixture
def client(victim: Victim) -> Iterator[ps.Client]:
    with ps.connect(victim.endpoint, timeout=START_S) as connected:
        yield connected


def test_after_a_power_failure_all_that_was_accepted_is_there_once_and_in_order(
    victim: Victim, client: ps.Client
) -> None:
    client.create_topic("model", partitions=2)
    with (
        client.publisher("model", producer="trainer", lost="again") as pub,
        client.replica("model", arrays="numpy") as rep,
        client.replica("model", arrays="numpy", visibility="durable") as cautious,
        client.subscribe("model", start="earliest", visibility="durable") as events,
    ):
        pub.put("kept", b"old")
        pub.publish_weights(weights_of(1), version=1)
        pub.flush(WAIT_S)
        victim.hold_syncs()
        puts = [pub.put(f"k{n % 5}", b"%d" % n) for n in range(20)]
        weights = pub.publish_weights(weights_of(2), version=2)
        written = pub.put("written", b"x")
        text = str(written)
        for receipt in (*puts, weights, written):
            rep.wait(receipt, WAIT_S)
        before = weights.positions
        assert cautious.weights().version == 1 and cautious.get("k4") is None

        victim.die(power=True)
        victim.start_again()

        for receipt in (*puts, weights):
            rep.wait(receipt, WAIT_S)
            receipt.durable.result(WAIT_S)
        assert weights.positions != before and weights.accepted.result(WAIT_S) == weights.durable.result(WAIT_S)
        with pytest.raises(ps.EventLost):
            written.durable.result(WAIT_S)
        with pytest.raises(ps.EventLost):
            rep.wait(ps.Receipt.parse(text).positions, WAIT_S)
        with pytest.raises(ps.EventLost, match="written as text"):
            pub.flush(WAIT_S)
        assert [rep.get(f"k{n}") for n in range(5)] == [b"%d" % (15 + n) for n in range(5)]
        assert rep.get("written") is None
        cautious.wait(weights, WAIT_S)
        cautious.wait(puts[-1], WAIT_S)
        assert cautious.digest() == rep.digest()
        reference = victim.log(client)
        assert all(count == 1 for count in reference.identities.values())
        assert rep.digest() == digest_of([reference])
        assert "lost" not in [events.next(WAIT_S).kind for _ in reference.events]


def test_parts_that_were_lost_go_again_and_can_be_committed(victim: Victim, client: ps.Client) -> None:
    client.create_topic("model")
    with (
        client.publisher("model", producer="rank-0", lost="again") as one,
        client.publisher("model", producer="rank-1", lost="again") as two,
        client.replica("model", arrays="numpy") as rep,
    ):
        victim.hold_syncs()
        big = {"big": np.arange(1_000_000, dtype=np.float32)}
        parts = [one.publish_weights(big, version=1, seal=False), two.publish_weights({"b": np.ones(3)}, 1, seal=False)]
        for part in parts:
            part.accepted.result(WAIT_S)
        victim.die(power=True)
        victim.start_again()
        for part in parts:
            part.durable.result(WAIT_S)
        rep.wait(one.commit(1, parts), WAIT_S)
        assert np.array_equal(np.asarray(rep.weights()["big"]), big["big"])


def test_all_publishers_of_a_name_say_the_same_of_what_is_lost(client: ps.Client) -> None:
    client.create_topic("model")
    with client.publisher("model", producer="trainer", lost="again"):
        with pytest.raises(ps.InvalidEvent, match="another lost="):
            client.publisher("model", producer="trainer")
        client.publisher("model", producer="trainer", lost="again").close()
    with pytest.raises(ps.InvalidEvent, match="neither 'raise' nor 'again'"):
        client.publisher("model", producer="trainer", lost="never")
