"""Fault case E03, as far as rows travel today: keys keep all of their 64 bits, live and from the log."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import paramstream as ps

ROWS = {5: 1.0, 5 + (1 << 32): 2.0, -1: 3.0, 5 - (1 << 32): 4.0, (1 << 63) - 1: 5.0, -(1 << 63): 6.0}
WAIT_S = 10.0


def rows_of(events: ps.Subscription, kind: str) -> dict[int, float]:
    """Of the events of that kind that come first, until every key has come."""
    found: dict[int, float] = {}
    while len(found) < len(ROWS):
        event = events.next(WAIT_S)
        assert event.kind == kind and event.keys is not None and event.keys.dtype == np.int64
        values = event.rows if kind == "rows" else event.grads
        assert values is not None
        found |= dict(zip(event.keys.tolist(), values[:, 0].tolist(), strict=True))
    return found


def test_keys_that_are_alike_in_their_lower_half_are_two_live_and_from_the_log_E03(tmp_path: Path) -> None:
    log = f"file:{tmp_path}"
    keys, values = list(ROWS), np.array([[value] for value in ROWS.values()], np.float32)
    with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model", partitions=3)
        client.create_table("model", "t", dim=1, optimizer=ps.SGD(1.0))
        publisher = client.publisher("model", producer="trainer")
        with client.subscribe("model") as events:
            publisher.publish_rows("t", keys, values)
            assert rows_of(events, "rows") == ROWS
            publisher.publish_gradients("t", keys, values)
            assert rows_of(events, "gradients") == ROWS
        publisher.flush(WAIT_S)
    with (
        ps.Broker(log=log) as broker,
        ps.connect(broker.endpoint) as client,
        client.subscribe("model", start="earliest", ordering="pram") as events,
    ):
        assert rows_of(events, "rows") == ROWS
        assert rows_of(events, "gradients") == ROWS
