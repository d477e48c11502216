"""Version vectors: what somebody has seen, or what an event depends on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Generic, TypeVar, cast
from urllib.parse import quote, unquote

from ..errors import InvalidEvent
from .position import MAX_EPOCH, MAX_OFFSET, MAX_POSITION, epoch_of, offset_of, position

PartitionId = tuple[int, int]
"""(topic id, partition number): how everything inside names a partition. Users see (topic name, partition number)."""

META: PartitionId = (0, 0)
"""`__meta`, the internal partition: topics, tables, incarnations and announced snapshots. Its owner makes topics."""

MAX_PARTITION = (1 << 32) - 1
"""A partition's number has 32 bits wherever it is written."""

# Digits as `str` writes them, and a topic that can be written again: no halves of characters.
_ENTRY = re.compile(r"([^=,\ud800-\udfff]+)/([0-9]{1,10})=([0-9]{1,11}):([0-9]{1,9})")

Topic = TypeVar("Topic", str, int)


class VersionVector(Mapping[tuple[Topic, int], int], Generic[Topic]):
    """An immutable mapping (topic, partition) → position. What it does not name stands at the start.

    `a <= b` holds if `b` has seen everything that `a` has; vectors are partly ordered, so both `a <= b` and `b <= a` may
    be false. `str` and `parse` carry a vector of topic names between processes.
    """

    __slots__ = ("_positions",)

    def __init__(self, positions: Mapping[tuple[Topic, int], int] | None = None) -> None:
        self._positions: dict[tuple[Topic, int], int] = dict(positions or {})

    def __getitem__(self, partition: tuple[Topic, int]) -> int:
        return self._positions[partition]

    def __iter__(self) -> Iterator[tuple[Topic, int]]:
        return iter(self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    def __hash__(self) -> int:
        return hash(frozenset(self._positions.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VersionVector) and self._positions == other._positions  # pyright: ignore[reportUnknownMemberType]

    def __le__(self, other: VersionVector[Topic]) -> bool:
        theirs = other._positions
        return all(theirs.get(partition, 0) >= at for partition, at in self._positions.items())

    def merge(self, other: Mapping[tuple[Topic, int], int]) -> VersionVector[Topic]:
        """The least vector that has seen what either has."""
        merged = dict(self._positions)
        for partition, at in other.items():
            if at > merged.get(partition, 0):
                merged[partition] = at
        return VersionVector(merged)

    def __repr__(self) -> str:
        return f"VersionVector({self._positions!r})"

    def __str__(self) -> str:
        """`topic/partition=epoch:offset`, comma-separated and sorted; topic names are percent-encoded."""
        named = sorted((str(topic), number, at) for (topic, number), at in self._positions.items())
        return ",".join(
            f"{quote(topic, safe='')}/{number}={epoch_of(at)}:{offset_of(at)}" for topic, number, at in named
        )

    @staticmethod
    def parse(text: str) -> VersionVector[str]:
        """The vector that `str` wrote. Raises `InvalidEvent`, a `ValueError`, that names the entry which cannot be read."""
        positions: dict[tuple[str, int], int] = {}
        for entry in filter(None, text.split(",")):
            partition, at = _read_entry(entry)
            if partition in positions:
                raise InvalidEvent(f"a version vector names {partition[0]}/{partition[1]} twice")
            positions[partition] = at
        return VersionVector(positions)


def _read_entry(entry: str) -> tuple[tuple[str, int], int]:
    match = _ENTRY.fullmatch(entry)
    if match is not None:
        number, epoch, offset = (int(digits) for digits in match.groups()[1:])
        if number <= MAX_PARTITION and epoch <= MAX_EPOCH and offset <= MAX_OFFSET:
            return (unquote(match[1]), number), position(epoch, offset)
    raise InvalidEvent(f"not a version vector entry: {entry!r} (expected topic/partition=epoch:offset)")


def check_named(vector: Mapping[tuple[str, int], int]) -> None:
    """Whether each entry names a partition and a position that can be. A user's vector is checked where it comes in: the constructor
    is called for each event. Raises `InvalidEvent` that names the entry.
    """
    for entry in cast("Mapping[object, object]", vector).items():
        match entry:
            case ((str(), Integral() as number), Integral() as at) if (
                0 <= int(number) <= MAX_PARTITION and 0 <= int(at) <= MAX_POSITION
            ):
                pass
            case _:
                raise InvalidEvent(
                    f"not a version vector entry: {entry!r}",
                    remedy="An entry is (topic, partition): position, as receipts say them",
                )


EMPTY: VersionVector[int] = VersionVector()
"""The vector that has seen nothing."""
