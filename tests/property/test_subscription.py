"""Whatever a connection loses, repeats or delays, every consumer applies the log, in order, and takes back what is lost."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from feeding.writer import Writer
from paramstream.consistency.delivery import check_deliveries
from paramstream.consistency.gate import Ordering
from paramstream.consistency.position import offset_of
from paramstream.consistency.stamp import Delivery, Stamp
from paramstream.consistency.vector import EMPTY, PartitionId
from paramstream.consumers.effects import Deliver, EpochBegan, SendFetch, SendFollow, Step, Undo
from paramstream.consumers.subscription_core import SubscriptionCore
from paramstream.transport.messages import Demoted, Fetched, Following, Heads, Heartbeat


class Network:
    """Three partitions and one consumer; a seed decides what happens to each frame."""

    def __init__(self, seed: int, *, durable_only: bool = False) -> None:
        self.random = random.Random(seed)
        self.writers = {(7, n): Writer((7, n)) for n in range(3)}
        self.durable = {partition: writer.position for partition, writer in self.writers.items()}
        self.core = SubscriptionCore(Ordering.CAUSAL, dict.fromkeys(self.writers, 0), durable_only=durable_only)
        self.durable_only = durable_only
        self.undone = 0
        self.fanned: dict[PartitionId, int] = {}
        self.fetches: list[SendFetch] = []
        self.follow_answers: list[Following] = []
        self.applied: dict[PartitionId, list[int]] = {partition: [] for partition in self.writers}
        self.deliveries: list[Delivery] = []
        self.now = 0.0

    def run(self) -> None:
        for effect in self.core.steps():
            match effect:
                case SendFollow():
                    self.fanned[effect.partition] = effect.after
                    heads = self.writers[effect.partition].position
                    self.follow_answers.append(
                        Following(*effect.partition, effect.after, heads, self.durable[effect.partition], (), 0)
                    )
                case SendFetch():
                    self.fetches.append(effect)
                case Undo():
                    self.undone += 1
                    kept = [at for at in self.applied[effect.partition] if at <= effect.end]
                    self.applied[effect.partition] = kept
                case Deliver():
                    assert not self.durable_only or effect.frame.position <= self.durable[effect.partition]
                    self.applied[effect.partition].append(effect.frame.position)
                    self.deliveries.append(Delivery(effect.partition, effect.stamp))
                case EpochBegan():
                    self.applied[effect.partition].append(effect.position)
                    record = Stamp("", 0, 0, EMPTY, EMPTY, effect.position, 0)
                    self.deliveries.append(Delivery(effect.partition, record))
                case _:
                    pass
            if isinstance(effect, Step):
                self.core.confirm(effect)

    def write(self) -> None:
        partition, writer = self.random.choice(list(self.writers.items()))
        others = {p: w.position for p, w in self.writers.items() if p != partition and offset_of(w.position)}
        own = {p: at for p, at in others.items() if self.random.random() < 0.5}
        writer.put(b"k", bytes(self.random.randrange(50)), own=own, observed=others)

    def lose_a_suffix(self) -> None:
        partition, writer = self.random.choice(list(self.writers.items()))
        standing = [at for at in sorted(writer.log)[-4:] if at >= self.durable[partition]]
        writer.open_epoch(end=self.random.choice(standing))
        self.durable[partition] = writer.position

    def sync(self) -> None:
        partition, writer = self.random.choice(list(self.writers.items()))
        self.durable[partition] = self.random.choice([at for at in writer.log if at >= self.durable[partition]])

    def fan_out(self, *, faulty: bool) -> None:
        for partition, after in list(self.fanned.items()):
            for frame in self.writers[partition].after(after):
                if faulty and self.random.random() < 0.2:
                    continue
                self.core.event(frame)
                if faulty and self.random.random() < 0.1:
                    self.core.event(frame)
                if self.random.random() < 0.5:
                    self.run()
            self.fanned[partition] = self.writers[partition].position
        self.run()

    def answer(self) -> None:
        answers, self.follow_answers = self.follow_answers, []
        for following in answers:
            self.core.following(following)
            self.run()
        fetches, self.fetches = self.fetches, []
        for fetch in fetches:
            writer = self.writers[fetch.partition]
            frames = writer.after(fetch.after, self.random.randrange(1, 4))
            answer = Fetched(fetch.id, *fetch.partition, len(frames), 0, writer.position, None)
            self.core.fetched(answer, frames)
            self.run()

    def reconnect(self) -> None:
        self.core.disconnected()
        self.fanned.clear()
        self.fetches.clear()
        self.follow_answers.clear()
        self.run()
        self.core.connected()
        self.run()

    def demote(self) -> None:
        partition = self.random.choice(list(self.writers))
        after = self.fanned.pop(partition, None)
        if after is not None:
            self.core.demoted(Demoted(*partition, after, self.writers[partition].position))
            self.run()

    def beat(self) -> None:
        self.now += 0.5
        heads = tuple(Heads(*p, w.position, self.durable[p], self.fanned.get(p, 0), 0) for p, w in self.writers.items())
        self.core.heartbeat(Heartbeat(heads))
        self.run()
        self.core.tick(self.now)
        self.run()

    def heal(self) -> None:
        self.durable = {partition: writer.position for partition, writer in self.writers.items()}
        for _ in range(200):
            self.answer()
            self.fan_out(faulty=False)
            self.beat()


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=60)
def test_a_hostile_connection_changes_nothing_of_what_is_applied_in_the_end(seed: int, losing: bool) -> None:
    check(Network(seed), losing)


@given(st.integers(0, 2**32))
@settings(max_examples=60)
def test_who_is_shown_durable_events_only_takes_nothing_back_and_has_all_in_order_in_the_end(seed: int) -> None:
    network = Network(seed, durable_only=True)
    check(network, losing=True)
    assert network.undone == 0


def check(network: Network, losing: bool) -> None:
    network.core.connected()
    network.run()
    for _ in range(60):
        match network.random.randrange(13):
            case 0:
                network.reconnect()
            case 1:
                network.demote()
            case 2:
                network.beat()
            case 3 if losing:
                network.lose_a_suffix()
            case 4:
                network.sync()
            case 5:
                network.answer()
            case 6 | 7:
                network.fan_out(faulty=True)
            case _:
                network.write()
    network.heal()
    for partition, writer in network.writers.items():
        assert network.applied[partition] == sorted(writer.log)
    assert network.core.buffered_bytes == 0
    if not losing or network.durable_only:
        assert check_deliveries(network.deliveries, Ordering.CAUSAL, set(network.writers)) == []
