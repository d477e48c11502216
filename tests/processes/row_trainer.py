"""A trainer that never rests: `python -m processes.row_trainer ENDPOINT NAME ROWS DIM KEYS PAUSE_S SEED`.

It publishes gradients of `KEYS` keys a call, of which some are far more frequent than others and may repeat, every `PAUSE_S`. Asked
to `stop` it waits until every call has its outcome.
"""

from __future__ import annotations

import sys

import numpy as np

import paramstream as ps

from .lines import Lines, say
from .patience import patiently
from .publisher import flush_errors
from .rows import TABLE, TOPIC, some_keys


def main(endpoint: str, name: str, rows: int, dim: int, count: int, pause_s: float, seed: int) -> None:
    client = ps.connect(endpoint, timeout=30)
    publisher = patiently(lambda: client.publisher(TOPIC, producer=name))
    chance, lines, made = np.random.default_rng(seed), Lines(0), 0
    say(up=True)
    while (request := lines.next(pause_s)) is None:
        keys = some_keys(chance, rows, count)
        gradients = chance.standard_normal((count, dim), np.float32)
        try:
            publisher.publish_gradients(TABLE, keys, gradients, timeout=1.0)
            made += 1
        except ps.BackpressureTimeout:
            # While the broker is away; what was not taken never was.
            continue
    assert request["ask"] == "stop"
    errors = list(flush_errors(publisher, request["within"]))
    client.close()
    say(
        made=made,
        timed_out=any(isinstance(error, ps.ParamstreamTimeout) for error in errors),
        errors=list(map(str, errors)),
    )


if __name__ == "__main__":
    _, where, who, size, width, keys_a_call, pause, chance_seed = sys.argv
    main(where, who, int(size), int(width), int(keys_a_call), float(pause), int(chance_seed))
