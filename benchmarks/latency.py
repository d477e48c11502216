"""Publish to visible of a 100-byte KV put, producer, broker and replica in three processes, beside two raw ZeroMQ hops."""

from __future__ import annotations

import time

import paramstream as ps

from .processes import TRANSPORTS, Following, broker, medians, percentile
from .raw_zmq import RawRelay

VALUE_NBYTES = 100
GAP_S = 0.002
"""Between two puts: long enough that none waits for the one before it."""

TOPIC = "latency"


def run(quick: bool = False) -> dict[str, object]:
    """Over ipc and tcp: p50 and p99 in ms, those of the raw hops, and the ratio; medians of the rounds."""
    rounds, puts = (3, 150) if quick else (7, 500)
    results: dict[str, object] = {}
    for transport in TRANSPORTS:
        for name, value in _over(transport, rounds, puts).items():
            results[f"{transport}_{name}"] = value
    return results


def _over(transport: str, rounds: int, puts: int) -> dict[str, object]:
    with broker(transport) as endpoint, ps.connect(endpoint) as client, RawRelay(transport, VALUE_NBYTES) as raw:
        client.create_topic(TOPIC)
        with client.publisher(TOPIC, producer="latency") as publisher, Following(endpoint, TOPIC) as replica:
            # The first round pays for what is made on first use.
            return medians([_round(publisher, replica, raw, puts) for _ in range(1 + rounds)][1:])


def _round(publisher: ps.Publisher, replica: Following, raw: RawRelay, puts: int) -> dict[str, float]:
    ours, theirs = _latencies(publisher, replica, puts), raw.latencies(puts, GAP_S)
    p50, p99 = percentile(ours, 50), percentile(ours, 99)
    raw_p50, raw_p99 = percentile(theirs, 50), percentile(theirs, 99)
    return {
        "p50_ms": p50 * 1e3, "p99_ms": p99 * 1e3,
        "raw_p50_ms": raw_p50 * 1e3, "raw_p99_ms": raw_p99 * 1e3,
        "p50_ratio": p50 / raw_p50, "p99_ratio": p99 / raw_p99,
    }  # fmt: skip


def _latencies(publisher: ps.Publisher, replica: Following, puts: int) -> list[float]:
    # Positions are dense, and nobody else writes: the replica knows what to wait for before it is made.
    before = publisher.put("before", b"").positions
    keys = [f"{before}-{number}" for number in range(puts)]
    replica.tell(("latencies", (str(before), keys)))
    padding = bytes(VALUE_NBYTES - 8)
    for key in keys:
        time.sleep(GAP_S)
        publisher.put(key, time.monotonic_ns().to_bytes(8, "little") + padding)
    return list(replica.answer())
