"""A long failing scenario made short: steps are left out as long as the same thing is still found (delta debugging).

Each step draws from its own stream, so what is left does what it did before, as far as the world lets it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .scenario import Scenario, Step

PLAYS = 1500
"""So often at most is a scenario tried."""


def shrunk(scenario: Scenario, fails: Callable[[Scenario], bool], plays: int = PLAYS) -> Scenario:
    """`fails` says whether a scenario still shows the failure; `scenario` does."""
    left = plays

    def still_fails(steps: tuple[Step, ...]) -> bool:
        nonlocal left
        if left == 0:
            return False
        left -= 1
        return fails(replace(scenario, steps=steps))

    steps = _fewer(_shortest_run(scenario.steps, still_fails), still_fails)
    return replace(scenario, steps=_quieter(steps, still_fails))


def _shortest_run(steps: tuple[Step, ...], fails: Callable[[tuple[Step, ...]], bool]) -> tuple[Step, ...]:
    """The end is cut by halves: most of what comes after the failure has nothing to do with it."""
    cut = len(steps) // 2
    while cut:
        if fails(steps[:-cut]):
            steps = steps[:-cut]
        cut = min(cut // 2, len(steps) - 1)
    return steps


def _fewer(steps: tuple[Step, ...], fails: Callable[[tuple[Step, ...]], bool]) -> tuple[Step, ...]:
    """Without any run of steps that can be left out: runs of half, a quarter, … of all, down to single ones."""
    size = max(len(steps) // 2, 1)
    while True:
        at, removed = 0, False
        while at < len(steps):
            without = steps[:at] + steps[at + size :]
            if without and fails(without):
                steps, removed = without, True
            else:
                at += size
        if size == 1 and not removed:
            return steps
        size = max(size // 2, 1)


def _quieter(steps: tuple[Step, ...], fails: Callable[[tuple[Step, ...]], bool]) -> tuple[Step, ...]:
    """Steps of which only the movement matters do nothing else."""
    for index, step in enumerate(steps):
        quiet = (*steps[:index], Step(step.number, "rest"), *steps[index + 1 :])
        if step.act != "rest" and fails(quiet):
            steps = quiet
    return steps
