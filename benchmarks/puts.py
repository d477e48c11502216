"""100-byte puts a second until a replica shows the last one: in batches, one by one, and in order over many partitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import paramstream as ps

from .processes import Following, broker, medians
from .raw_zmq import RawRelay

VALUE = bytes(100)
BATCH = 1000
"""Entries of one `put_many`."""

PARTITIONS = 8
TRANSPORT = "ipc"


def run(quick: bool = False) -> dict[str, object]:
    """Puts a second over ipc, medians of the rounds, beside raw frames of 100 bytes a second; with a memory log.

    `put_many`: batches, one partition. `put`: one by one, one partition, pipelined. `ordered_put`: one by one over 8
    partitions, where each change of the partition waits for the answer to the put before it.
    """
    rounds, puts = (3, 4_000) if quick else (7, 20_000)
    with broker(TRANSPORT) as endpoint, ps.connect(endpoint) as client, RawRelay(TRANSPORT, len(VALUE)) as raw:
        client.create_topic("one")
        client.create_topic("many", partitions=PARTITIONS)
        with (
            client.publisher("one", producer="one") as one,
            client.publisher("many", producer="many") as many,
            Following(endpoint, "one") as sees_one,
            Following(endpoint, "many") as sees_many,
        ):

            def measure(puts: int) -> dict[str, float]:
                return {
                    "put_many_per_s": _per_s(_in_batches, one, sees_one, 5 * puts),
                    "put_per_s": _per_s(_one_by_one, one, sees_one, puts),
                    "ordered_put_per_s": _per_s(_one_by_one, many, sees_many, puts // 5),
                    "raw_frames_per_s": puts / raw.seconds(puts * len(VALUE)),
                }

            measure(BATCH)  # The first ones pay for what is made on first use.
            return medians([measure(puts) for _ in range(rounds)])


Publish = Callable[[ps.Publisher, int], Iterable[ps.Receipt]]


def _per_s(publish: Publish, publisher: ps.Publisher, replica: Following, puts: int) -> float:
    began = time.monotonic()
    receipts = list(publish(publisher, puts))
    seen = replica.when_seen(receipts[-1])
    return puts / (seen - began)


def _in_batches(publisher: ps.Publisher, puts: int) -> Iterable[ps.Receipt]:
    for first in range(0, puts, BATCH):
        yield publisher.put_many({f"key-{number}": VALUE for number in range(first, first + BATCH)})


def _one_by_one(publisher: ps.Publisher, puts: int) -> Iterable[ps.Receipt]:
    for number in range(puts):
        yield publisher.put(f"key-{number}", VALUE)
