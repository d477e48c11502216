"""GB/s of dense weights from publish to a whole version shown by a replica, beside raw ZeroMQ frames and a memcpy."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

import paramstream as ps

from .processes import TRANSPORTS, Following, broker, medians
from .raw_zmq import RawRelay

TENSORS = 16
RAW_FRAME_NBYTES = 1024 * 1024
TOPIC = "weights"

Weights = dict[str, npt.NDArray[np.float32]]


def run(quick: bool = False) -> dict[str, object]:
    """Over ipc and tcp, with a memory log and a local one: GB/s, and the ratios to raw frames and to one memcpy.

    Producer, broker and replica are three processes; medians of the rounds. A ratio of 0.5 to raw means half its speed.
    """
    rounds, nbytes = (3, 32 * 2**20) if quick else (7, 64 * 2**20)
    results: dict[str, object] = {}
    for transport in TRANSPORTS:
        for log in ("memory:", "file:"):
            for name, value in _over(transport, log, rounds, nbytes).items():
                results[f"{transport}_{log.strip(':')}_{name}"] = value
    return results


def _over(transport: str, log: str, rounds: int, nbytes: int) -> dict[str, object]:
    weights = {f"layer.{n}": np.ones(nbytes // TENSORS // 4, dtype=np.float32) for n in range(TENSORS)}
    with (
        broker(transport, log) as endpoint,
        ps.connect(endpoint) as client,
        RawRelay(transport, RAW_FRAME_NBYTES) as raw,
    ):
        client.create_topic(TOPIC)
        with client.publisher(TOPIC, producer="dense") as publisher, Following(endpoint, TOPIC) as replica:
            figures = [_round(publisher, replica, raw, weights, version) for version in range(2 + rounds)]
            # The first ones pay for memory that is kept from then on.
            return medians(figures[2:])


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
