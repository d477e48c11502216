"""Each promise that is switched off is caught."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import pytest

from simulation.mutation import Mutation
from simulation.mutations import MUTATIONS
from simulation.play import play
from simulation.scenario import drawn

LOOKS_S = 60.0
"""So long another seed is looked for, where a change of the worlds has made `found_at` one that shows nothing."""


def is_caught(mutation: Mutation, seeds: Iterable[int], within_s: float = math.inf) -> bool:
    until = time.monotonic() + within_s
    with mutation.switched_off():
        return any(
            mutation.shows in problem
            for seed in seeds
            if mutation.may_show_at(seed) and time.monotonic() < until
            for problem in play(drawn(seed)).problems
        )


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=lambda mutation: mutation.name)
def test_a_promise_that_is_switched_off_is_caught(mutation: Mutation) -> None:
    assert is_caught(mutation, [mutation.found_at, *range(1, mutation.seeds + 1)], LOOKS_S), (
        "no longer caught where it was, nor soon: look with `make sim ARGS=--mutations`, and write down the seed"
    )


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=lambda mutation: mutation.name)
def test_a_promise_that_is_switched_off_is_caught_by_whoever_does_not_know_where(mutation: Mutation) -> None:
    assert is_caught(mutation, range(1, mutation.seeds + 1))


def test_the_public_checkers_see_it_too() -> None:
    """In what was recorded, without a look at the log."""
    with MUTATIONS["rule 1"].switched_off():
        found = (problem for seed in range(1, 30) for problem in play(drawn(seed)).problems)
        assert any(problem.startswith("history: not PRAM") for problem in found)
