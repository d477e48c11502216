"""Broker, publishers and replicas are killed at random moments over a local log, and nothing that was promised is missing.

pytest tests/integration/test_kills.py                        a few rounds
pytest tests/integration/test_kills.py -m slow                fifty
pytest tests/integration/test_kills.py --rounds 200 --seed 7  as long as you like, with the victims of that seed
"""

from __future__ import annotations

import faulthandler
import time
from collections import Counter
from pathlib import Path

import pytest

from processes.audit import complaints, disorder
from processes.world import PUBLISHERS, REPLICAS, World

VICTIMS = ("broker", "broker", *PUBLISHERS, *REPLICAS)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    given: int = request.config.option.seed
    return given


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int | None:
    given: int | None = request.config.option.rounds
    return given


def outcomes_of(world: World) -> Counter[str]:
    """How many calls ended how; those of publishers that were killed first ended as "killed"."""
    calls = (called for journal in world.journals.values() for called in journal.calls.values())
    return Counter(called.outcomes[0] if called.outcomes else "killed" for called in calls)


def run_kills(world: World, rounds: int) -> None:
    """Kill something `rounds` times, start it again, and hold what everybody was told against the log."""
    # Each wait in here is bounded and there are many: the time that one test may take is not for this one.
    faulthandler.cancel_dump_traceback_later()
    chance = world.chance
    lived = {f"{name}.1" for name in PUBLISHERS}
    world.start()
    for round_number in range(rounds):
        time.sleep(chance.uniform(0.0, 0.4))  # The random moment; nothing is waited for here.
        victim = chance.choice(VICTIMS)
        print(f"round {round_number}: {victim} is killed")
        world.kill(victim)
        lived.discard(f"{victim}.{world.lives.get(victim, 0)}")
        time.sleep(chance.uniform(0.0, 0.2))
        world.spawn(victim)
        if victim in PUBLISHERS:
            lived.add(f"{victim}.{world.lives[victim]}")
        world.follow_tail()
        if chance.random() < 0.7:  # Else the next kill comes while this one is still being mended.
            world.await_progress()
    world.await_progress()
    reference, digests = world.finish()
    print(f"{len(reference.events)} events stand; {world.lost_events} were seen and lost; calls: {outcomes_of(world)}")

    found = [
        complaint
        for name, journal in world.journals.items()
        for complaint in complaints(
            reference, list(journal.calls.values()), lived=name in lived, may_lose=world.may_lose
        )
    ]
    assert not found, "\n".join(found[:20])
    repeated = [identity for identity, count in reference.identities.items() if count > 1]
    assert not repeated, f"sequences that stand in the log more than once: {repeated[:20]}"
    assert not list(disorder(reference))
    assert world.tailed.keys() == reference.events.keys(), (
        "the standing subscription saw something else than the log holds"
    )
    assert world.may_lose or not world.lost_events
    assert digests == dict.fromkeys(REPLICAS, reference.digest)


DEATHS = pytest.mark.parametrize(
    ("persistence", "power"),
    [
        pytest.param("write_back", False, id="kills"),
        pytest.param("write_back", True, id="power failures"),
        pytest.param("write_through", True, id="power failures under write_through"),
    ],
)


@DEATHS
def test_nothing_promised_is_missing_after_a_few_kills(
    tmp_path: Path, seed: int, rounds: int | None, persistence: str, power: bool
) -> None:
    with World(tmp_path, seed, persistence=persistence, power=power) as world:
        run_kills(world, 6 if rounds is None else rounds)


@pytest.mark.slow
@DEATHS
def test_nothing_promised_is_missing_after_fifty_kills(
    tmp_path: Path, seed: int, rounds: int | None, persistence: str, power: bool
) -> None:
    with World(tmp_path, seed, persistence=persistence, power=power) as world:
        run_kills(world, 50 if rounds is None else rounds)
