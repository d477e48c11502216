"""Fault case D02, end to end: an update that fails half way is never shown, and the replica says that it is behind."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np

import paramstream as ps
from reference.waiting import eventually
from wire.cable import Cable

ELEMENTS = 200_000
"""Of one tensor: 800 kB, an event of its own."""


def weights(version: int) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float32]]]:
    return {f"layer.{n}": np.full(ELEMENTS, version, np.float32) for n in range(4)}


@contextmanager
def readers(replica: ps.Replica, count: int) -> Generator[set[tuple[float, ...]]]:
    """`count` threads that read all the time: yields the set of what they saw, each version as its distinct elements."""
    seen = set[tuple[float, ...]]()
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            held = replica.weights()
            seen.add((held.version, *sorted({float(x) for values in held.values() for x in (values[0], values[-1])})))

    threads = [threading.Thread(target=read, name=f"reader-{n}") for n in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        over.set()
        for thread in threads:
            thread.join(10)


def test_an_update_cut_after_two_of_four_tensors_is_never_seen_and_the_replica_says_it_is_stale_D02(
    broker: ps.Broker, client: ps.Client
) -> None:
    client.create_topic("model")
    publisher = client.publisher("model", producer="trainer")
    publisher.publish_weights(weights(4), version=4).accepted.result(10)
    with Cable(broker.endpoint) as cable, ps.connect(cable.endpoint) as far:
        replica = far.replica("model", arrays="numpy")
        with readers(replica, 4) as seen:
            cable.cut_after(int(2.5 * ELEMENTS * 4))
            publisher.publish_weights(weights(5), version=5).accepted.result(10)
            eventually(lambda: not cable.whole)
            # The connection is gone a moment before the replica has taken in that it is.
            status = eventually(lambda: not (now := replica.status()).connected and now.stale and now)
            assert status.version == 4 and status.last_error
            assert seen == {(4, 4.0)}

            cable.mend()
            replica.wait_version(5, timeout=20)
            eventually(lambda: (5, 5.0) in seen)
            eventually(lambda: (now := replica.status()).connected and not now.stale)
        assert seen == {(4, 4.0), (5, 5.0)}
        assert replica.weights().digest == client.versions("model")[-1].digest
