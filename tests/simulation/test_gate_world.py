"""Rules 1 and 2 in a random world: nobody gets stuck, no order is broken, and without the gate both are."""

from __future__ import annotations

import pytest

from paramstream.consistency.delivery import check_deliveries
from simulation.gate_world import World


def violations(world: World) -> int:
    return sum(len(check_deliveries(c.log, c.ordering, c.follows)) for c in world.consumers)


@pytest.mark.parametrize("seed", range(40))
def test_every_event_is_delivered_in_order_and_nobody_is_stuck(seed: int) -> None:
    world = World(seed)
    assert world.run(), f"seed {seed}: stuck"
    assert violations(world) == 0


def test_without_the_gate_the_checker_finds_broken_orders() -> None:
    broken = 0
    for seed in range(20):
        world = World(seed, gated=False)
        world.run()
        broken += violations(world) > 0
    assert broken >= 15
