"""What brokers do, and what happens to them."""

from __future__ import annotations

import random

from .act import Act
from .world import World


def end_broker(world: World, chance: random.Random) -> None:
    world.end_broker(chance.choice(["kill", "kill", "power", "power", "stop"]), chance)


def sync(world: World, chance: random.Random) -> None:
    if world.broker is not None and world.is_awake(world.broker):
        world.broker.now = world.clock.now
        world.broker.sync(chance.choice(list(world.broker.owned)))


def beat(world: World, _chance: random.Random) -> None:
    if world.broker is not None and world.is_awake(world.broker):
        world.broker.now = world.clock.now
        world.broker.beat()


def set_the_clock(world: World, chance: random.Random) -> None:
    """Somebody sets the wall clock, an hour or a day back or forth: a takeover after that reads it."""
    seconds = chance.choice([3600.0, -3600.0, 86400.0, -86400.0])
    world.clock.set_back_or_forth(seconds)
    world.trace.note(f"the wall clock goes {seconds:+.0f} s")


ACTS = [
    Act("end broker", end_broker, 3, kinds=("alone",)),
    Act("sync", sync, 8, kinds=("alone",)),
    Act("beat", beat, 8, kinds=("alone",)),
    Act("set the clock", set_the_clock, 1),
]
