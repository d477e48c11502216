"""Order over a real broker: five producers that observe replicas, four state partitions, delays of each partition by itself.

Each replica follows some of the partitions in PRAM or causal order. Its delivery log is checked twice: by its stamps, and by
what the writers really read before they wrote. Without the gate both checks must find broken orders.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

import paramstream as ps
from ordering.world import run_world
from paramstream.consistency.gate import Gate, Ordering
from paramstream.consistency.stamp import Stamp
from paramstream.consistency.vector import PartitionId


@pytest.mark.parametrize("seed", [1, 2])
def test_replicas_apply_in_their_order_and_none_gets_stuck(broker: ps.Broker, client: ps.Client, seed: int) -> None:
    with ExitStack() as stack:
        world = run_world(broker.endpoint, client, stack, seed)
        world.wait_until_all_is_applied()
        world.check_orders()


def test_without_the_gate_both_checks_find_broken_orders(
    broker: ps.Broker, client: ps.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_gate(gate: Gate, partition: PartitionId, stamp: Stamp) -> None:
        """Everything may be applied."""

    monkeypatch.setattr(Gate, "blocked_by", open_gate)
    with ExitStack() as stack:
        world = run_world(broker.endpoint, client, stack, seed=1)
        world.wait_until_all_is_applied()
        for ordering in Ordering:
            several = [f for f in world.followers if f.ordering is ordering and len(f.partitions) > 1]
            assert any(follower.stamp_violations() for follower in several), ordering
            assert any(follower.true_violations(world.truth) for follower in several), ordering
