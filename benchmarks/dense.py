"""GB/s of dense weights from publish to a whole version shown by a replica, beside raw ZeroMQ frames and a memcpy."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import paramstream as ps

from .processes import TRANSPORTS, Following, broker, medians
from .raw_zmq import RawRelay

TENSORS = 16
RAW_FRAME_NBYTES = 1024 * 1024
TOPIC = "weights"

Weights = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Log:
    """A log of a broker, and how many versions go through it before any is measured."""

    kind: str
    limit_versions: int
    warm_up: int


LOGS = {
    # The first ones pay for memory that is kept from then on. All that the log keeps is fresh memory all the same.
    "memory": Log("memory:", limit_versions=64, warm_up=2),
    # As after a longer run: old versions leave it, and new ones get their memory.
    "memory_full": Log("memory:", limit_versions=16, warm_up=20),
    "file": Log("file:", limit_versions=64, warm_up=2),
}


def run(quick: bool = False) -> dict[str, object]:
    """Over ipc and tcp, with a memory log (new, and full) and a local one: GB/s, and the ratios to raw frames and one memcpy.

    Producer, broker and replica are three processes; medians of the rounds. A ratio of 0.5 to raw means half its speed.
    """
    rounds, nbytes = (3, 32 * 2**20) if quick else (7, 64 * 2**20)
    results: dict[str, object] = {}
    for transport in TRANSPORTS:
        for log, settings in LOGS.items():
            for name, value in _over(transport, settings, rounds, nbytes).items():
                results[f"{transport}_{log}_{name}"] = value
    return results


def _over(transport: str, log: Log, rounds: int, nbytes: int) -> dict[str, object]:
    weights = {f"layer.{n}": np.ones(nbytes // TENSORS // 4, dtype=np.float32) for n in range(TENSORS)}
    with (
        broker(transport, log.kind, log.limit_versions * nbytes) as endpoint,
        ps.connect(endpoint) as client,
        RawRelay(transport, RAW_FRAME_NBYTES) as raw,
    ):
        client.create_topic(TOPIC)
        with client.publisher(TOPIC, producer="dense") as publisher, Following(endpoint, TOPIC) as replica:
            for version in range(log.warm_up):
                _publish(publisher, replica, weights, version)
            versions = range(log.warm_up, log.warm_up + rounds)
            raw.seconds(nbytes)
            return medians([_round(publisher, replica, raw, weights, version) for version in versions])


def _round(
    publisher: ps.Publisher, replica: Following, raw: RawRelay, weights: Weights, version: int
) -> dict[str, float]:
    nbytes = sum(values.nbytes for values in weights.values())
    ours = nbytes / _publish(publisher, replica, weights, version) / 1e9
    theirs = nbytes / raw.seconds(nbytes) / 1e9
    memcpy = nbytes / _copy(weights) / 1e9
    return {"gb_per_s": ours, "raw_gb_per_s": theirs, "to_raw": ours / theirs, "to_memcpy": ours / memcpy}


def _publish(publisher: ps.Publisher, replica: Following, weights: Weights, version: int) -> float:
    """Seconds until the replica shows the version."""
    for values in weights.values():
        values[version] = -1.0
    replica.tell(("version", version))
    began = time.monotonic()
    publisher.publish_weights(weights, version)
    return float(replica.answer()) - began


def _copy(weights: Weights) -> float:
    """Seconds of a copy into memory that is there already."""
    targets = {name: np.zeros_like(values) for name, values in weights.items()}
    for name, values in weights.items():
        targets[name].fill(1)
        values[0] = 1.0
    began = time.monotonic()
    for name, values in weights.items():
        np.copyto(targets[name], values)
    return time.monotonic() - began
