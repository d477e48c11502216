"""What happens to brokers that share a log, to the log, and to who owns what."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import cast

from .act import Act
from .kinds import Kind
from .process import SimProcess
from .shared_world import SharedWorld
from .world import World

SHARED: tuple[Kind, ...] = ("shared",)


def _to_one(do: Callable[[SharedWorld, SimProcess, random.Random], None]) -> Callable[[World, random.Random], None]:
    """To one of the brokers that run."""

    def act(world: World, chance: random.Random) -> None:
        shared = cast("SharedWorld", world)
        if shared.running:
            do(shared, shared.running[chance.choice(sorted(shared.running))], chance)

    return act


def move_slots(world: World, _chance: random.Random) -> None:
    world.trace.note("the slots are shared out anew")
    cast("SharedWorld", world).group.share()


def start_brokers(world: World, _chance: random.Random) -> None:
    shared = cast("SharedWorld", world)
    for name in shared.names:
        shared.start_one(name)


def await_durable(world: World, chance: random.Random) -> None:
    """Somebody asks what became of an accepted event, of his own or of somebody else."""
    asks, wrote = chance.choice(world.producers), chance.choice(world.producers)
    accepted = [(*where, at) for made in wrote.made[-10:] for where, at in made.call.positions.items()]
    if accepted:
        cast("SharedWorld", world).await_durable(asks, chance.sample(accepted, min(3, len(accepted))))


@_to_one
def kill(world: SharedWorld, process: SimProcess, chance: random.Random) -> None:
    world.kill(process, chance)


@_to_one
def stop(world: SharedWorld, process: SimProcess, _chance: random.Random) -> None:
    world.stop(process)


@_to_one
def pause_broker(world: SharedWorld, process: SimProcess, chance: random.Random) -> None:
    """It stops amidst whatever it does, and goes on with what it knew."""
    world.trace.note(f"{process.name} pauses")
    world.asleep[process] = world.clock.now + chance.uniform(0.0, 3.0)


@_to_one
def cut_from_the_log(world: SharedWorld, process: SimProcess, chance: random.Random) -> None:
    world.trace.note(f"{process.name} is cut from the log")
    world.kafka.cut_until[process.name] = world.clock.now + chance.uniform(0.0, 3.0)


@_to_one
def lose_the_group(world: SharedWorld, process: SimProcess, chance: random.Random) -> None:
    """The group does not hear of it, though it serves and writes: others take its slots, and it does not know."""
    world.trace.note(f"the group does not hear of {process.name}")
    world.silent_until[process] = world.clock.now + chance.uniform(0.5, 2.5)


def freeze_the_log(world: World, chance: random.Random) -> None:
    world.trace.note("the log freezes")
    cast("SharedWorld", world).kafka.frozen_until = world.clock.now + chance.uniform(0.0, 2.0)


ACTS = [
    Act("move slots", move_slots, 1, kinds=SHARED),
    Act("await durable", await_durable, 6, is_fault=False, kinds=SHARED),
    Act("kill", kill, 0.5, kinds=SHARED),
    Act("stop", stop, 0.5, kinds=SHARED),
    Act("start brokers", start_brokers, 4, is_fault=False, kinds=SHARED),
    Act("pause broker", pause_broker, 1.5, kinds=SHARED),
    Act("cut from the log", cut_from_the_log, 2, kinds=SHARED),
    Act("lose the group", lose_the_group, 2, kinds=SHARED),
    Act("freeze the log", freeze_the_log, 0.5, kinds=SHARED),
]
