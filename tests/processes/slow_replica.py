"""A replica that a test stops and lets go on: `python -m processes.slow_replica ENDPOINT TOPIC NAME CATCH_UP [REST_S]`.

It notes each version that it switches to, and how long after its sequencing, and rests for `REST_S` seconds after each, in
which it applies nothing, until it is told to `hurry`. It says `up` once its start state is served.
"""

from __future__ import annotations

import statistics
import sys
import time

import paramstream as ps

from .lines import Line, Lines, say


class Switches:
    """Versions in the order in which they were served, and the staleness of each, in seconds."""

    def __init__(self, rest_s: float) -> None:
        self.seen: list[tuple[int, float]] = []
        self.rest_s = rest_s

    def note(self, info: ps.VersionInfo) -> None:
        self.seen.append((info.version, time.time() - info.time.timestamp()))
        time.sleep(self.rest_s)

    def between(self, first: int, last: int) -> Line:
        """Of versions `first` to `last`: how many were served, whether they only went up, and the median staleness."""
        found = [(version, late_s) for version, late_s in self.seen if first <= version <= last]
        versions = [version for version, _ in found]
        return {
            "count": len(found),
            "only_up": versions == sorted(set(versions)),
            "median_s": statistics.median(late_s for _, late_s in found) if found else None,
        }


def state_of(replica: ps.Replica) -> Line:
    status = replica.status()
    return {
        "digest": replica.digest(),
        "version": status.version,
        "jumping": list(status.jumping),
        "stale": status.stale,
        "buffered": status.buffered_bytes,
        "stopped": {f"{topic}/{number}": error.code for (topic, number), error in status.stopped.items()},
        "last_error": status.last_error,
    }


def waited(replica: ps.Replica, version: int, vector: str, timeout: float) -> str:
    """The code and text of what went wrong while waiting; empty where all came."""
    try:
        replica.wait_version(version, timeout)
        replica.wait(ps.VersionVector.parse(vector), timeout)
    except ps.ParamstreamError as error:
        return f"{error.code}: {error}"
    return ""


def main(endpoint: str, topic: str, name: str, catch_up: str, rest_s: str = "0") -> None:
    switches, lines = Switches(float(rest_s)), Lines(0)
    with (
        ps.connect(endpoint, timeout=60) as client,
        client.replica(topic, name=name, catch_up=catch_up, arrays="numpy") as replica,
    ):
        replica.on_switch(switches.note)
        say(up=True)
        try:
            while True:
                match lines.next(60):
                    case {"ask": "wait", "version": int(version), "vector": str(vector), "within": within}:
                        say(error=waited(replica, version, vector, within))
                    case {"ask": "between", "first": int(first), "last": int(last)}:
                        say(**switches.between(first, last))
                    case {"ask": "hurry"}:
                        switches.rest_s = 0.0
                    case {"ask": "state"}:
                        say(**state_of(replica))
                    case _:
                        pass
        except EOFError:
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
