"""What users do: put, publish a version, jump to the newest one; and a producer that crashes."""

from __future__ import annotations

import random

from paramstream.consistency.vector import PartitionId

from .act import Act
from .consumer import SimConsumer
from .producer import How, SimProducer
from .seen import Seen
from .world import World
from .writes import keys_of

HOW: list[How] = [*["put"] * 7, *["delete"] * 2, *["with a deadline"] * 2, "for a version", "twice"]  # type: ignore[list-item]


def rest(_world: World, _chance: random.Random) -> None:
    """Nobody does anything: things only move on."""


def put(world: World, chance: random.Random) -> None:
    producer, topic = chance.choice(world.producers), chance.choice(world.topics)
    several = chance.randint(2, topic.partitions) if topic.partitions > 1 and chance.random() < 0.3 else 1
    keys: dict[PartitionId, bytes] = {
        partition: chance.choice(keys_of(partition)) for partition in chance.sample(topic.state, several)
    }
    how, observes = chance.choice(HOW), chance.random() < 0.7
    if producer.can_call() and world.is_awake(producer):
        seen = observed(world, producer, chance).read() if observes else Seen()
        producer.put(topic, keys, seen, how)
        world.trace.note(f"{producer.name} puts {keys}: {how}")


def publish(world: World, chance: random.Random) -> None:
    producer, topic = chance.choice(world.producers), chance.choice(world.topics)
    if producer.can_call() and world.is_awake(producer):
        world.versions += 1
        producer.publish(topic, world.versions, observed(world, producer, chance).read())
        world.trace.note(f"{producer.name} publishes the {world.versions}th version")


def jump(world: World, chance: random.Random) -> None:
    """Everybody who is behind the newest version, and who is asked, passes what lies between."""
    for consumer in chance.sample(world.consumers, 2):
        for topic in world.topics:
            if topic.weights in consumer.follows and consumer.is_connected:
                core = world.owner_for(consumer, topic.weights)
                at = None if core is None else core.describe(core.state.start, world.clock.now_ns)
                if at is not None and consumer.jump(at):
                    world.trace.note(f"{consumer.name} jumps to {at.latest:x} of {topic.weights}")


def crash_producer(world: World, chance: random.Random) -> None:
    producer = chance.choice(world.producers)
    if producer.connection is not None:
        world.trace.note(f"{producer.name} crashes")
        world.disconnect(producer, chance)
        producer.crash()


def observed(world: World, producer: SimProducer, chance: random.Random) -> SimConsumer:
    """Mostly the same one."""
    return world.reads[producer.name] if chance.random() < 0.7 else chance.choice(world.consumers)


ACTS = [
    Act("rest", rest, 0),
    Act("put", put, 60, is_fault=False),
    Act("publish", publish, 6),
    Act("jump", jump, 14),
    Act("crash producer", crash_producer, 1),
]
