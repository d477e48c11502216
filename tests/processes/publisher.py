"""A publisher that never rests: `python -m processes.publisher ENDPOINTS TOPICS NAME LIFE JOURNAL HISTORY SEED [weights] [observes]`.

It makes the calls of `load.py` in all topics. With `weights` it publishes versions too; with `observes` its writes depend on
what a replica of its own has seen, and it reads that. What it does is appended to the file `HISTORY`. Asked to `stop` it waits until every call has its outcome, and says how its flushes went.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import paramstream as ps

from .journal import JournalWriter
from .lines import Lines, say
from .load import Load
from .patience import patiently
from .replica import READ_KEYS

PAUSE_S = 0.005


def flush_errors(pub: ps.Publisher, timeout: float) -> Iterator[ps.ParamstreamError]:
    """Flush until nothing is open: each flush raises one error of what ended badly since the last one."""
    while True:
        try:
            pub.flush(timeout)
        except ps.ParamstreamError as error:
            yield error
            if isinstance(error, ps.ParamstreamTimeout):
                return
        else:
            return


def last_version(client: ps.Client, topic: str) -> int:
    return max((found.version for found in patiently(lambda: client.versions(topic))), default=0)


def main(
    endpoints: str, names: str, name: str, life: str, journal: str, history: str, seed: str, *options: str
) -> None:
    topics = names.split(",")
    client = ps.connect(endpoints.split(","), history=history, timeout=30)
    seen = None
    if "observes" in options:
        seen = patiently(lambda: client.replica(topics, name=f"eye-of-{name}", arrays="numpy"))

    def open_in(topic: str) -> ps.Publisher:
        return patiently(lambda: client.publisher(topic, producer=name, observes=seen))

    publishers = [open_in(topic) for topic in topics]
    in_memory = {topic.name for topic in patiently(client.topics) if topic.persistence == "none"}
    versions = {topic: last_version(client, topic) for topic in topics if topic not in in_memory}
    if "weights" not in options:
        versions.clear()
    load = Load(publishers, int(life), JournalWriter(Path(journal)), random.Random(seed), versions, in_memory)
    lines = Lines(0)
    say(up=True)
    while (request := lines.next(PAUSE_S)) is None:
        load.burst()
        if seen is not None:
            for topic in topics:
                seen.get_many(READ_KEYS, topic)
    assert request["ask"] == "stop"
    errors = list(flush_errors(publishers[0], request["within"]))
    client.close()
    say(timed_out=any(isinstance(error, ps.ParamstreamTimeout) for error in errors), errors=list(map(str, errors)))


if __name__ == "__main__":
    main(*sys.argv[1:])
