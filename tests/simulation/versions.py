"""Dense versions of the simulation: three small tensors whose values follow from the version's number."""

from __future__ import annotations

import struct
from collections.abc import Generator

from paramstream.events.digest import tensor_digest, version_digest
from paramstream.events.kinds import Chunk, Commit, Part, PartRef, Segment, TensorSpec
from paramstream.producers.calls import Call, Draft

from .topics import SimTopic

NAMES = ["x", "y", "z"]


def tensor_of(version: int, name: str) -> bytes:
    return struct.pack("<4q", *([version * 4 + NAMES.index(name)] * 4))


def publishing(topic: SimTopic, version: int, producer: str, incarnation: int) -> Generator[Draft, int, None]:
    """The events of one version, one by one; each is answered with the sequence that it was given."""
    specs: list[TensorSpec] = []
    for name in NAMES:
        data = tensor_of(version, name)
        sequence = yield Draft.of(topic.weights, Chunk(version, (Segment(name, 0, len(data)),)), (data,), 32)
        specs.append(TensorSpec(name, "int64", (4,), tensor_digest(data), len(data), sequence, sequence))
    part = yield Draft.of(topic.weights, Part(version, tuple(specs)), (), 64)
    reference = PartRef(producer, incarnation, part)
    yield Draft.of(topic.weights, Commit(version, (reference,), version_digest(specs)), (), 64)


def after(events: Generator[Draft, int, None], sequence: int) -> Draft | None:
    """The event that follows on the one which was given `sequence`; None behind the last one."""
    try:
        return events.send(sequence)
    except StopIteration:
        return None


def new_call(topic: SimTopic, version: int) -> Call:
    return Call((topic.weights,), topic.persistence, whole=True, version=version)
