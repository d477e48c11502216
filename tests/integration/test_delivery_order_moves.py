"""Order over brokers that share a log, while they come and go: nothing is lost, and every delivery log is in its order."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import paramstream as ps
from fakes.shared_log import SharedStore
from ordering.world import Follower, run_world
from paramstream.consumers.effects import EpochBegan

WAIT_S = 20.0
EVENTS = 60
"""Applied by all followers together between two moves."""


class Brokers:
    def __init__(self) -> None:
        self._store = SharedStore()
        self.running: dict[str, ps.Broker] = {}

    def start(self, name: str) -> ps.Broker:
        broker = self.running[name] = ps.Broker(log=self._store.open(name))
        return broker

    def stop(self, name: str) -> None:
        self.running.pop(name).close()


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    brokers = Brokers()
    try:
        yield brokers
    finally:
        for name in list(brokers.running):
            brokers.stop(name)


def let_them_apply(followers: list[Follower]) -> None:
    """Until every follower has gone on, and all together by `EVENTS`."""
    before = [len(follower.log) for follower in followers]
    deadline = time.monotonic() + WAIT_S
    while True:
        moved = [len(follower.log) - at for follower, at in zip(followers, before, strict=True)]
        if min(moved) > 0 and sum(moved) >= EVENTS:
            return
        assert time.monotonic() < deadline, moved
        time.sleep(0.01)


def test_brokers_that_come_and_go_lose_nothing_and_break_no_order(brokers: Brokers) -> None:
    brokers.start("one")
    stays = brokers.start("two")

    def move(followers: list[Follower]) -> None:
        let_them_apply(followers)
        brokers.start("three")
        let_them_apply(followers)
        brokers.stop("one")
        let_them_apply(followers)
        brokers.stop("three")

    with ExitStack() as stack:
        client = stack.enter_context(ps.connect(stays.endpoint, timeout=WAIT_S))
        world = run_world(stays.endpoint, client, stack, 1, move)
        world.wait_until_all_is_applied()
        world.check_orders()
        for follower in world.followers:
            owners = Counter(step.partition for step in follower.log if isinstance(step, EpochBegan))
            assert max(owners.values()) > 1, "no partition moved while it was followed"
