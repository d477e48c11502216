"""What happens to replicas: they die, begin again in every way that there is, and take snapshots."""

from __future__ import annotations

import random

from .act import Act
from .world import World


def crash_replica(world: World, chance: random.Random) -> None:
    running = [consumer for consumer in world.consumers if consumer.is_running]
    if running:
        world.crash_consumer(chance.choice(running), chance)


def start_replica(world: World, chance: random.Random) -> None:
    for consumer in world.consumers:
        if not consumer.is_running:
            world.start_consumer(consumer, chance)


def take_snapshot(world: World, chance: random.Random) -> None:
    consumer, topic = chance.choice(world.consumers), chance.choice(world.topics)
    if consumer.begin_snapshot(topic):
        world.trace.note(f"{consumer.name} begins a snapshot of {topic.name}")


def write_back(world: World, chance: random.Random) -> None:
    """Some replica that may flushes what is dirty; it takes the changelog from whoever wrote it before."""
    topic = chance.choice(world.topics)
    able = [consumer for consumer in world.consumers if consumer.may_flush(topic)]
    if able:
        consumer = chance.choice(able)
        if consumer.begin_flush(topic, world.changelogs):
            world.trace.note(f"{consumer.name} begins to flush {topic.name}")


def compact(world: World, chance: random.Random) -> None:
    world.changelogs.compact(chance)


def fill_store(world: World, chance: random.Random) -> None:
    """A replica's tier is full, so that an event finds no room, or half of it does; or it has room again."""
    consumer, leaves = chance.choice(world.consumers), chance.choice([0, 300, 600, 900, 1500])
    if chance.random() < 0.5:
        consumer.free_store()
    elif consumer.fill_store(leaves):
        world.trace.note(f"the store of {consumer.name} has room for {leaves} bytes")


ACTS = [
    Act("crash replica", crash_replica, 4),
    Act("start replica", start_replica, 8, is_fault=False),
    Act("take snapshot", take_snapshot, 12),
    Act("write back", write_back, 10),
    Act("compact", compact, 2),
    Act("fill store", fill_store, 2),
]
