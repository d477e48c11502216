"""Fault case G09: a publisher that is killed in the middle of a version leaves nothing that anybody sees or waits for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from paramstream.consumers import applying
from processes.child import Child
from processes.half_publisher import ELEMENTS, TENSORS, weights_of
from reference.waiting import eventually

CHUNKS = 2
KILLED_S = 30.0


@pytest.mark.parametrize("mode", ["whole", "part"])
def test_a_publisher_killed_after_two_of_five_chunks_leaves_the_old_version_served_and_nothing_behind_G09(
    broker: ps.Broker, client: ps.Client, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applying, "IDLE_STAGED_S", 0.3)
    client.create_topic("model")
    client.publisher("model", producer="first").publish_weights(weights_of(1), version=1).durable.result(10)
    with (
        ps.TieredStore() as store,
        client.replica("model", store=store, arrays="numpy") as replica,
        client.subscribe("model") as events,
    ):
        half = Child("half_publisher", broker.endpoint, "model", 2, CHUNKS, mode, errors=tmp_path / "half.err")
        with half:
            assert half.read(KILLED_S) == {"sent": CHUNKS}
            found = [next(events) for _ in range(CHUNKS)]
        assert [(event.kind, event.version, event.producer) for event in found] == [("chunk", 2, "trainer")] * CHUNKS
        replica.wait(found[-1].vector)
        status = replica.status()
        assert (status.version, status.stale, status.stopped, status.last_error) == (1, False, {}, "")
        assert all(np.all(values == 1) for values in replica.weights().values())
        assert store.usage().staging_bytes < (CHUNKS + 1) * ELEMENTS * 4
        assert [known.version for known in client.versions("model")] == [1]
        # After its time the replica says whose version does not go on, and has given the memory back.
        eventually(lambda: replica.status().unfinished == (ps.Unfinished("model", 2, "trainer"),))
        assert store.usage().staging_bytes == 0

        again = client.publisher("model", producer="trainer")
        if mode == "whole":
            receipt = again.publish_weights(weights_of(2), version=2)
        else:
            halves = [dict(list(weights_of(2).items())[at : at + 3]) for at in (0, 3)]
            receipt = again.commit(2, [again.publish_weights(half, 2, seal=False) for half in halves])
        replica.wait(receipt, 10)
        assert (replica.weights().version, len(replica.weights())) == (2, TENSORS)
        assert all(np.all(values == 2) for values in replica.weights().values())
        receipt.durable.result(10)
        # What the dead one had sent has ended with the commit, and its memory is given back.
        eventually(lambda: store.usage().staging_bytes == 0 and not replica.status().unfinished)
