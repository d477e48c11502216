"""Brokers as members of a real Kafka group: who has which slots, and who hears of it."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

import paramstream as ps
from paramstream.eventlog.kafka.group import SlotGroup
from paramstream.eventlog.kafka.membership import SlotMap
from realkafka.stranger import Stranger
from reference.waiting import eventually

SLOTS = 32


class Broker:
    """A member that notes what it hears, and drains at once unless told to wait."""

    def __init__(self, settings: ps.KafkaLog, name: str, broker: str) -> None:
        self.broker = broker
        self.maps: list[SlotMap] = []
        self.revoked = 0
        self.drains = True
        self.threads = set[str]()
        self.group = SlotGroup(
            settings,
            name=name,
            broker=broker,
            endpoint=f"tcp://{broker}",
            slots=SLOTS,
            revoking=self._revoking,
            assigned=self._assigned,
            drain_s=0.5,
        )
        self.group.start()

    def _revoking(self, done: threading.Event | object) -> None:
        self.threads.add(threading.current_thread().name)
        self.revoked += 1
        if self.drains and callable(done):
            done()

    def _assigned(self, slot_map: SlotMap) -> None:
        self.threads.add(threading.current_thread().name)
        self.maps.append(slot_map)

    @property
    def map(self) -> SlotMap:
        return self.maps[-1]

    @property
    def slots(self) -> frozenset[int]:
        return self.map.slots_of(self.broker) if self.maps else frozenset()

    def vanish(self) -> None:
        """Says nothing more, and does not leave."""
        task = vars(self.group)["_task"]
        vars(self.group)["_thread"].soon(task.cancel)
        vars(self.group)["_member_id"] = ""


@pytest.fixture
def brokers(kafka: ps.KafkaLog) -> Iterator[list[Broker]]:
    found: list[Broker] = []
    yield found
    for broker in found:
        broker.group.close()


def has(broker: Broker, *others: str) -> bool:
    """It is in a map with just these brokers."""
    return bool(broker.maps) and {member.broker for member in broker.map.members} == {broker.broker, *others}


def test_brokers_share_the_slots_and_all_have_the_same_map(kafka: ps.KafkaLog, brokers: list[Broker]) -> None:
    brokers.append(Broker(kafka, "a", "a1"))
    eventually(lambda: brokers[0].slots == frozenset(range(SLOTS)))
    assert brokers[0].revoked == 0, "there was nothing to revoke"
    brokers.append(Broker(kafka, "b", "b1"))
    a, b = brokers
    eventually(lambda: has(a, "b1") and has(b, "a1") and a.map == b.map)
    assert (len(a.slots), len(b.slots)) == (16, 16)
    assert {member.endpoint for member in a.map.members} == {"tcp://a1", "tcp://b1"}
    assert a.threads == {"paramstream-group"}
    numbers = [slot_map.number for slot_map in a.maps]
    assert a.revoked >= 1 and numbers == sorted(set(numbers))
    b.group.close()
    eventually(lambda: has(a))
    assert a.slots == frozenset(range(SLOTS)), "who leaves gives its slots up at once"


def test_a_broker_that_starts_again_gets_its_slots_back_and_shows_itself(
    kafka: ps.KafkaLog, brokers: list[Broker]
) -> None:
    brokers += [Broker(kafka, "a", "a1"), Broker(kafka, "b", "b1")]
    a, b = brokers
    eventually(lambda: has(a, "b1") and has(b, "a1"))
    kept = a.slots
    b.vanish()
    brokers.append(Broker(kafka, "b", "b2"))
    again = brokers[2]
    eventually(lambda: has(a, "b2") and has(again, "a1"))
    assert a.map == again.map and a.slots == kept, "nobody waited for the session, and nothing moved"


def test_a_broker_that_is_not_heard_of_loses_its_slots_and_one_that_does_not_drain_is_not_waited_for(
    kafka: ps.KafkaLog, brokers: list[Broker]
) -> None:
    brokers += [Broker(kafka, "a", "a1"), Broker(kafka, "b", "b1")]
    a, b = brokers
    eventually(lambda: has(a, "b1") and has(b, "a1"))
    a.drains = False
    b.vanish()
    eventually(lambda: has(a), 15.0)
    assert a.slots == frozenset(range(SLOTS))


def test_a_broker_that_slept_past_its_session_keeps_nothing_of_its_slots(
    kafka: ps.KafkaLog, brokers: list[Broker]
) -> None:
    brokers += [Broker(kafka, "a", "a1"), Broker(kafka, "b", "b1")]
    a, b = brokers
    eventually(lambda: has(a, "b1") and has(b, "a1"))
    heard, awake = len(b.maps), threading.Event()
    vars(b.group)["_thread"].soon(lambda: awake.wait(30.0))
    try:
        eventually(lambda: has(a), 15.0)
    finally:
        awake.set()
    eventually(lambda: has(a, "b1") and b.map == a.map and b.slots, 15.0)
    assert not b.maps[heard].slots_of("b1"), "others had its slots while it slept"


def test_work_that_takes_longer_than_the_session_costs_no_slots_I06(kafka: ps.KafkaLog, brokers: list[Broker]) -> None:
    quick = replace(kafka, session_timeout_s=1.0)
    brokers += [Broker(quick, "a", "a1"), Broker(quick, "b", "b1")]
    a, b = brokers
    eventually(lambda: has(a, "b1") and has(b, "a1") and a.map == b.map)
    heard = len(a.maps), len(b.maps)
    busy_until = time.monotonic() + 2.5
    while time.monotonic() < busy_until:
        sum(range(10_000))
    assert (len(a.maps), len(b.maps)) == heard, "nobody was put out of the group"


def test_a_stranger_in_the_group_is_said_once_and_waited_out_K10(
    kafka: ps.KafkaLog, brokers: list[Broker], caplog: pytest.LogCaptureFixture
) -> None:
    stranger, group, topic = Stranger(kafka), f"{kafka.topic_prefix}brokers", f"{kafka.topic_prefix}other"
    stranger.make_topic(topic)
    with stranger.member(group, topic):
        brokers.append(Broker(kafka, "a", "a1"))
        eventually(lambda: f"the group {group} cannot be joined" in brokers[0].group.trouble)
        assert "Somebody else is a member of it" in brokers[0].group.trouble
        time.sleep(2.5)  # Two more tries.
        assert not brokers[0].maps
    eventually(lambda: has(brokers[0]), 15.0)
    assert brokers[0].group.trouble == ""
    assert len([each for each in caplog.records if each.name.startswith("paramstream")]) == 1
