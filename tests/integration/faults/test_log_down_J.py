"""A log that stands still for a while: producers feel it, nobody else does, and what was accepted is stored."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import paramstream as ps
from paramstream.brokers import syncing
from paramstream.eventlog.partition import LocalPartition
from reference.waiting import eventually

VALUE_BYTES = 512 * 1024
DOWN_S = 2.0
"""The report's log is down for 60 s; broker and client time out after a tenth of the usual, so that this is as long."""


class Log:
    """Syncs, or stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._up = threading.Event()
        self._up.set()
        sync = LocalPartition.sync

        def when_up(partition: LocalPartition) -> int:
            assert self._up.wait(60.0), "the log was never up again"
            return sync(partition)

        monkeypatch.setattr(LocalPartition, "sync", when_up)

    def down(self) -> None:
        self._up.clear()

    def up(self) -> None:
        self._up.set()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    log = Log(monkeypatch)
    monkeypatch.setattr(syncing, "MAX_UNSYNCED_S", 0.3)
    yield log
    log.up()


@pytest.mark.parametrize("persistence", ["write_back", "write_through"])
def test_beside_a_log_that_is_down_publish_says_not_accepted_and_what_is_accepted_is_stored_J03(
    persistence: str, log: Log, tmp_path: Path
) -> None:
    url = f"file:{tmp_path}/log"
    with ps.Broker(log=url) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model", persistence=persistence)
        client.create_topic("cache", persistence="none")
        publisher = client.publisher("model", producer="trainer")
        beside = client.publisher("cache", producer="beside")
        with client.replica(["model", "cache"], name="reader") as replica:
            receipts: dict[str, ps.Receipt] = {}
            refused: list[str] = []
            log.down()
            began = time.monotonic()
            number = 0
            while time.monotonic() - began < DOWN_S:
                number += 1
                key = f"key-{number}"
                try:
                    receipts[key] = publisher.put(key, b"%-*d" % (VALUE_BYTES, number), timeout=0.2)
                except ps.BackpressureTimeout:
                    refused.append(key)
            assert refused, "the producer feels that the log is behind"
            assert any(receipt.outcome == "pending" for receipt in receipts.values()), "what waits is not accepted"
            # All else goes on: requests, heartbeats, and topics that need no log.
            assert [each.name for each in client.topics(timeout=5.0)] == ["cache", "model"]
            replica.wait(beside.put("k", b"v"), 5.0)
            assert replica.status().connected
            log.up()
            publisher.flush(60.0)
            assert {receipt.outcome for receipt in receipts.values()} == {"durable"}
            last = publisher.put("last", b"", timeout=10.0)
            replica.wait(last)
        publisher.flush()
    with (
        ps.Broker(log=url) as broker,
        ps.connect(broker.endpoint) as client,
        client.subscribe("model", start="earliest") as events,
    ):
        stored = list(_keys(events, last))
    assert stored == [*receipts, "last"], "each once, in order, and nothing of what was not accepted"


def _keys(events: ps.Subscription, last: ps.Receipt) -> Iterator[str]:
    end, position = max(last.positions.values()), 0
    while position < end:
        event = events.next(timeout=10.0)
        position = event.position
        yield from (key.decode() for key, _, _ in event.items)


def test_the_window_of_time_holds_a_trickle_that_no_bytes_would(log: Log, tmp_path: Path) -> None:
    with ps.Broker(log=f"file:{tmp_path}/log") as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        publisher = client.publisher("model", producer="trainer")
        log.down()
        first = publisher.put("k", b"v")
        first.accepted.result(5.0)
        assert eventually(lambda: publisher.put("k", b"v").outcome == "pending" and _waits(publisher.put("k", b"w")))
        log.up()
        publisher.flush()


def _waits(receipt: ps.Receipt) -> bool:
    try:
        receipt.accepted.result(0.1)
    except ps.ParamstreamTimeout:
        return True
    return False
