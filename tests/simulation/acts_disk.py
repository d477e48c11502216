"""Faults of the broker's disk, deaths amidst what is done with it, and what leaves the log."""

from __future__ import annotations

import errno
import random

from .act import Act
from .files import Fault
from .world import World


def fail_disk(world: World, chance: random.Random) -> None:
    """Some operation fails soon, once or a few times in a row."""
    operation = chance.choice(["write", "write", "sync", "sync", "create", "truncate", "sync folder"])
    code = chance.choice([errno.EIO, errno.EIO, errno.ENOSPC])
    after, times = chance.choice([0, 0, 1, 3, 9]), chance.choice([1, 1, 1, 2, 3])
    world.disk.files.faults.append(Fault(operation, code, after, times, random.Random(chance.getrandbits(32))))
    world.trace.note(f"{operation} fails {times} times, after {after}")


def fill_disk(world: World, chance: random.Random) -> None:
    """There is no room on it for a while."""
    times = chance.choice([1, 2, 5, 20])
    world.disk.files.faults.append(Fault("grow", errno.ENOSPC, 0, times, random.Random(chance.getrandbits(32))))
    world.trace.note(f"the disk has no room {times} times")


def kill_amidst(world: World, chance: random.Random) -> None:
    """The broker's process is killed between two steps of whatever it does with its disk next, or within one."""
    operations, world.power_fails_next = chance.choice([1, 2, 3, 5, 9, 20]), chance.random() < 0.5
    world.disk.files.kill_in(operations, random.Random(chance.getrandbits(32)))
    world.trace.note(f"the broker dies amidst operation {operations}")


def trim(world: World, _chance: random.Random) -> None:
    if world.broker is not None and world.is_awake(world.broker):
        world.broker.now = world.clock.now
        world.broker.trim()


ACTS = [
    Act("fail disk", fail_disk, 2, kinds=("alone",)),
    Act("fill disk", fill_disk, 0.5, kinds=("alone",)),
    Act("kill amidst", kill_amidst, 2, kinds=("alone",)),
    Act("trim", trim, 3, kinds=("alone",)),
]
