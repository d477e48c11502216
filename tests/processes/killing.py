"""Rounds of kills over a `World`, and everything that is not as it was promised at their end."""

from __future__ import annotations

import faulthandler
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from paramstream.consistency.checking import Model, check_history

from .audit import complaints, disorder, repeats, unlogged_complaints
from .reference import Reference, digest_of
from .world import REPLICAS, TOPICS, Home, World

SEASON_ROUNDS = 25
"""After so many everything is held against the log, and begins anew: a replica that starts reads all there is."""

MakeHome = Callable[[Path, random.Random], Home]


def run_kills(folder: Path, make_home: MakeHome, seed: int, rounds: int) -> None:
    """Kill something `rounds` times, start it again, and hold what everybody was told against the log."""
    # Each wait in here is bounded and there are many: the time that one test may take is not for this one.
    faulthandler.cancel_dump_traceback_later()
    for first in range(0, rounds, SEASON_ROUNDS):
        place = folder / f"from-round-{first}"
        place.mkdir()
        chance = random.Random(f"{seed}, from {first}")
        with World(place, make_home(place, chance), chance) as world:
            run_season(world, range(first, min(first + SEASON_ROUNDS, rounds)), seed)


def run_season(world: World, rounds: range, seed: int) -> None:
    world.start()
    for number in rounds:
        # Of its own, so that the victims of a seed are the same whatever else was chosen meanwhile.
        chance = random.Random(f"{seed}, round {number}")
        time.sleep(chance.uniform(0.0, 0.4))  # The random moment; nothing is waited for here.
        victim = chance.choice(world.victims)
        print(f"seed {seed}, round {number}: {victim}")
        world.read_journals(number)
        world.kill(victim)
        time.sleep(chance.uniform(0.0, 0.2))
        if victim not in world.home.others:
            world.spawn(victim)
        world.follow_tails()
        if chance.random() < 0.7:  # Else the next kill comes while this one is still being mended.
            world.await_progress()
    world.await_progress()
    standing, digests = world.finish()
    world.read_journals(rounds.stop)
    print(story_of(world, standing))
    found = list(islice(faults(world, standing, digests), 20))
    assert not found, f"seed {seed}, rounds {rounds.start} to {rounds.stop - 1}: {found[0]}\n" + "\n".join(found[1:])


def faults(world: World, standing: dict[str, Reference], digests: dict[str, str]) -> Iterator[str]:
    """Everything that is not as it was promised."""
    home = world.home
    for name, journal in world.journals.items():
        lived = name in world.lived
        for topic, persistence in TOPICS.items():
            calls = [called for called in journal.calls.values() if called.topic == topic]
            if persistence == "none":
                yield from unlogged_complaints(standing[topic], calls, lived=lived, refusals=home.refusals)
            else:
                may_lose = home.may_lose(persistence)
                yield from complaints(standing[topic], calls, lived=lived, may_lose=may_lose, refusals=home.refusals)
    for topic, persistence in TOPICS.items():
        reference, tail = standing[topic], world.tails[topic]
        yield from (f"{topic}: {repeat}" for repeat in repeats(reference))
        yield from (f"{topic}: {problem}" for problem in disorder(tail.events.values()))
        for at in tail.events.keys() ^ reference.events.keys():
            where = "the log" if at in reference.events else "the standing subscription"
            yield f"{topic}: only {where} has {reference.events.get(at) or tail.events.get(at)}"
        if tail.lost and persistence != "none" and not home.may_lose(persistence):
            yield f"{topic}: {tail.lost} events were seen and lost"
    yield from inconsistent(world)
    expected = digest_of(standing.values())
    for name in REPLICAS:
        if digests[name] != expected:
            yield f"{name} has the digest {digests[name]}, and the log says {expected}"


def inconsistent(world: World) -> Iterator[str]:
    """What the histories that everybody recorded say against the models that were promised; causal+ is causal, and more."""
    histories = sorted(world.folder.glob("*.jsonl"))
    causal = [path for path in histories if REPLICAS.get(path.stem) != "pram"]
    for model, files in ((Model.PRAM, histories), (Model.CONVERGING, causal)):
        verdict = check_history(files, model)
        print(f"{model}: {verdict.operations} operations, {verdict.deliveries} lines of delivery")
        if not verdict.ok:
            yield f"the histories are not {model}: {verdict.witness or verdict.faults}"


def story_of(world: World, standing: dict[str, Reference]) -> str:
    """What stands, and how the calls ended; those of publishers that were killed first ended as "killed"."""
    calls = (called for journal in world.journals.values() for called in journal.calls.values())
    ended = Counter(f"{called.topic}: {(called.outcomes or ['killed'])[0]}" for called in calls)
    stands = {topic: len(reference.events) for topic, reference in standing.items()}
    lost = {topic: tail.lost for topic, tail in world.tails.items()}
    return f"events that stand: {stands}; seen and lost: {lost}; calls: {dict(sorted(ended.items()))}"
