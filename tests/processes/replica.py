"""A replica that is read all the time: `python -m processes.replica ENDPOINTS TOPICS NAME ORDERING [HISTORY]`.

It says `up` once its start state is served. Between requests it reads entries, and the weights, and counts versions that are torn:
every element of a version is the version's number. What it does is appended to the file `HISTORY`.
"""

from __future__ import annotations

import sys

import numpy as np

import paramstream as ps
from paramstream.consistency.gate import Ordering

from .lines import Line, Lines, say
from .patience import patiently

READ_EVERY_S = 0.01
READ_KEYS = ["shared/0", "shared/1"]


class Reading:
    """Reads whole versions, and counts those that are not."""

    def __init__(self, replica: ps.Replica, topics: list[str]) -> None:
        self._replica = replica
        self._topics = topics
        self.torn = 0

    def once(self) -> None:
        for topic in self._topics:
            self._read(topic)
            self._replica.get_many(READ_KEYS, topic)

    def _read(self, topic: str) -> None:
        try:
            weights = self._replica.weights(topic=topic)
        except ps.VersionNotHeld:
            return
        self.torn += any(not np.all(np.asarray(values) == weights.version) for values in weights.values())


def waited(replica: ps.Replica, vector: str, timeout: float) -> str:
    """What went wrong while waiting for `vector`; empty where it is applied."""
    try:
        replica.wait(ps.VersionVector.parse(vector), timeout)
    except ps.ParamstreamError as error:
        return f"{error.code}: {error}"
    return ""


def state_of(replica: ps.Replica, reading: Reading) -> Line:
    status = replica.status()
    return {
        "digest": replica.digest(),
        "version": status.version,
        "applied": str(status.applied),
        "lost_dependencies": status.lost_dependencies,
        "stopped": {f"{topic}/{number}": str(error) for (topic, number), error in status.stopped.items()},
        "torn": reading.torn,
        "status": repr(status),
    }


def main(endpoints: str, names: str, name: str, ordering: Ordering, history: str | None = None) -> None:
    topics = names.split(",")
    client = ps.connect(endpoints.split(","), history=history, timeout=30)
    replica = patiently(lambda: client.replica(topics, name=name, ordering=ordering, arrays="numpy"))
    reading, lines = Reading(replica, topics), Lines(0)
    say(up=True)
    try:
        while True:
            match lines.next(READ_EVERY_S):
                case {"ask": "wait", "vector": str(vector), "within": within}:
                    say(error=waited(replica, vector, within))
                case {"ask": "state"}:
                    say(**state_of(replica, reading))
                case _:
                    reading.once()
    except EOFError:
        client.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Ordering(sys.argv[4]), *sys.argv[5:])
