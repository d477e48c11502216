"""One scenario, played and judged: a safety phase, then a phase in which everything heals, which must come to an end."""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

from paramstream.brokers import partition
from paramstream.consistency.position import MAX_OFFSET
from paramstream.eventlog import counting

from .judge import problems, safety_problems
from .kinds import kind_of
from .scenario import Scenario, do
from .shared_world import SharedWorld
from .world import World

LAST_OFFSETS = [MAX_OFFSET, MAX_OFFSET, MAX_OFFSET, 20]
"""In some worlds an epoch is soon full, and the next one is opened amidst everything. (Shared ones choose for themselves.)"""


@dataclass(frozen=True)
class Verdict:
    scenario: Scenario
    problems: tuple[str, ...]
    """Each begins with the name of the check that found it."""
    digest: str
    """Of the whole trace."""

    @property
    def kind(self) -> str:
        """What was found, in few words: a shorter scenario must show the same."""
        if not self.problems:
            return ""
        check, _, rest = self.problems[0].partition(": ")
        return f"{check}: {rest.partition(': ')[0]}" if check == "raised" else check


@contextmanager
def a_world(seed: int) -> Generator[World]:
    offsets = random.Random(f"{seed}/offsets").choice(LAST_OFFSETS)
    with mock.patch.object(partition, "MAX_OFFSET", offsets), mock.patch.object(counting, "MAX_OFFSET", offsets):
        world = SharedWorld(seed) if kind_of(seed) == "shared" else World(seed)
        try:
            yield world
        finally:
            world.close()


def play(scenario: Scenario) -> Verdict:
    with a_world(scenario.seed) as world:
        try:
            for step in scenario.steps:
                do(world, step)
            found = problems(world) if world.heal() else [*_stuck(world), *safety_problems(world)]
        except Exception as error:  # noqa: BLE001 - whatever a core raises is something that was found
            found = [_raised(error)]
        return Verdict(scenario, tuple(found), world.trace.digest)


@dataclass(frozen=True)
class FirstBadEvent:
    """The earliest step after which a promise is broken; `None` where all holds until everything has healed."""

    step: int | None
    problems: tuple[str, ...]
    lines: tuple[str, ...]
    """The end of the trace up to there."""

    @property
    def when(self) -> str:
        return f"after step {self.step}" if self.step is not None else "once everything has healed"


def first_bad_event(scenario: Scenario, lines: int = 25) -> FirstBadEvent | None:
    """Play it again and look after each step. `None` where nothing is found at all."""
    with a_world(scenario.seed) as world:
        number: int | None = None
        try:
            for step in scenario.steps:
                number = step.number
                do(world, step)
                if found := safety_problems(world):
                    return FirstBadEvent(number, tuple(found), tuple(world.trace.lines[-lines:]))
            number = None
            found = problems(world) if world.heal() else [*_stuck(world), *safety_problems(world)]
        except Exception as error:  # noqa: BLE001 - as above
            found = [_raised(error)]
        return FirstBadEvent(number, tuple(found), tuple(world.trace.lines[-lines:])) if found else None


def _stuck(world: World) -> list[str]:
    world.check_logs()
    return [f"stuck: {left}" for left in world.unsettled()]


def _raised(error: Exception) -> str:
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = f"{at.tb_frame.f_code.co_filename.rpartition('/')[2]}:{at.tb_lineno}" if at is not None else "?"
    return f"raised: {type(error).__name__} at {where}: {error}"
