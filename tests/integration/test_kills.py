"""Brokers, publishers and replicas are killed at random moments, and nothing that was promised is missing.

pytest tests/integration/test_kills.py                                 ten rounds over a local log, a few of power failures
pytest tests/integration/test_kills.py -m slow                         two hundred
pytest tests/integration/test_kills.py -m slow --rounds 50 --seed 11   as many as you like, with the victims of that seed

A failure names seed and round. The moment of a kill is chosen by the seed, and what runs at that moment by the machine: run
the seed some times before you believe that a fault is gone.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from processes.killing import MakeHome, run_kills
from processes.local_home import LocalHome
from processes.world import Home


def local(folder: Path, chance: random.Random) -> Home:
    return LocalHome(folder, chance)


def failing_power(folder: Path, chance: random.Random) -> Home:
    return LocalHome(folder, chance, power=True)


@pytest.mark.parametrize(
    ("make_home", "few"),
    [pytest.param(local, 10, id="kills"), pytest.param(failing_power, 5, id="power failures and full disks")],
)
def test_nothing_promised_is_missing_after_a_few_kills(
    tmp_path: Path, seed: int, rounds: int | None, make_home: MakeHome, few: int
) -> None:
    run_kills(tmp_path, make_home, seed, few if rounds is None else rounds)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make_home", [pytest.param(local, id="kills"), pytest.param(failing_power, id="power failures and full disks")]
)
def test_nothing_promised_is_missing_after_two_hundred_kills(
    tmp_path: Path, seed: int, rounds: int | None, make_home: MakeHome
) -> None:
    run_kills(tmp_path, make_home, seed, 200 if rounds is None else rounds)
