"""Faults of the network."""

from __future__ import annotations

import random

from .act import Act
from .network import ALL
from .world import World


def reset(world: World, chance: random.Random) -> None:
    if world.network.live:
        world.lose(chance.choice(world.network.live), chance)


def stall(world: World, chance: random.Random) -> None:
    """One partition reaches one consumer late."""
    consumer = chance.choice(world.consumers)
    partition = chance.choice(consumer.follows)
    world.stalled[consumer.name, partition] = world.clock.now + chance.uniform(0.0, 2.0)


def fill_pipes(world: World, chance: random.Random) -> None:
    """Of one client to the broker, of the broker to all of its clients; or they are free again."""
    producer = chance.choice(world.producers)
    producer.pipe_is_full = chance.random() < 0.3
    for connection in world.network.live:
        connection.pipe = chance.choice([1, 4, ALL, ALL])
    world.free_pipes()


def cut_one_way(world: World, chance: random.Random) -> None:
    """One direction of a connection passes nothing for a while, and nobody is told."""
    if world.network.live:
        connection = chance.choice(world.network.live)
        until = world.clock.now + chance.uniform(0.0, 3.0)
        if chance.random() < 0.5:
            connection.up_from = until
        else:
            connection.down_from = until


def slow_down(world: World, chance: random.Random) -> None:
    """A connection passes only a few items a step; or it is fast again."""
    if world.network.live:
        chance.choice(world.network.live).rate = chance.choice([1, 1, 2, 4, ALL])


def pause(world: World, chance: random.Random) -> None:
    """A process does nothing for a while, and then goes on with what it knew."""
    world.asleep[chance.choice(world.processes)] = world.clock.now + chance.uniform(0.0, 3.0)


ACTS = [
    Act("reset", reset, 2),
    Act("stall", stall, 8),
    Act("fill pipes", fill_pipes, 2),
    Act("cut one way", cut_one_way, 4),
    Act("slow down", slow_down, 3),
    Act("pause", pause, 1),
]
