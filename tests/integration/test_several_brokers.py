"""Brokers that share one log share its partitions: one comes, goes or lies dead, and what was accepted is not lost silently."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pytest

import paramstream as ps
from fakes.flood import Flood
from fakes.raw_client import RawClient
from fakes.shared_log import SharedStore
from paramstream.brokers.owned import META, Owned
from paramstream.consistency.vector import VersionVector
from paramstream.errors import NotOwner
from paramstream.eventlog.log import Member, SlotListener
from paramstream.events.codec import Buffer, Head, encode_event, encode_vector
from paramstream.events.kinds import PartRef, Put, PutItem
from paramstream.transport.calls import (
    AwaitDurable,
    CreateTopic,
    DeleteTopic,
    DescribePartitions,
    Join,
    Joined,
    OpenProducer,
    PartitionRecord,
    PrepareCommit,
)
from paramstream.transport.messages import Demoted, Follow, Moved, Refused, Request, Response
from paramstream.transport.slots import SLOTS, slot_of
from paramstream.transport.wire import Message
from reference.waiting import eventually

WAIT_S = 15.0


class Brokers:
    """Brokers over one store, by name; closed whatever the test does."""

    def __init__(self) -> None:
        self.store = SharedStore()
        self.open: dict[str, ps.Broker] = {}
        self.clients: list[ps.Client] = []

    def start(self, name: str) -> ps.Broker:
        self.open[name] = ps.Broker(log=self.store.open(name))
        return self.open[name]

    def stop(self, name: str) -> None:
        self.open.pop(name).close()

    def client(self, *names: str) -> ps.Client:
        client = ps.connect([self.open[name].endpoint for name in names or self.open], timeout=WAIT_S)
        self.clients.append(client)
        return client

    def share_topic(self, client: ps.Client, persistence: str = "write_back") -> ps.TopicInfo:
        """The topic "model" with 8 partitions of state, of which both of two brokers have some."""
        while True:
            topic = client.create_topic("model", partitions=8, persistence=persistence)
            # Slots go out by turns. A topic's id is random, and now and then all of its partitions fall to one.
            if len({slot_of((topic.id, number)) % 2 for number in range(8)}) == 2:
                return topic
            client.delete_topic("model")

    def owner_of(self, partition: tuple[int, int]) -> str:
        """The one that has it open, once there is just one."""
        return eventually(lambda: self._owners(partition) if len(self._owners(partition)) == 1 else [])[0]

    def not_owner_of(self, partition: tuple[int, int]) -> str:
        owner = self.owner_of(partition)
        return next(name for name in self.open if name != owner)

    def lose(self, name: str) -> tuple[Member, SlotListener]:
        """The broker is not heard of any more, and hears nothing: its slots go to the others."""
        return self.store.group.lose(self.open[name].endpoint)

    def _owners(self, partition: tuple[int, int]) -> list[str]:
        return [name for name, broker in self.open.items() if partition in vars(broker)["_partitions"].owned]

    def owns(self, name: str, partition: tuple[int, int]) -> bool:
        return partition in vars(self.open[name])["_partitions"].owned

    def owned(self, partition: tuple[int, int]) -> Owned:
        found: Owned = vars(self.open[self.owner_of(partition)])["_partitions"].owned[partition]
        return found

    def epoch(self, partition: tuple[int, int]) -> int:
        return self.owned(partition).core.epoch

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.store.group.share_evenly()
        for name in list(self.open):
            self.store.thaw(name)
        for name in list(self.open):
            self.stop(name)


def shared_as(slots: Sequence[set[int]], members: Sequence[Member]) -> dict[Member, list[int]]:
    return {member: sorted(each) for member, each in zip(members, slots, strict=True)}


def put(topic: int, number: int, key: bytes, observed: bytes = b"") -> bytearray:
    head = Head(producer="raw", incarnation=1, sequence=1, observed=observed)
    return encode_event((topic, number), head, Put(items=(PutItem(key=key, nbytes=1),)), [b"v"])


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    brokers = Brokers()
    try:
        yield brokers
    finally:
        brokers.close()


def test_two_brokers_share_one_log_and_a_client_uses_both(brokers: Brokers) -> None:
    brokers.start("one")
    brokers.start("two")
    client = brokers.client()
    topic = brokers.share_topic(client)
    owners = {brokers.owner_of((topic.id, number)) for number in range(9)}
    assert owners == {"one", "two"}, "the partitions are shared"
    pub = client.publisher("model", "trainer")
    with client.replica("model", arrays="numpy") as rep:
        receipts = [pub.put(f"key-{n}", str(n).encode()) for n in range(64)]
        pub.publish_weights({"step": np.array([1])}, version=1)
        pub.flush(WAIT_S)
        assert {receipt.outcome for receipt in receipts} == {"durable"}
        rep.wait_version(1, WAIT_S)
        rep.wait(receipts[-1], WAIT_S)
        assert [rep.get(f"key-{n}") for n in range(64)] == [str(n).encode() for n in range(64)]
    assert [each.name for each in client.topics()] == ["model"]


def test_a_broker_that_stops_cleanly_loses_nothing_and_nobody_notices_but_by_a_pause(brokers: Brokers) -> None:
    brokers.start("one")
    brokers.start("two")
    client = brokers.client()
    client.create_topic("model", partitions=8)
    pub = client.publisher("model", "trainer")
    with client.replica("model", arrays="numpy", start="earliest") as rep:
        with Flood([pub]) as flood:
            flood.go_on(200)
            brokers.stop("one")
            flood.go_on(200)
            brokers.start("one")
            flood.go_on(200)
        pub.flush(WAIT_S)
        receipts = flood.receipts
        assert {receipt.outcome for receipt in receipts} == {"durable"}
        rep.wait(receipts[-1], WAIT_S)
        last = {n % 97: n for n in range(len(receipts))}
        assert [rep.get(f"key-{key}") for key in last] == [str(n).encode() for n in last.values()]


def test_what_a_frozen_owner_accepted_is_lost_and_its_late_appends_are_void(brokers: Brokers) -> None:
    brokers.start("one")
    brokers.start("two")
    client = brokers.client()
    topic = brokers.share_topic(client)
    partitions = [(topic.id, number) for number in range(9)]
    pub = client.publisher("model", "trainer")
    receipts = [pub.put(f"key-{n}", b"before") for n in range(40)]
    pub.flush(WAIT_S)
    with client.replica("model", arrays="numpy", start="earliest") as rep:
        frozen = [partition for partition in partitions if brokers.owner_of(partition) == "one"]
        brokers.store.freeze("one")
        late = [pub.put(f"key-{n}", b"after") for n in range(40)]
        eventually(lambda: all(receipt.outcome in ("accepted", "durable") for receipt in late))
        eventually(lambda: all(rep.get(f"key-{n}") == b"after" for n in range(40)), WAIT_S)

        member, listener = brokers.lose("one")
        eventually(lambda: all(receipt.outcome in ("lost", "durable") for receipt in late), WAIT_S)
        lost = [receipt for receipt in late if receipt.outcome == "lost"]
        assert lost and len(lost) < len(late)
        with pytest.raises(ps.EventLost):
            pub.flush(WAIT_S)
        # Until broker one hears of it, both believe that they own those partitions.
        brokers.store.thaw("one")
        eventually(lambda: sum(map(brokers.store.void, frozen)) >= len(lost), WAIT_S)
        for receipt in lost:
            with pytest.raises(ps.EventLost):
                receipt.durable.result(WAIT_S)

        brokers.store.group.join(member, SLOTS, listener)
        eventually(lambda: {brokers.owner_of(partition) for partition in partitions} == {"one", "two"})
        again = [pub.put(f"key-{n}", b"again", timeout=WAIT_S) for n in range(40)]
        pub.flush(WAIT_S)
        rep.wait(again[-1], WAIT_S)
        assert [rep.get(f"key-{n}") for n in range(40)] == [b"again"] * 40
        for receipt in receipts + again + [each for each in late if each not in lost]:
            assert receipt.outcome == "durable"
    stood = sum(isinstance(frame.payload, Put) for each in partitions for frame in brokers.store.counting(each))
    assert stood == len(receipts) + len(again) + len(late) - len(lost), (
        "durable events are in the log once, lost ones nowhere"
    )


@pytest.mark.parametrize("persistence", ["write_back", "none"])
def test_a_broker_that_was_taken_over_answers_no_join(brokers: Brokers, persistence: str) -> None:
    """Under "none" no record tells of the other's claim: the log's tail is looked at."""
    brokers.start("one")
    brokers.start("two")
    client = brokers.client()
    topic = brokers.share_topic(client, persistence)
    with RawClient(brokers.open[brokers.owner_of(META)].endpoint) as raw:
        assert raw.welcome(WAIT_S) is not None
        incarnation = raw.ask(OpenProducer("trainer"), int, WAIT_S)
    with RawClient(brokers.open["one"].endpoint) as raw:
        assert raw.welcome(WAIT_S) is not None
        joined = raw.ask(Join("trainer", incarnation), Joined, WAIT_S)
        assert 0 < len(joined.partitions) < 9, "its own partitions"
        brokers.lose("one")
        eventually(lambda: all(brokers.owns("two", (topic.id, n)) for n in range(9)), WAIT_S)
        raw.send(Request(99, Join("trainer", incarnation)))
        assert raw.take(Moved, WAIT_S) is not None, "it notices before it answers, and sends its clients away"
        assert raw.take(Response, 0.5) is None


@pytest.mark.parametrize("asks", ["join", "follow", "await", "prepare", "describe", "event"])
def test_a_broker_that_was_taken_over_says_of_nothing_that_it_is_lost_or_unknown(brokers: Brokers, asks: str) -> None:
    """What it lacks stands with the one that has taken over: it finds that out before it answers."""
    brokers.start("one")
    brokers.start("two")
    client = brokers.client()
    topic = brokers.share_topic(client)
    weights = topic.id, 8
    old = brokers.owner_of(META if asks == "join" else weights)
    new = next(name for name in brokers.open if name != old)
    with RawClient(brokers.open[old].endpoint) as raw:
        assert raw.welcome(WAIT_S) is not None
        brokers.lose(old)
        eventually(lambda: all(brokers.owns(new, each) for each in (META, *((topic.id, n) for n in range(9)))), WAIT_S)
        with RawClient(brokers.open[new].endpoint) as other:
            assert other.welcome(WAIT_S) is not None
            incarnation = other.ask(OpenProducer("trainer"), int, WAIT_S)
        at = vars(brokers.open[new])["_partitions"].owned[weights].core.sequenced
        messages: dict[str, Message | Buffer] = {
            "join": Request(99, Join("trainer", incarnation)),
            "follow": Follow(*weights, at, 1 << 20),
            "await": Request(99, AwaitDurable(((*weights, at),))),
            "prepare": Request(99, PrepareCommit(topic.id, 1, (PartRef("trainer", incarnation, 1),), partition=8)),
            "describe": Request(99, DescribePartitions(topic.id, (8,), proved=True)),
            "event": put(*weights, b"key", encode_vector(VersionVector({weights: at}))),
        }
        raw.send(messages[asks])
        assert isinstance(raw.take((Moved, Response, Demoted, Refused), WAIT_S), Moved)


def test_a_broker_that_was_taken_over_finds_it_out_where_nothing_is_written_too(brokers: Brokers) -> None:
    """Under persistence "none" no append meets the other's claim: a follower that has seen more is what tells of it."""
    brokers.start("one")
    brokers.start("two")
    topic = brokers.client().create_topic("model", partitions=1, persistence="none")
    partition = topic.id, 0
    old = brokers.owner_of(partition)
    new = next(name for name in brokers.open if name != old)
    with RawClient(brokers.open[old].endpoint) as raw:
        assert raw.welcome(WAIT_S) is not None
        brokers.lose(old)
        eventually(lambda: brokers.owns(new, partition), WAIT_S)
        at = vars(brokers.open[new])["_partitions"].owned[partition].core.sequenced
        raw.send(Follow(*partition, at, 1 << 20))
        assert isinstance(raw.take((Moved, Demoted), WAIT_S), Moved)


def test_a_deletion_that_was_taken_over_before_it_was_durable_deletes_nothing(brokers: Brokers) -> None:
    brokers.start("one")
    brokers.start("two")
    client = brokers.client()
    topic = client.create_topic("model", partitions=2)
    partitions = [(topic.id, number) for number in range(3)]
    client.publisher("model", "trainer").put("key", b"value").durable.result(WAIT_S)
    old, new = brokers.owner_of(META), brokers.not_owner_of(META)
    with RawClient(brokers.open[old].endpoint) as raw:
        assert raw.welcome(WAIT_S) is not None
        brokers.store.freeze(old)
        raw.send(Request(1, DeleteTopic("model")))
        eventually(lambda: not any(brokers.owns(old, each) for each in partitions))
        brokers.lose(old)
        eventually(lambda: all(brokers.owns(new, each) for each in (META, *partitions)), WAIT_S)
        brokers.store.thaw(old)
        assert raw.take(Moved, WAIT_S) is not None
    brokers.stop(old)
    assert brokers.store.records.keys() >= set(partitions)
    with brokers.client(new).replica("model", arrays="numpy", start="earliest") as rep:
        assert rep.get("key") == b"value"


def test_what_only_another_broker_can_answer_is_refused_as_not_owned_here(brokers: Brokers) -> None:
    brokers.start("one")
    brokers.start("two")
    client = brokers.client()
    topic = brokers.share_topic(client)
    pub = client.publisher("model", "trainer")
    receipt = pub.put("key", b"value")
    receipt.durable.result(WAIT_S)
    with RawClient(brokers.open[brokers.not_owner_of(META)].endpoint) as raw:
        assert raw.welcome(WAIT_S) is not None
        for call in (CreateTopic("other", 1, "write_back", 8, False), DeleteTopic("model"), OpenProducer("other")):
            with pytest.raises(NotOwner):
                raw.ask(call, object, WAIT_S)
    for name in brokers.open:
        foreign = next(n for n in range(8) if brokers.owner_of((topic.id, n)) != name)
        with RawClient(brokers.open[name].endpoint) as raw:
            welcome = raw.welcome(WAIT_S)
            assert welcome is not None and len(welcome.owners) == 2
            raw.send(Follow(topic.id, foreign, 0, 1 << 20))
            assert raw.take(Demoted, WAIT_S).error.code == "NotOwner"
            raw.send(put(topic.id, foreign, b"key"))
            assert raw.take(Refused, WAIT_S).error.code == "NotOwner"
            described = raw.ask(DescribePartitions(topic.id), list[PartitionRecord], WAIT_S)
            assert [record.partition for record in described] == [
                n for n in range(9) if brokers.owner_of((topic.id, n)) == name
            ]
            # Far above all that was ever sequenced there: lost, if it were this broker's.
            assert raw.ask(AwaitDurable(((topic.id, foreign, 1 << 60),)), list[tuple[int, int, int]], WAIT_S) == []


def test_topics_and_tables_reach_every_broker(brokers: Brokers) -> None:
    brokers.start("one")
    brokers.start("two")
    client = brokers.client()
    for round_ in range(3):
        name = f"model-{round_}"
        topic = client.create_topic(name, partitions=6)
        # At once, on the broker that does not own `__meta`: it reads of the topic before it answers.
        with RawClient(brokers.open[brokers.not_owner_of(META)].endpoint) as raw:
            assert raw.welcome(WAIT_S) is not None
            described = raw.ask(DescribePartitions(topic.id), list[PartitionRecord], WAIT_S)
            assert len(described) == sum(brokers.owner_of((topic.id, n)) != brokers.owner_of(META) for n in range(7))
        client.create_table(name, "rows", dim=4)
        owned = [brokers.owned((topic.id, number)) for number in range(6)]
        assert all(each.core.table("rows") is not None for each in owned)
    client.delete_topic("model-0")
    eventually(lambda: [info.name for info in client.topics()] == ["model-1", "model-2"])
    eventually(lambda: sum(broker.status().partitions for broker in brokers.open.values()) == 1 + 2 * 7)


def test_a_topic_that_is_slow_to_make_holds_up_nobody(brokers: Brokers) -> None:
    brokers.start("one")
    client, other = brokers.client(), brokers.client()
    client.create_topic("model")
    pub = client.publisher("model", "trainer")
    pub.put("key", b"value").durable.result(WAIT_S)
    brokers.store.makes_topics.clear()
    creating = threading.Thread(target=other.create_topic, args=("slow",), name="paramstream-test-creating")
    calls = brokers.store.topic_calls
    creating.start()
    try:
        eventually(lambda: brokers.store.topic_calls > calls)
        for _ in range(200):
            pub.put("key", b"value").durable.result(WAIT_S)
        assert [info.name for info in client.topics()] == ["model"]
        assert creating.is_alive(), "it is still being made"
    finally:
        brokers.store.makes_topics.set()
        creating.join(WAIT_S)
    assert [info.name for info in client.topics()] == ["model", "slow"]


def test_slots_move_to_and_fro_while_events_flow_and_none_is_lost(brokers: Brokers) -> None:
    brokers.start("one")
    brokers.start("two")
    client = brokers.client()
    topic = client.create_topic("model", partitions=8)
    meta_slot = slot_of(META)
    pubs = [client.publisher("model", f"trainer-{n}") for n in range(2)]
    with client.replica("model", arrays="numpy", start="earliest"), Flood(pubs) as flood:
        flood.go_on(100)
        for turn in range(4):
            # Broker one keeps some, and the others go from one to the other and back, `__meta` among them at times.
            kept = {slot for slot in range(SLOTS) if slot % 3 == 0}
            moving = {meta_slot, *range(SLOTS)} - kept
            sizes = [kept | moving, set[int]()] if turn % 2 else [kept, moving]
            brokers.store.group.shares = partial(shared_as, sizes)
            before = {n: brokers.epoch((topic.id, n)) for n in range(9) if brokers.owns("one", (topic.id, n))}
            brokers.store.group.share()
            flood.go_on(100)
            for number, epoch in before.items():
                if slot_of((topic.id, number)) in kept:
                    assert brokers.epoch((topic.id, number)) == epoch, "what stays is not opened anew"
    receipts = flood.receipts
    for pub in pubs:
        pub.flush(WAIT_S)
    assert {receipt.outcome for receipt in receipts} == {"durable"}
