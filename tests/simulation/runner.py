"""Many seeds, in several processes of which each is bounded in time, and what is told about a failure."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType

from .mutations import MUTATIONS
from .play import FirstBadEvent, Verdict, first_bad_event, play
from .scenario import Scenario, drawn
from .shrink import shrunk

CHUNK = 10
WORLD_S = 60
"""A world takes a tenth of a second: one that takes so long never ends."""

SHRINK_S = 120
"""Of a scenario no more is left out then."""


class WorldHangs(Exception):
    """A scenario did not end in time."""


@contextmanager
def _in_time() -> Generator[None]:
    """In the main thread of a process only."""

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise WorldHangs(f"no end within {WORLD_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(WORLD_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def verdict_of(scenario: Scenario, mutation: str | None = None) -> Verdict:
    with _with(mutation), _in_time():
        return play(scenario)


def _verdicts(seeds: Sequence[int], steps: int, mutation: str | None) -> list[Verdict]:
    # What the library warns of is what a world does to it.
    logging.getLogger("paramstream").setLevel(logging.CRITICAL)
    return [verdict_of(drawn(seed, steps), mutation) for seed in seeds]


def verdicts(seeds: Sequence[int], steps: int, jobs: int, mutation: str | None = None) -> Iterator[Verdict]:
    """Of all seeds, in the order in which they are known. Whoever stops asking ends the processes."""
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    if jobs == 1:
        for chunk in chunks:
            yield from _verdicts(chunk, steps, mutation)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        try:
            for done in as_completed([pool.submit(_verdicts, chunk, steps, mutation) for chunk in chunks]):
                yield from done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _with(mutation: str | None) -> AbstractContextManager[None]:
    return MUTATIONS[mutation].switched_off() if mutation else nullcontext()


@dataclass(frozen=True)
class Report:
    """What is told of a failing seed."""

    verdict: Verdict
    bad: FirstBadEvent | None
    shrunk: Scenario
    bad_of_shrunk: FirstBadEvent | None

    def __str__(self) -> str:
        lines = [f"seed {self.verdict.scenario.seed} fails:", *_indented(self.verdict.problems[:5])]
        if self.bad is not None:
            lines += [f"first bad event: {self.bad.when}", *_indented(self.bad.problems[:5])]
        if self.bad_of_shrunk is not None:
            lines += [f"with only the steps that matter: {self.bad_of_shrunk.when}"]
            lines += _indented(self.bad_of_shrunk.problems[:5])
            lines += ["what happened before:", *_indented(self.bad_of_shrunk.lines)]
        lines += ["to be kept in regressions.py:", f"    Regression({self.verdict.kind!r}, {self.shrunk!s}),"]
        return "\n".join(lines)


def report_of(verdict: Verdict, mutation: str | None = None) -> Report:
    """Plays the scenario again and again until it is short."""

    until = time.monotonic() + SHRINK_S

    def fails(scenario: Scenario) -> bool:
        return time.monotonic() < until and verdict_of(scenario, mutation).kind == verdict.kind

    short = shrunk(verdict.scenario, fails)
    with _with(mutation):
        bad = _first_bad_event(verdict.scenario)
        return Report(verdict, bad, short, _first_bad_event(short))


def _first_bad_event(scenario: Scenario) -> FirstBadEvent | None:
    with _in_time():
        return first_bad_event(scenario)


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]
