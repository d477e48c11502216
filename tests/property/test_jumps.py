"""Jumps in random worlds: nobody is stuck, and outside of a jump the ordering promise holds for all that users see."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from feeding.writer import Writer
from paramstream.consistency.gate import Ordering
from paramstream.consistency.position import epoch_of
from paramstream.consistency.vector import EMPTY, PartitionId, VersionVector
from paramstream.consumers.effects import Deliver, SendFetch, SendFollow, Step
from paramstream.consumers.subscription_core import SubscriptionCore
from paramstream.events.codec import decode_event
from paramstream.transport.messages import Demoted, Fetched, Following

WEIGHTS: PartitionId = (7, 2)
PARTITIONS: list[PartitionId] = [(7, 0), (7, 1), WEIGHTS]


class World:
    """Three partitions, whose events rest on any that were sequenced before, and one consumer that jumps in the third."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.writers = {partition: Writer(partition) for partition in PARTITIONS}
        self.ordering = self.random.choice(list(Ordering))
        self.core = SubscriptionCore(self.ordering, dict.fromkeys(PARTITIONS, 0))
        self.durable = 0
        """Of the weights: what a jump may lead to."""
        self.rests_on: dict[tuple[PartitionId, int], VersionVector[int]] = {}
        self.ends: list[tuple[int, int]] = []
        self.fanned: dict[PartitionId, int] = {}
        self.fetches: list[SendFetch] = []
        self.follows: list[SendFollow] = []
        self.jumps = 0

    # --- the others ---

    def write(self) -> None:
        partition = self.random.choice([*PARTITIONS, WEIGHTS])
        seen = {p: self.random.choice(sorted(w.log)) for p, w in self.writers.items() if p != partition}
        own, observed = (
            {p: at for p, at in seen.items() if self.random.random() < share} for share in (0.4, 0.4)
        )  # fmt: skip
        writer = self.writers[partition]
        writer.put(b"k", b"", own=own, observed=observed)
        asked = VersionVector(own) if self.ordering is Ordering.PRAM else VersionVector(own).merge(observed)
        self.rests_on[partition, writer.position] = asked

    def end_epoch(self) -> None:
        """The owner of the weights is killed; what it had not made durable may be lost."""
        writer = self.writers[WEIGHTS]
        end = self.random.choice([at for at in writer.log if at >= self.durable])
        writer.open_epoch(end=end)
        self.ends.append((epoch_of(end), end))
        self.fanned.pop(WEIGHTS, None)
        self.disconnect()

    # --- the consumer ---

    def run(self) -> None:
        for effect in self.core.steps():
            match effect:
                case SendFollow():
                    self.fanned.pop(effect.partition, None)
                    self.follows.append(effect)
                case SendFetch():
                    self.fetches.append(effect)
                case Deliver() if not effect.passed:
                    self._check_order(effect)
                case _:
                    pass
            if isinstance(effect, Step):
                self.core.confirm(effect)
            self._check_shown()

    def _check_order(self, step: Deliver) -> None:
        """What it rests on is applied, or passed."""
        vector = step.stamp.own if self.ordering is Ordering.PRAM else step.stamp.dependencies()
        for other, at in vector.items():
            counted = self.core.received(other) if other == WEIGHTS else self.core.position(other)
            assert other == step.partition or counted >= at or self._is_lost(other, at)

    def _check_shown(self) -> None:
        """Outside of a jump all that rests below what is shown is shown too, whether it was passed or applied."""
        if self.core.jumping_to(WEIGHTS) is not None:
            return
        shown = self.core.positions()
        for (partition, at), needed in self.rests_on.items():
            if at <= shown[partition] and not self._is_lost(partition, at):
                for other, position in needed.items():
                    assert shown[other] >= position or self._is_lost(other, position), (partition, at, other, position)

    def _is_lost(self, partition: PartitionId, at: int) -> bool:
        return at not in self.writers[partition].log

    def jump(self) -> None:
        writer = self.writers[WEIGHTS]
        targets = [at for at in writer.log if self.core.received(WEIGHTS) + 1 < at <= self.durable and at & 0xFFFF]
        if not targets or self.core.jumping_to(WEIGHTS) is not None:
            return
        target = self.random.choice(targets)
        start = self.random.choice([at for at in writer.log if self.core.received(WEIGHTS) < at < target] or [0])
        if not start:
            return
        context: VersionVector[int] = EMPTY
        for at in writer.log:
            if at < target:
                context = context.merge(self.rests_on.get((WEIGHTS, at), EMPTY))
        self.jumps += 1
        self.core.jump(WEIGHTS, start, target, context, self.ends)
        self.run()

    def arrive(self) -> None:
        """Follows and fetches are answered, and a few events of a partition arrive."""
        follows, self.follows = self.follows, []
        for follow in follows:
            self.fanned[follow.partition] = follow.after
            ends = tuple(self.ends) if follow.partition == WEIGHTS else ()
            head = self.writers[follow.partition].position
            self.core.following(Following(*follow.partition, follow.after, head, self.durable, ends, 0))
            self.run()
        fetches, self.fetches = self.fetches, []
        for fetch in fetches:
            writer = self.writers[fetch.partition]
            frames = writer.after(fetch.after, self.random.randrange(1, 4))
            self.core.fetched(Fetched(fetch.id, *fetch.partition, len(frames), 0, writer.position, None), frames)
            self.run()
        partition = self.random.choice(PARTITIONS)
        if partition in self.fanned:
            for frame in self.writers[partition].after(self.fanned[partition], self.random.randrange(1, 5)):
                self.fanned[partition] = decode_event(frame).position
                self.core.event(frame)
                self.run()

    def demote(self) -> None:
        partition = self.random.choice(PARTITIONS)
        after = self.fanned.pop(partition, None)
        if after is not None:
            self.core.demoted(Demoted(*partition, after, self.writers[partition].position))
            self.run()

    def disconnect(self) -> None:
        self.core.disconnected()
        self.fanned.clear()
        self.fetches.clear()
        self.follows.clear()
        self.run()
        self.core.connected()
        self.run()

    def is_level(self) -> bool:
        return all(self.core.position(p) == writer.position for p, writer in self.writers.items())


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=100)
def test_whoever_jumps_is_never_stuck_and_ends_level_with_everybody(seed: int, losing: bool) -> None:
    world = World(seed)
    world.core.connected()
    world.run()
    for step in range(120):
        match world.random.randrange(14):
            case 0:
                world.disconnect()
            case 1:
                world.demote()
            case 2 if losing:
                world.end_epoch()
            case 3 | 4:
                world.durable = max(world.durable, world.random.choice(list(world.writers[WEIGHTS].log)))
            case 5 | 6:
                world.jump()
            case 7 | 8:
                world.arrive()
            case _:
                world.write()
        world.core.tick(step * 0.5)
        world.run()
    for step in range(2_000):
        if world.is_level():
            break
        world.arrive()
        world.core.tick(60 + step * 0.5)
        world.run()
    assert world.is_level()
    assert world.core.jumping_to(WEIGHTS) is None


def test_jumps_happen_in_these_worlds() -> None:
    jumps = 0
    for seed in range(10):
        world = World(seed)
        world.core.connected()
        world.run()
        for _ in range(100):
            world.random.choice([world.write, world.write, world.arrive, world.jump])()
            world.durable = world.writers[WEIGHTS].position
        jumps += world.jumps
    assert jumps > 10
