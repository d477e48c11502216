"""Many worlds by hand: the same seed gives the same trace, and a failure is told in short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.runner import report_of, verdict_of
from simulation.scenario import Scenario, Step, drawn
from simulation.shrink import shrunk

TESTS = Path(__file__).parents[1]


def simulation(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "simulation", *arguments]
    return subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_same_seed_gives_the_same_trace_under_any_hash_seed() -> None:
    told = [simulation("--seeds", "1:8", "--jobs", "1", hash_seed=seed) for seed in ("0", "1", "4711")]
    assert [run.returncode for run in told] == [0, 0, 0], told[0].stdout
    traces = {run.stdout.partition("trace ")[2].partition(",")[0] for run in told}
    assert len(traces) == 1 and "" not in traces


def test_a_failing_seed_is_told_with_its_first_bad_event_and_a_short_scenario() -> None:
    run = simulation("--seeds", "1", "--jobs", "1", "--mutation", "gate")
    assert run.returncode == 1
    assert "seed 1 fails" in run.stdout and "first bad event" in run.stdout and "Scenario.of(1, " in run.stdout


def test_a_scenario_reads_back_as_it_is_written() -> None:
    scenario = drawn(3)
    assert eval(str(scenario), {"Scenario": Scenario}) == scenario


def test_a_shrunken_scenario_has_only_the_steps_that_matter() -> None:
    scenario = Scenario(1, tuple(Step(number, "put") for number in range(100)))

    def fails(tried: Scenario) -> bool:
        return {17, 60} <= {step.number for step in tried.steps}

    short = shrunk(scenario, fails)
    assert [step.number for step in short.steps] == [17, 60]
    assert all(step.act == "rest" for step in short.steps)


@pytest.mark.slow
def test_what_a_failure_is_shrunk_to_fails_too() -> None:
    verdict = next(v for v in (verdict_of(drawn(seed), "undo") for seed in range(1, 200)) if v.problems)
    report = report_of(verdict, "undo")
    assert len(report.shrunk.steps) < len(verdict.scenario.steps) / 2
    assert verdict_of(report.shrunk, "undo").kind == verdict.kind
