"""Events that wait for their turn: which, in what order, and when they go."""

from __future__ import annotations

import pytest

from paramstream.brokers.holding import Holding
from paramstream.brokers.peers import Peer
from paramstream.consistency.vector import PartitionId
from paramstream.events.codec import EventFrame, Head, decode_event, encode_event
from paramstream.events.kinds import Put, PutItem

ONE, TWO = (7, 0), (7, 1)


def event(partition: PartitionId, sequence: int) -> EventFrame:
    payload = Put((PutItem(b"k", 1),))
    return decode_event(encode_event(partition, Head("trainer", 1, sequence), payload, [b"v"]))


class Log:
    def __init__(self) -> None:
        self.behind: set[PartitionId] = set()
        self.room = 1_000_000

    def is_behind(self, partition: PartitionId) -> bool:
        return partition in self.behind or not self.room


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def holding(log: Log) -> Holding:
    return Holding(log.is_behind)


def go(holding: Holding, most: int = 100) -> list[tuple[PartitionId, int]]:
    return [(held.frame.partition_id, held.frame.head.sequence) for held in holding.ready(most)]


def test_nothing_waits_where_nothing_is_held_up(holding: Holding) -> None:
    assert not holding.must_wait(ONE) and not holding.is_ready and go(holding) == []


def test_events_of_a_closed_partition_wait_in_their_order_and_those_of_others_do_not(holding: Holding) -> None:
    peer = Peer(b"peer", 1)
    holding.close([ONE])
    assert holding.must_wait(ONE) and not holding.must_wait(TWO)
    for sequence in (1, 2, 3):
        holding.keep(peer, event(ONE, sequence))
    assert go(holding) == [] and not holding.is_ready
    assert peer.held_bytes == holding.nbytes > 0
    holding.open([ONE])
    assert holding.is_ready
    assert go(holding) == [(ONE, 1), (ONE, 2), (ONE, 3)]
    assert (peer.held_bytes, holding.nbytes) == (0, 0)


def test_what_comes_later_waits_behind_what_was_held(holding: Holding) -> None:
    holding.close([ONE])
    for sequence in (1, 2):
        holding.keep(Peer(b"peer", 1), event(ONE, sequence))
    holding.open([ONE])
    assert go(holding, most=1) == [(ONE, 1)]
    assert holding.must_wait(ONE), "event 2 has not gone yet"
    assert go(holding) == [(ONE, 2)]
    assert not holding.must_wait(ONE)


def test_a_partition_that_was_closed_twice_is_opened_by_the_second_open(holding: Holding) -> None:
    holding.close([ONE])
    holding.close([ONE])
    holding.open([ONE])
    assert holding.must_wait(ONE)
    holding.open([ONE])
    assert not holding.must_wait(ONE)
    holding.open([ONE])
    assert not holding.must_wait(ONE)


def test_events_wait_while_the_log_is_behind_and_as_many_go_as_it_takes(holding: Holding, log: Log) -> None:
    log.behind = {ONE, TWO}
    for sequence in (1, 2, 3):
        holding.keep(Peer(b"peer", 1), event(ONE, sequence))
    holding.keep(Peer(b"peer", 1), event(TWO, 1))
    assert go(holding) == []
    log.behind, log.room = {TWO}, 2
    gone: list[int] = []
    for held in holding.ready(100):
        gone.append(held.frame.head.sequence)
        log.room -= 1
    assert gone == [1, 2]
    log.behind, log.room = set(), 10
    assert go(holding) == [(ONE, 3), (TWO, 1)]
