"""A scenario: a world's seed and the steps that are done in it, as data. The same scenario gives the same trace.

Each step has a stream of chance of its own, from the seed and the step's number, so that leaving steps out changes nothing
about what the others draw: this is what makes a long failing scenario a short one (`shrink.py`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from .acts import ACTS
from .kinds import kind_of
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

    def __str__(self) -> str:
        """As it stands in Python."""
        return f"Scenario.of({self.seed}, {', '.join(f'{step.number} {step.act}' for step in self.steps)!r})"

    @classmethod
    def of(cls, seed: int, steps: str) -> Scenario:
        """`steps`: number and name of each, in order."""
        pairs = (step.split(" ", 1) for step in steps.split(", "))
        return cls(seed, tuple(Step(int(number), act) for number, act in pairs))


def drawn(seed: int, length: int = STEPS) -> Scenario:
    """Each world has its own climate: some faults never, some often."""
    acts = {name: act for name, act in ACTS.items() if kind_of(seed) in act.kinds}
    weights = [
        act.weight
        * (random.Random(f"{seed}/climate/{name}").choice([0.0, 0.5, 1.0, 1.0, 4.0]) if act.is_fault else 1.0)
        for name, act in acts.items()
    ]
    names = random.Random(f"{seed}/steps").choices(list(acts), weights, k=length)
    return Scenario(seed, tuple(Step(number, name) for number, name in enumerate(names)))


def do(world: World, step: Step) -> None:
    """One act of somebody, or a fault; and then everything under way moves on a little."""
    world.trace.note(f"#{step.number} {step.act}")
    ACTS[step.act].do(world, world.stream(f"{step.number}/{step.act}"))
    world.move(world.stream(f"{step.number}"))
