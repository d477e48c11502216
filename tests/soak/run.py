"""The soak: three processes under a load, looked at from outside at even intervals."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import paramstream as ps
from paramstream.brokers.fanout import RING_BYTES
from paramstream.eventlog.tally import segment_nbytes_for
from processes.child import Child
from reference.waiting import eventually

from .figures import MIB, Sample, record

TOPIC = "model"
RETAINED = 8
WARM_BYTES = 2 * RING_BYTES
"""Published before the first look: what the broker keeps in memory for followers is full then."""

START_S = 120.0
END_S = 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """How much of what goes by."""

    seconds: float
    version_bytes: int = 20 * MIB
    versions_per_s: float = 4.0
    puts_per_s: float = 50.0
    """Kept low: state stays in the log until there are snapshots to trim it behind."""
    keys: int = 1000
    log_limit: int = 2048 * MIB
    sample_every_s: float = 1.0


def soak(load: Load, folder: Path, watch: Callable[[Sample], None] = lambda sample: None) -> dict[str, object]:
    """Blocks for `load.seconds` and a little. The record has the trends, and what publisher and replica said at the end.

    `folder` gets the log and the standard errors. Raises `ChildFailed` where a process ends or does not answer.
    """
    endpoint = f"ipc://{folder}/socket"
    with Child("broker", folder / "log", endpoint, "boot", load.log_limit, errors=folder / "broker.stderr") as broker:
        broker.read(START_S)
        with ps.connect(endpoint, timeout=60) as client:
            client.create_topic(TOPIC, retain_versions=RETAINED)
        rates = load.version_bytes, load.versions_per_s, load.puts_per_s, load.keys
        with (
            Child("steady_replica", endpoint, TOPIC, errors=folder / "replica.stderr") as replica,
            Child("steady_publisher", endpoint, TOPIC, *rates, errors=folder / "publisher.stderr") as publisher,
        ):
            replica.read(START_S)
            publisher.read(START_S)
            with ps.connect(endpoint, timeout=60) as client:
                eventually(lambda: _published_bytes(client) >= WARM_BYTES, END_S)
            processes = {"broker": broker, "publisher": publisher, "replica": replica}
            samples = _watch(load, processes, folder / "log", watch)
            published = publisher.ask("stop", END_S)
            held = replica.ask("stop", END_S, version=published["version"], vector=published["vector"])
            replica.end(END_S)
            publisher.end(END_S)
        broker.end(END_S)
    segment_bytes = segment_nbytes_for(load.log_limit)
    return {
        **record(samples, segment_bytes),
        "versions": published["version"],
        "puts": published["puts"],
        "replica": held,
        "weight_log_bound_mib": weight_bound(load) / MIB,
    }


def weight_bound(load: Load) -> int:
    """What the weight partition of the log may take in files: what is retained, or half the limit while a young epoch holds
    everything back, and what comes in between two trims; in whole segments.
    """
    in_flight = load.versions_per_s * load.version_bytes * 2
    kept = max(load.log_limit // 2, (RETAINED + 2) * load.version_bytes)
    return int(kept + in_flight) + 2 * segment_nbytes_for(load.log_limit)


def _published_bytes(client: ps.Client) -> int:
    return sum(load.nbytes for load in client.describe_broker().partitions)


def _watch(load: Load, processes: dict[str, Child], log: Path, watch: Callable[[Sample], None]) -> list[Sample]:
    began = time.monotonic()
    samples: list[Sample] = []
    while (now := time.monotonic()) < began + load.seconds:
        for process in processes.values():
            process.check()
        weights, state = _log_bytes(log)
        samples.append(
            Sample(
                at_s=now - began,
                rss_bytes={name: process.rss_bytes for name, process in processes.items()},
                descriptors={name: len(os.listdir(f"/proc/{each.pid}/fd")) for name, each in processes.items()},
                weight_bytes=weights,
                state_bytes=state,
            )
        )
        watch(samples[-1])
        time.sleep(max(0.0, began + len(samples) * load.sample_every_s - time.monotonic()))
    return samples


def _log_bytes(log: Path) -> tuple[int, int]:
    """Bytes on the disk of the topic's weight partition (number 1) and of the rest. A file may go while it is looked at."""
    weights = state = 0
    for path in log.glob("*-*/*"):
        try:
            nbytes = path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
        if path.parent.name.endswith("-1"):
            weights += nbytes
        else:
            state += nbytes
    return weights, state
