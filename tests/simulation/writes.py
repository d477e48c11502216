"""How the simulation names what was written: by writer and call, in the value itself."""

from __future__ import annotations

from paramstream.consistency.vector import PartitionId

Write = tuple[str, int, int]
"""(producer, incarnation, number of the call)."""

Part = tuple[Write, PartitionId]
"""A write as far as it went to one partition: the parts of one call go side by side."""


def value_of(write: Write) -> bytes:
    return f"{write[0]}/{write[1]}/{write[2]}".encode()


def write_of(value: bytes) -> Write:
    producer, incarnation, number = value.decode().split("/")
    return producer, int(incarnation), int(number)
