"""A log that stands still for a while: producers feel it, nobody else does, and what was accepted is stored."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import paramstream as ps
from paramstream.brokers import syncing
from paramstream.eventlog.files import Disk
from reference.waiting import eventually

VALUE_BYTES = 512 * 1024
DOWN_S = 2.0
"""The report's log is down for 60 s; broker and client time out after a tenth of the usual, so that this is as long."""


class Log:
    """Its disk syncs, or stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._up = threading.Event()
        self._up.set()
        sync = Disk.sync

        def when_up(disk: Disk, handle: int) -> None:
            assert self._up.wait(60.0), "the log was never up again"
            sync(disk, handle)

        monkeypatch.setattr(Disk, "sync", when_up)

    @contextmanager
    def down(self) -> Generator[None]:
        self._up.clear()
        try:
            yield
        finally:
            self._up.set()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log(monkeypatch)
    monkeypatch.setattr(syncing, "MAX_UNSYNCED_S", 0.3)
    return log


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
            with log.down():
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


def test_a_full_segment_beside_a_log_that_is_down_stops_its_own_partition_only(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncing, "MAX_UNSYNCED_S", 60.0)
    url = f"file:{tmp_path}/log"
    with ps.Broker(log=url, log_limit="64MiB") as broker, ps.connect(broker.endpoint) as client:  # segments of 4 MiB
        client.create_topic("model")
        client.create_topic("other")
        publisher, other = (client.publisher(topic, producer=topic) for topic in ("model", "other"))
        with log.down():
            full = [publisher.put(f"key-{number}", bytes(VALUE_BYTES)) for number in range(8)]
            for receipt in full:
                receipt.accepted.result(5.0)
            late = publisher.put("late", b"")
            assert _waits(late)
            other.put("k", b"v").accepted.result(5.0)
            assert len(client.topics(timeout=5.0)) == 2
        publisher.flush()
        assert {receipt.outcome for receipt in (*full, late)} == {"durable"}


def test_the_window_of_time_holds_a_trickle_that_no_bytes_would(log: Log, tmp_path: Path) -> None:
    with ps.Broker(log=f"file:{tmp_path}/log") as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        publisher = client.publisher("model", producer="trainer")
        with log.down():
            first = publisher.put("k", b"v")
            first.accepted.result(5.0)
            assert eventually(
                lambda: publisher.put("k", b"v").outcome == "pending" and _waits(publisher.put("k", b"w"))
            )
        publisher.flush()


def _waits(receipt: ps.Receipt) -> bool:
    try:
        receipt.accepted.result(0.1)
    except ps.ParamstreamTimeout:
        return True
    return False
