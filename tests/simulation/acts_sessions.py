"""A second process opens a producer name that another one still uses (H11): the older session must be fenced."""

from __future__ import annotations

import random

from .act import Act
from .world import World

MOST_SESSIONS = 6


def open_name_again(world: World, chance: random.Random) -> None:
    """The first process knows nothing of it; it may sleep, and go on later with what it was about to send."""
    if len(world.producers) < MOST_SESSIONS:
        older = chance.choice(world.producers)
        if older.core is not None:
            world.add_producer(older.name)
            if chance.random() < 0.5:
                world.asleep[older] = world.clock.now + chance.uniform(0.0, 3.0)
            world.trace.note(f"another process opens {older.name}")


ACTS = [
    Act("open name again", open_name_again, 1),
]
