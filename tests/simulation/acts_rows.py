"""What users do to rows: write, train, delete."""

from __future__ import annotations

import random

from .act import Act
from .acts_calls import observed
from .rows import RowHow, row_keys_of
from .seen import Seen
from .world import World

HOW: list[RowHow] = ["write", "gradients", "gradients", "gradients", "delete"]


def change_rows(world: World, chance: random.Random) -> None:
    producer, topic = chance.choice(world.producers), chance.choice(world.topics)
    several = chance.randint(2, topic.partitions) if topic.partitions > 1 and chance.random() < 0.3 else 1
    keys = {partition: chance.choice(row_keys_of(partition)) for partition in chance.sample(topic.state, several)}
    how, observes = chance.choice(HOW), chance.random() < 0.7
    if producer.can_call() and world.is_awake(producer):
        producer.change_rows(topic, keys, observed(world, producer, chance).read() if observes else Seen(), how)
        world.trace.note(f"{producer.name} changes rows {keys}: {how}")


ACTS = [Act("change rows", change_rows, 10, is_fault=False)]
