"""The cores keep their promises in a hostile world, and everybody ends with the same."""

from __future__ import annotations

import pytest

from simulation.play import a_world, play
from simulation.regressions import REGRESSIONS, Regression
from simulation.scenario import do, drawn

SEEDS = 200
HOSTILE_SEEDS = 22


@pytest.mark.parametrize("seed", range(SEEDS))
def test_order_outcomes_and_state_hold_through_losses_and_takeovers(seed: int) -> None:
    assert play(drawn(seed)).problems == ()


@pytest.mark.parametrize("regression", REGRESSIONS, ids=lambda regression: regression.about)
def test_what_was_broken_once_holds(regression: Regression) -> None:
    assert play(regression.scenario).problems == ()


def test_the_worlds_are_hostile() -> None:
    """What the checks are there for does happen: undos, losses, refusals, restarts, and calls that go through all the same."""
    undone, jumps, outcomes, starts = 0, 0, set[str](), set[str]()
    for seed in range(HOSTILE_SEEDS):
        with a_world(seed) as world:
            for step in drawn(seed).steps:
                do(world, step)
            world.heal()
            undone += sum(len(consumer.undone) for consumer in world.consumers)
            jumps += sum(consumer.jumps for consumer in world.consumers)
            starts.update(*(consumer.starts for consumer in world.consumers))
            outcomes.update(*(made.outcomes for producer in world.producers for made in producer.made))
    assert undone > 20 and jumps > 5
    assert {"durable", "lost", "refused", "accepted"} <= outcomes
    assert starts == {"earliest", "latest", "resume", "snapshot", "changelogs"}
