"""How the simulation names what was written: by writer and call, in the value itself."""

from __future__ import annotations

from collections.abc import Iterable

from paramstream.consistency.vector import PartitionId

MAX_INCARNATION = 1 << 34
"""Those of a real `__meta` begin above its epoch."""

Write = tuple[str, int, int]
"""(producer, incarnation, number of the call)."""

Part = tuple[Write, PartitionId]
"""A write as far as it went to one partition: the parts of one call go side by side."""

LETTERS = b"abcd"
DELETED_BY = b"deleted by "


def keys_of(partition: PartitionId) -> list[bytes]:
    """What users put there. A key has one partition."""
    return [b"%c%d" % (letter, partition[1]) for letter in LETTERS]


def value_of(write: Write) -> bytes:
    return f"{write[0]}/{write[1]}/{write[2]}".encode()


def write_of(value: bytes) -> Write:
    producer, incarnation, number = value.decode().split("/")
    return producer, int(incarnation), int(number)


def name_of_delete(write: Write, partition: PartitionId) -> bytes:
    """A key that nobody puts: what a delete names beside its own, so that it can be known."""
    return DELETED_BY + value_of(write) + b" in %d" % partition[1]


def writes_of_delete(keys: Iterable[bytes]) -> list[Write]:
    names = (key.removeprefix(DELETED_BY) for key in keys if key.startswith(DELETED_BY))
    return [write_of(name.partition(b" ")[0]) for name in names]


def version_of(count: int, write: Write) -> int:
    """A version's number says who published it in which call; it goes up with `count`."""
    producer, incarnation, number = write
    assert incarnation < MAX_INCARNATION and number < 1000
    return ((count * 10 + int(producer[1:])) * MAX_INCARNATION + incarnation) * 1000 + number


def write_of_version(version: int) -> Write:
    rest, number = divmod(version, 1000)
    rest, incarnation = divmod(rest, MAX_INCARNATION)
    return f"p{rest % 10}", incarnation, number
