"""Histories as a stream would leave them: writers and readers over partitions, each process at its own pace.

A key lives in one partition, and everybody applies a partition in its order. A process that is behind applies an event only with
all that the event rests on, so what it reads is causal, and converges.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paramstream.consistency.history import Line, Read, Write, encode_line

PARTITIONS = 8
KEYS = 2000
WRITES = 0.6
"""Of what those do that also write."""

Vector = npt.NDArray[np.int64]
"""For each partition how many of its events."""


def stream_history(count: int, *, processes: int = 16, causal: bool = True, broken: bool = False) -> Iterator[Line]:
    """`count` operations. `broken`: in its second half a process reads two writes of a writer, the later one first."""
    stream = _Stream(random.Random(1), processes, causal=causal)
    at = 0
    while broken:
        at += 1
        lines = stream.step_back() if at > count // 2 else []
        yield from lines or [stream.step()]
        broken = not lines
    for _ in range(count - at):
        yield stream.step()


def write_history(path: Path, lines: Iterator[Line]) -> None:
    with path.open("wb") as file:
        file.writelines(map(encode_line, lines))


class _Written(NamedTuple):
    at: int
    """Its place in its partition."""
    writer: int

    @property
    def value(self) -> str:
        return f"p{self.writer}/1/{self.at}"


class _Stream:
    """Processes of even numbers write as well, the others only read."""

    def __init__(self, chance: random.Random, processes: int, *, causal: bool) -> None:
        self._chance = chance
        self._causal = causal
        self._pasts: list[list[Vector]] = [[] for _ in range(PARTITIONS)]
        """For each event of each partition what it rests on, with itself."""
        self._keys: list[list[int]] = [[] for _ in range(PARTITIONS)]
        """For each event of each partition its key."""
        self._written: dict[int, list[_Written]] = {}
        """Key → its events."""
        self._seen = [np.zeros(PARTITIONS, np.int64) for _ in range(processes)]
        self._own = [np.zeros(PARTITIONS, np.int64) for _ in range(processes)]

    def step(self) -> Line:
        process = self._chance.randrange(len(self._seen))
        if process % 2 == 0 and self._chance.random() < WRITES:
            return self._write(process)
        return self._read(process)

    def step_back(self) -> list[Line]:
        """A process reads the last write of a key, and then another one of the same writer; empty where it has seen none."""
        process, key = self._chance.randrange(len(self._seen)), self._chance.randrange(KEYS)
        written = self._written_to(key, process)[::-1]
        before = [each for each in written[1:] if each.writer == written[0].writer]
        return [_read_of(process, key, each) for each in (written[0], *before[:1])] if before else []

    def _write(self, process: int) -> Line:
        key = self._chance.randrange(KEYS)
        partition = key % PARTITIONS
        pasts = self._pasts[partition]
        past = (self._seen if self._causal else self._own)[process].copy()
        if pasts:
            np.maximum(past, pasts[-1], out=past)
        past[partition] = len(pasts) + 1
        written = _Written(len(pasts), process)
        self._written.setdefault(key, []).append(written)
        pasts.append(past)
        self._keys[partition].append(key)
        np.maximum(self._seen[process], past, out=self._seen[process])
        np.maximum(self._own[process], past, out=self._own[process])
        return Write(f"p{process}", f"k{key}", written.value)

    def _read(self, process: int) -> Line:
        """Applies a few events, and reads the key of the last one, or any."""
        seen = self._seen[process]
        key = self._chance.randrange(KEYS)
        for _ in range(self._chance.randrange(16)):
            partition = self._chance.randrange(PARTITIONS)
            at = int(seen[partition])
            if at < len(self._pasts[partition]):
                np.maximum(seen, self._pasts[partition][at], out=seen)
                if self._chance.random() < 0.5:
                    key = self._keys[partition][at]
        written = self._written_to(key, process)
        return _read_of(process, key, written[-1] if written else None)

    def _written_to(self, key: int, process: int) -> list[_Written]:
        """What the process has seen of a key."""
        written = self._written.get(key, [])
        return written[: bisect_left(written, (int(self._seen[process][key % PARTITIONS]), 0))]


def _read_of(process: int, key: int, written: _Written | None) -> Read:
    return Read(f"p{process}", f"k{key}", None if written is None else written.value)
