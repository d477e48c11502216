"""A scenario: a world's seed and the steps that are done in it, as data. The same scenario gives the same trace.

Each step has a stream of chance of its own, from the seed and the step's number, so that leaving steps out changes nothing
about what the others draw: this is what makes a long failing scenario a short one (`shrink.py`).
"""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from .acts import ACTS
from .world import World

STEPS = 150


@dataclass(frozen=True, order=True)
class Step:
    number: int
    act: str


@dataclass(frozen=True)
class Scenario:
    seed: int
    steps: tuple[Step, ...]


def drawn(seed: int, length: int = STEPS) -> Scenario:
    """Each world has its own climate: some faults never, some often."""
    weights = [
        act.weight
        * (random.Random(f"{seed}/climate/{name}").choice([0.0, 0.5, 1.0, 1.0, 4.0]) if act.is_fault else 1.0)
        for name, act in ACTS.items()
    ]
    names = random.Random(f"{seed}/steps").choices(list(ACTS), weights, k=length)
    return Scenario(seed, tuple(Step(number, name) for number, name in enumerate(names)))


@contextmanager
def a_world(seed: int) -> Generator[World]:
    world = World(seed)
    try:
        yield world
    finally:
        world.close()


def do(world: World, step: Step) -> None:
    """One act of somebody, or a fault; and then everything under way moves on a little."""
    world.trace.note(f"#{step.number} {step.act}")
    ACTS[step.act].do(world, world.stream(f"{step.number}/{step.act}"))
    world.move(world.stream(f"{step.number}"))


def run(world: World, scenario: Scenario) -> None:
    for step in scenario.steps:
        do(world, step)
