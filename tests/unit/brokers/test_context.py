"""What a version's owner knows of all that stands before it: who begins with the version has not seen that."""

from __future__ import annotations

import numpy as np

from feeding.writer import Writer
from paramstream.brokers.state import PartitionState
from paramstream.consistency.vector import VersionVector
from paramstream.events.codec import decode_event, decode_vector
from paramstream.events.kinds import Chunk, Segment

WEIGHTS = (7, 1)


def state_after(writer: Writer, start: int = 0, state: PartitionState | None = None) -> PartitionState:
    state = state or PartitionState()
    for frame in writer.after(max(start, state.position)):
        state.apply(decode_event(frame))
    return state


def chunk(writer: Writer, producer: str, own: dict[tuple[int, int], int], observed: dict[tuple[int, int], int]) -> None:
    writer.write(Chunk(99, (Segment("x", 0, 1),)), [b"x"], producer=producer, own=own, observed=observed)


def version(writer: Writer, number: int) -> None:
    writer.version(number, {"w": np.zeros(2, np.float32)}, producer="trainer")


def test_a_version_knows_what_every_producer_before_it_had_seen() -> None:
    writer = Writer(WEIGHTS)
    chunk(writer, "one", {(7, 0): 3}, {(8, 0): 5})
    chunk(writer, "other", {(7, 0): 2}, {(9, 0): 1})
    chunk(writer, "one", {(7, 0): 4}, {(8, 0): 5})
    version(writer, 1)
    chunk(writer, "late", {(7, 0): 100}, {})
    state = state_after(writer)
    known = decode_vector(state.dense.sealed[-1].context)
    assert known == VersionVector({(7, 0): 4, (8, 0): 5, (9, 0): 1})


def test_what_forgotten_producers_had_seen_is_known_on() -> None:
    writer = Writer(WEIGHTS)
    chunk(writer, "gone", {}, {(9, 0): 1})
    version(writer, 1)
    state = state_after(writer)
    state.forget(state.position)
    assert "gone" not in state.sessions
    version(writer, 2)
    state_after(writer, state=state)
    assert decode_vector(state.dense.sealed[-1].context) == VersionVector({(9, 0): 1})
    again = PartitionState.decode(state.encode(), state.position)
    assert again.dense.sealed[-1] == state.dense.sealed[-1]
