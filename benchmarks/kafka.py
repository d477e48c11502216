"""MB/s into a log in Kafka until durable, and ms to an ack of `write_through`, beside a bare aiokafka producer."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import paramstream as ps

from .bare_kafka import BareProducer, is_named, kafka, topic_prefix, why_there_is_none
from .processes import DEADLINE_S, broker, medians, percentile

SMALL_NBYTES = 1024
LARGE_NBYTES = 512 * 1024
BATCH = 128
"""Entries of one `put_many`."""

GAP_S = 0.005
"""Between two puts that wait for their ack."""

TRANSPORT = "ipc"


NODES = 3
"""Of the Kafka in which a record stands three times: only there does an ack outlive the death of a machine."""


def run(quick: bool = False) -> dict[str, object]:
    """Values of 1 KiB by `put_many` and one by one, and of 512 KiB: MB/s of them over ipc, and the ratio to the bare producer.

    `write_back` is measured from the first put until all is durable; `write_through` from each put to its being accepted, p50
    and p99, with one node and then (`replicated_`) with three that have a copy each; the second only in a Kafka that is started
    here. One partition; medians of the rounds. `skipped` says why, where there is no Kafka.
    """
    reason = why_there_is_none()
    if reason:
        return {"skipped": reason}
    rounds, mib, puts = (3, 16, 100) if quick else (7, 64, 300)
    results: dict[str, object] = {}
    with (
        _both(1) as (client, bare),
        client.publisher("back", producer="back") as back,
        client.publisher("through", producer="through") as through,
    ):

        def measure(mib: int, puts: int) -> dict[str, float]:
            return _throughputs(back, bare, mib) | _acks(through, bare, puts)

        measure(8, 20)  # The first ones pay for what is made on first use.
        results |= medians([measure(mib, puts) for _ in range(rounds)])
    if not is_named():
        with _both(NODES) as (client, bare), client.publisher("through", producer="through") as through:
            _acks(through, bare, 20)
            replicated = medians([_acks(through, bare, puts) for _ in range(rounds)])
            results |= {f"replicated_{name}": value for name, value in replicated.items()}
    return results


@contextmanager
def _both(nodes: int) -> Generator[tuple[ps.Client, BareProducer]]:
    """A client with the topics "back" and "through", and a bare producer, over one Kafka with as many copies as it has nodes."""
    with kafka(nodes) as servers, topic_prefix(servers) as prefix:
        settings: dict[str, str | int] = {"topic_prefix": prefix, "replication_factor": nodes}
        with (
            broker(TRANSPORT, f"kafka://{servers}", kafka_settings=settings) as endpoint,
            ps.connect(endpoint) as client,
            BareProducer(servers, f"{prefix}bare", nodes) as bare,
        ):
            client.create_topic("back", persistence="write_back")
            client.create_topic("through", persistence="write_through")
            yield client, bare


def _throughputs(publisher: ps.Publisher, bare: BareProducer, mib: int) -> dict[str, float]:
    return (
        _throughput("1k_batched", publisher, bare, _in_batches, mib * 2**20, SMALL_NBYTES)
        | _throughput("1k", publisher, bare, _one_by_one, mib * 2**18, SMALL_NBYTES)
        | _throughput("512k", publisher, bare, _one_by_one, mib * 2**20, LARGE_NBYTES)
    )


Put = Callable[[ps.Publisher, int, bytes], None]


def _throughput(
    name: str, publisher: ps.Publisher, bare: BareProducer, put: Put, nbytes: int, value_nbytes: int
) -> dict[str, float]:
    count = nbytes // value_nbytes
    began = time.monotonic()
    put(publisher, count, bytes(value_nbytes))
    publisher.flush(DEADLINE_S)
    ours = nbytes / (time.monotonic() - began) / 1e6
    theirs = nbytes / bare.seconds(count, value_nbytes) / 1e6
    return {f"{name}_mb_per_s": ours, f"{name}_bare_mb_per_s": theirs, f"{name}_to_bare": ours / theirs}


def _in_batches(publisher: ps.Publisher, count: int, value: bytes) -> None:
    for first in range(0, count, BATCH):
        publisher.put_many({f"key-{number}": value for number in range(first, first + BATCH)})


def _one_by_one(publisher: ps.Publisher, count: int, value: bytes) -> None:
    for number in range(count):
        publisher.put(f"key-{number}", value)


def _acks(publisher: ps.Publisher, bare: BareProducer, puts: int) -> dict[str, float]:
    value, ours = bytes(SMALL_NBYTES), list[float]()
    for number in range(puts):
        time.sleep(GAP_S)
        began = time.monotonic()
        publisher.put(f"key-{number}", value).accepted.result(DEADLINE_S)
        ours.append(time.monotonic() - began)
    theirs = bare.latencies(puts, SMALL_NBYTES, GAP_S)
    p50, bare_p50 = percentile(ours, 50), percentile(theirs, 50)
    return {
        "ack_p50_ms": p50 * 1e3, "ack_p99_ms": percentile(ours, 99) * 1e3,
        "bare_ack_p50_ms": bare_p50 * 1e3, "bare_ack_p99_ms": percentile(theirs, 99) * 1e3,
        "ack_p50_ratio": p50 / bare_p50,
    }  # fmt: skip
