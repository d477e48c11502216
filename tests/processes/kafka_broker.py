"""A broker over a log in Kafka: `python -m processes.kafka_broker BOOTSTRAP PREFIX ENDPOINT SESSION_S`.

It says its endpoint, and runs until its standard input ends.
"""

from __future__ import annotations

import sys

import paramstream as ps
from paramstream.eventlog.kafka.settings import KafkaLog

from .lines import Lines, say
from .patience import patiently

REQUEST_S = 5.0


def main(bootstrap: str, prefix: str, endpoint: str, session_s: str) -> None:
    log = KafkaLog(
        bootstrap.split(","), topic_prefix=prefix, request_timeout_s=REQUEST_S, session_timeout_s=float(session_s)
    )
    # Kafka may be down when it starts.
    with patiently(lambda: ps.Broker(endpoint, log)) as broker:
        say(endpoint=broker.endpoint)
        lines = Lines(0)
        try:
            while True:
                lines.next(60)
        except EOFError:
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
