"""Fault case H04: a producer that comes back without its memory is a new incarnation, whose writes count."""

from __future__ import annotations

import numpy as np
import pytest

import paramstream as ps

COUNT = 100


def test_a_producer_that_starts_again_from_one_is_never_acknowledged_and_then_ignored_H04(broker: ps.Broker) -> None:
    with ps.connect(broker.endpoint) as client:
        client.create_topic("model", partitions=3)
        first = client.publisher("model", producer="t0")
        for number in range(1, COUNT + 1):
            first.put(f"k{number}", b"old %d" % number)
        part = first.publish_weights({"w": np.zeros(3)}, version=1, seal=False)
        first.commit(1, [part])
        (old,) = part.parts
    with ps.connect(broker.endpoint) as client, client.replica("model", arrays="numpy") as replica:
        again = client.publisher("model", producer="t0")
        receipts = [again.put(f"k{number}", b"new %d" % number) for number in range(1, COUNT + 1)]
        for receipt in receipts:
            assert receipt.durable.result(10)
            replica.wait(receipt)
        keys = [f"k{number}" for number in range(1, COUNT + 1)]
        assert replica.get_many(keys) == [b"new %d" % number for number in range(1, COUNT + 1)]

        # Its parts are of the new incarnation too, and a version that stands is refused and not passed over.
        part = again.publish_weights({"w": np.ones(3)}, version=1, seal=False)
        (new,) = part.parts
        assert new.incarnation > old.incarnation
        with pytest.raises(ps.VersionConflict):
            again.commit(1, [part])
        replica.wait(again.commit(1, [part], rewind=True))
        assert np.all(replica.weights()["w"] == 1)
