"""A replica that serves look-ups until its standard input ends: `python -m processes.serving_replica ENDPOINT TOPIC NAME [PARTITION ...]`."""

from __future__ import annotations

import sys

import paramstream as ps

from .lines import Lines, say


def main(endpoint: str, topic: str, name: str, *partitions: str) -> None:
    lines = Lines(0)
    followed = [int(number) for number in partitions] or None
    with (
        ps.connect(endpoint, timeout=60) as client,
        client.replica(topic, name=name, partitions=followed, arrays="numpy", timeout=60) as replica,
        replica.serve() as serving,
    ):
        say(serves=serving.endpoint)
        try:
            lines.next(600)
        except EOFError:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
