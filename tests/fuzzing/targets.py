"""All decoders, by fuzzer: each fuzzer has one process, and the first byte of its input says which of its decoders gets the rest.

A decoder that is added anywhere in the library gets a row in one of these tables.
"""

from __future__ import annotations

from fuzzing import kafka, live, log, peers, recovery, state, text, wire
from fuzzing.target import Target

FUZZERS: dict[str, tuple[Target, ...]] = {
    "wire": wire.TARGETS,
    "log": (*log.TARGETS, *recovery.TARGETS),
    "kafka": kafka.TARGETS,
    "state": state.TARGETS,
    "text": text.TARGETS,
    "peers": (*peers.TARGETS, *live.TARGETS),
}

TARGETS: dict[str, Target] = {target.name: target for targets in FUZZERS.values() for target in targets}


def chosen(fuzzer: str, data: bytes) -> tuple[Target, bytes]:
    """Which decoder an input of a fuzzer is for, and what it gets."""
    targets = FUZZERS[fuzzer]
    return targets[(data[0] if data else 0) % len(targets)], data[1:]


def inputs(fuzzer: str) -> list[bytes]:
    """Where a fuzzer begins: valid inputs of each of its decoders, and all that was found before."""
    return [
        bytes([number]) + data
        for number, target in enumerate(FUZZERS[fuzzer])
        for data in (*target.seeds(), *(path.read_bytes() for path in target.corpus()))
    ]
