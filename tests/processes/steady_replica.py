"""A replica that is read at a steady rate: `python -m processes.steady_replica ENDPOINT TOPIC`.

Every 50 ms it looks at the first and last element of each tensor of what it serves, and counts versions that are torn. Asked
to `stop` with a version and a vector, it waits for both and says what it holds.
"""

from __future__ import annotations

import sys

import numpy as np

import paramstream as ps

from .lines import Line, Lines, say

READ_EVERY_S = 0.05


def is_torn(weights: ps.Weights) -> bool:
    ends = {float(np.asarray(values)[at]) for values in weights.values() for at in (0, -1)}
    return ends != {float(weights.version)}


def main(endpoint: str, topic: str) -> None:
    lines = Lines(0)
    with ps.connect(endpoint, timeout=60) as client, client.replica(topic, name="steady", arrays="numpy") as replica:
        say(up=True)
        torn = reads = 0
        asked: Line | None = None
        while asked is None:
            asked = lines.next(READ_EVERY_S)
            if replica.status().version is not None:
                torn += is_torn(replica.weights())
                reads += 1
        replica.wait(ps.VersionVector.parse(asked["vector"]), 60)
        replica.wait_version(asked["version"], 60)
        status = replica.status()
        say(version=status.version, reads=reads, torn=torn, error=status.last_error, buffered=status.buffered_bytes)


if __name__ == "__main__":
    main(*sys.argv[1:])
