"""Rows whose time is over are deleted by the broker's keeper, by events: on every replica at the same place in the stream."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from paramstream.cli.expirer import Expirer
from paramstream.consumers.keeping import Keeping

WAIT_S = 20.0
AFTER_S = 1.0
OLD, KEPT = np.arange(100, 200), np.arange(10)


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True])
def test_rows_vanish_at_the_same_place_for_all_and_rewritten_ones_stay(tmp_path: Path, kill: bool) -> None:
    with (
        ps.Broker(log=f"file:{tmp_path}/log", keeper=tmp_path / "keeper") as broker,
        ps.connect(broker.endpoint) as client,
    ):
        client.create_topic("ads", partitions=2)
        client.create_table("ads", "users", dim=2, optimizer=ps.SGD(1.0), expire_after=AFTER_S)
        client.create_table("ads", "kept", dim=2)
        pub = client.publisher("ads", producer="trainer")
        ones = np.ones((100, 2), np.float32)
        began = time.monotonic()
        pub.publish_rows("users", OLD, ones)
        pub.publish_rows("kept", OLD, ones)
        with client.replica("ads") as first, client.replica("ads", visibility="durable") as second:
            events = client.subscribe("ads", start="earliest")

            def rewrite() -> int:
                pub.publish_gradients("users", KEPT, ones[:10])
                return int(np.count_nonzero(first.lookup("users", OLD, return_found=True)[1]))

            assert rewrite() in (0, 100)
            if kill:
                keeper = broker._keeper  # pyright: ignore[reportPrivateUsage]
                assert keeper is not None
                until(lambda: keeper.pid is not None)
                assert keeper.pid is not None
                os.kill(keeper.pid, signal.SIGKILL)
            until(lambda: rewrite() == 0)
            assert time.monotonic() - began > AFTER_S
            last = pub.publish_gradients("users", KEPT, ones[:10])
            for replica in (first, second):
                replica.wait(last, WAIT_S)
                assert np.asarray(replica.lookup("users", KEPT, return_found=True)[1]).all()
                assert np.asarray(replica.lookup("kept", OLD, return_found=True)[1]).all()
            assert broker.status().keeper == ""
            deletions = [event for event in _until_last(events, last) if event.kind == "delete_rows"]
            assert deletions and all((event.producer or "").startswith("__expiry-") for event in deletions)


def _until_last(events: ps.Subscription, last: ps.Receipt) -> list[ps.Event]:
    wanted = dict(last.accepted.result(WAIT_S))
    found = list[ps.Event]()
    with closing(events):
        for event in events:
            found.append(event)
            key = "ads", event.partition
            if event.position >= wanted.get(key, 1 << 64):
                del wanted[key]
            if not wanted:
                return found
    raise AssertionError("the stream has ended")


def test_two_keepers_delete_the_same_rows_and_nothing_else(
    broker: ps.Broker, client: ps.Client, tmp_path: Path
) -> None:
    client.create_topic("ads")
    client.create_table("ads", "users", dim=2, expire_after=0.5)
    pub = client.publisher("ads", producer="trainer")
    with ExitStack() as opened:
        keepers: list[Keeping] = []
        for number in range(2):
            expirer = Expirer(broker.endpoint, str(number) * 32)
            opened.callback(expirer.close)
            folder = tmp_path / str(number)
            keepers.append(
                opened.enter_context(Keeping(broker.endpoint, folder, str(number) * 32, delete=expirer.delete))
            )
        replica, other = (opened.enter_context(client.replica("ads")) for _ in range(2))
        pub.publish_rows("users", np.arange(20), np.ones((20, 2), np.float32)).durable.result(WAIT_S)

        def gone() -> bool:
            pub.publish_rows("users", [1], np.ones((1, 2), np.float32)).accepted.result(WAIT_S)
            for keeper in keepers:
                keeper.step(time.monotonic())
            return int(np.count_nonzero(replica.lookup("users", range(20), return_found=True)[1])) == 1

        until(gone)
        assert [keeper.error for keeper in keepers] == ["", ""]
        last = pub.publish_rows("users", [1], np.ones((1, 2), np.float32))
        for each in (replica, other):
            each.wait(last, WAIT_S)
            assert np.asarray(each.lookup("users", [1], return_found=True)[1]).all()
        assert replica.digest() == other.digest()
