"""Fault cases of kind E end to end: keys keep all of their 64 bits, absent rows are no errors, and what is no number is kept out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import paramstream as ps

ROWS = {5: 1.0, 5 + (1 << 32): 2.0, -1: 3.0, 5 - (1 << 32): 4.0, (1 << 63) - 1: 5.0, -(1 << 63): 6.0}
WAIT_S = 10.0
FILLING = 3000
"""Rows of 1 KiB beside those: more than the tier in memory holds."""


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


def looked_up(replica: ps.Replica) -> dict[int, float]:
    values, found = replica.lookup("t", list(ROWS), return_found=True)
    assert found.all()
    return dict(zip(ROWS, values[:, 0].tolist(), strict=True))


def test_keys_that_are_alike_in_their_lower_half_are_two_live_from_the_log_and_from_ssd_E03(tmp_path: Path) -> None:
    log = f"file:{tmp_path}/log"
    keys, values = list(ROWS), np.array([[value] for value in ROWS.values()], np.float32)
    trained = {key: value - 0.5 * value for key, value in ROWS.items()}
    with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model", partitions=3)
        client.create_table("model", "t", dim=1, optimizer=ps.SGD(0.5))
        publisher = client.publisher("model", producer="trainer")
        replica = client.replica("model")
        with client.subscribe("model") as events:
            receipt = publisher.publish_rows("t", keys, values)
            assert rows_of(events, "rows") == ROWS
            replica.wait(receipt, WAIT_S)
            assert looked_up(replica) == ROWS
            receipt = publisher.publish_gradients("t", keys, values)
            assert rows_of(events, "gradients") == ROWS
            replica.wait(receipt, WAIT_S)
            assert looked_up(replica) == trained
        publisher.flush(WAIT_S)
    with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
        with client.subscribe("model", start="earliest", ordering="pram") as events:
            assert rows_of(events, "rows") == ROWS
            assert rows_of(events, "gradients") == ROWS
        store = ps.TieredStore(dram="2MiB", ssd=f"{tmp_path}/ssd:64MiB")
        replica = client.replica("model", start="earliest", store=store)
        assert looked_up(replica) == trained
        client.create_table("model", "filling", dim=256)
        publisher = client.publisher("model", producer="trainer")
        for first in range(0, FILLING, 500):
            filling = np.arange(first, first + 500)
            receipt = publisher.publish_rows("filling", filling, np.ones((500, 256), np.float32))
            replica.wait(receipt, WAIT_S)
        assert replica.table("filling").rows == FILLING
        (ssd,) = (tier for tier in replica.status().tiers if tier.tier == "ssd")
        assert ssd.held > FILLING * 256
        assert looked_up(replica) == trained


def test_rows_in_another_memory_order_arrive_row_by_row_and_one_of_them_changes_A03(client: ps.Client) -> None:
    client.create_topic("model")
    client.create_table("model", "t", dim=3)
    publisher, replica = client.publisher("model", producer="trainer"), client.replica("model", arrays="numpy")
    rows = np.array([[11, 12, 13], [21, 22, 23]], np.float32)
    for given in (np.asfortranarray(rows), torch.from_numpy(rows.T.copy()).T):
        assert not (given.flags.c_contiguous if isinstance(given, np.ndarray) else given.is_contiguous())
        replica.wait(publisher.publish_rows("t", [0, 1], given), WAIT_S)
        assert replica.lookup("t", [0, 1]).tolist() == rows.tolist()
        replica.wait(publisher.publish_rows("t", [1], np.array([[7, 8, 9]], np.float32)), WAIT_S)
        assert replica.lookup("t", [0, 1]).tolist() == [[11, 12, 13], [7, 8, 9]]


def test_gradients_that_are_no_numbers_change_no_row_live_or_in_a_replay_E07(client: ps.Client) -> None:
    client.create_topic("model", partitions=2)
    client.create_table("model", "t", dim=2, optimizer=ps.SGD(1.0))
    publisher, replica = client.publisher("model", producer="trainer"), client.replica("model", arrays="numpy")
    grads = np.ones((8, 2), np.float32)
    bad = grads.copy()
    bad[3, 0], bad[4, 1] = np.nan, np.inf
    with pytest.raises(ps.InvalidEvent, match=r"gradients of 2 keys: 3, 4 ") as refused:
        publisher.publish_gradients("t", range(8), bad)
    assert refused.value.item == "t"
    replica.wait(publisher.publish_gradients("t", range(8), grads), WAIT_S)
    assert replica.lookup("t", range(8)).tolist() == (-grads).tolist()
    # Who lets them pass has them, and in a replay the same.
    replica.wait(publisher.publish_gradients("t", range(8), bad, nonfinite="pass"), WAIT_S)
    with client.replica("model", start="earliest", arrays="numpy") as again:
        values = again.lookup("t", range(8))
        assert np.isnan(values[3, 0]) and values[4, 1] == -np.inf and np.isfinite(values[[0, 1, 2, 5, 6, 7]]).all()
        assert again.digest() == replica.digest()


def test_what_does_not_fit_a_table_is_refused_before_anything_leaves_and_nothing_may_be_published_too(
    client: ps.Client,
) -> None:
    client.create_topic("model")
    publisher = client.publisher("model", producer="trainer")
    with pytest.raises(ps.UnknownTopic, match="create_table"):
        publisher.publish_gradients("t", [1], np.ones((1, 2), np.float32))
    client.create_table("model", "t", dim=2)
    with pytest.raises(ps.InvalidEvent, match="alter_table"):
        publisher.publish_gradients("t", [1], np.ones((1, 2), np.float32))
    client.alter_table("model", "t", ps.SGD(0.5))
    with pytest.raises(ps.TopicExists):
        client.create_table("model", "t", dim=2)
    replica = client.replica("model")
    for empty in (
        publisher.publish_rows("t", [], np.empty((0, 2), np.float32)),
        publisher.publish_gradients("t", np.empty(0, np.int64), np.empty((0, 2), np.float32)),
        publisher.delete_rows("t", []),
    ):
        assert empty.accepted.result(0) == empty.durable.result(0)
    replica.wait(publisher.publish_gradients("t", [1, 1], np.ones((2, 2), np.float32)), WAIT_S)
    assert replica.lookup("t", [1]).tolist() == [[-1, -1]]
