"""Fault case I09: the broker dies in the middle of a stream of events, and the log has each of them once and in order."""

from __future__ import annotations

import time
from pathlib import Path

import paramstream as ps
from processes.victim import Victim
from processes.world import START_S

EVENTS = 3000
RATE_PER_S = 1000
KILLED_AT = 500
DEAD_S = 1.0
WAIT_S = 60.0


def test_a_broker_killed_mid_stream_costs_no_event_and_no_order_I09(tmp_path: Path) -> None:
    with Victim(tmp_path) as victim, ps.connect(victim.endpoint, timeout=START_S) as client:
        client.create_topic("model")
        publisher = client.publisher("model", producer="trainer")
        receipts: list[ps.Receipt] = []
        began, died = time.monotonic(), 0.0
        for number in range(1, EVENTS + 1):
            receipts.append(publisher.put(f"key-{number % 10}", b"%d" % number, timeout=WAIT_S))
            if number == KILLED_AT:
                assert receipts[-1].outcome in ("pending", "accepted"), "it is in the middle of it"
                victim.die()
                died = time.monotonic()
            if died and time.monotonic() - died > DEAD_S:
                victim.start_again()
                died = 0.0
            # The events come at their rate, broker or not.
            time.sleep(max(0.0, began + number / RATE_PER_S - time.monotonic()))
        publisher.flush(WAIT_S)
        assert [receipt.outcome for receipt in receipts] == ["durable"] * EVENTS
        # Calls that wait together may share an event.
        stands = list(victim.log(client).events.values())
        places = [(int(value or b""), event.position) for event in stands for _, value, _ in event.items]
        assert [number for number, _ in places] == list(range(1, EVENTS + 1))
        assert [event.sequence for event in stands] == list(range(1, len(stands) + 1))
        assert [receipt.positions["model", 0] for receipt in receipts] == [position for _, position in places]
