"""What was written after what had been read, kept beside the protocol: it knows calls and values, no stamp and no vector.

Each call of a writer has a number. A value says who wrote it in which call, and what the writer had read before: for each
other writer and partition the number of the last call that it saw there. So the past of a call is its writer's calls before
it, and the calls that it read, with their pasts.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

Line = tuple[str, int]
"""A writer's calls that went to one partition."""

Reads = dict[Line, int]
"""Line → the number of the last call that was read there."""


@dataclass(frozen=True)
class Write:
    """One call of a writer, as far as it went to one partition."""

    writer: str
    call: int
    partition: int


@dataclass
class Truth:
    """All calls. Each writer adds its own, so threads do not meet."""

    partitions: dict[str, list[tuple[int, ...]]] = field(default_factory=dict[str, list[tuple[int, ...]]])
    """Writer → for each of its calls, from number 0 on, the partitions that it went to."""
    reads: dict[str, list[Reads]] = field(default_factory=dict[str, list[Reads]])
    """Writer → for each call what was read between the call before and it."""
    _pasts: dict[tuple[str, int], Reads] = field(default_factory=dict[tuple[str, int], Reads])

    def add_writer(self, writer: str) -> None:
        self.partitions[writer], self.reads[writer] = [], []

    def called(self, writer: str, partitions: Iterable[int], reads: Mapping[Line, int]) -> int:
        """The number of the call; say so before the call is made."""
        self.partitions[writer].append(tuple(partitions))
        self.reads[writer].append(dict(reads))
        return len(self.partitions[writer]) - 1

    def own_past(self, writer: str, call: int) -> Reads:
        """The last call of the writer itself before `call`, on each of its lines."""
        past: Reads = {}
        for number, partitions in enumerate(self.partitions[writer][:call]):
            for partition in partitions:
                past[writer, partition] = number
        return past

    def past(self, writer: str, call: int) -> Reads:
        """Everything that the call rests on, whoever wrote it."""
        self._work_out()
        return self._pasts[writer, call]

    def _work_out(self) -> None:
        """Pasts of all calls, each once those that it rests on are known."""
        waiting = [
            (writer, call) for writer, calls in self.partitions.items() for call in range(len(calls))
            if (writer, call) not in self._pasts
        ]  # fmt: skip
        while waiting:
            left = [(writer, call) for writer, call in waiting if not self._work_out_one(writer, call)]
            assert len(left) < len(waiting), "calls that rest on each other in a circle were read"
            waiting = left

    def _work_out_one(self, writer: str, call: int) -> bool:
        reads = self.reads[writer][call]
        needed = {(other, number) for (other, _), number in reads.items()}
        if call:
            needed.add((writer, call - 1))
        if not needed <= self._pasts.keys():
            return False
        past: Reads = self.own_past(writer, call)
        for other in needed:
            _merge(past, self._pasts[other])
        _merge(past, reads)
        self._pasts[writer, call] = past
        return True


def _merge(into: Reads, other: Mapping[Line, int]) -> None:
    for line, number in other.items():
        into[line] = max(into.get(line, -1), number)


def encode_value(writer: str, call: int) -> bytes:
    return json.dumps([writer, call]).encode()


def decode_value(value: bytes) -> tuple[str, int]:
    writer, call = json.loads(value)
    return str(writer), int(call)


def violations(
    truth: Truth, applied: Iterable[Write], follows: Collection[int], *, causal: bool, whole: bool = True
) -> list[str]:
    """What is wrong with the order in which one consumer applied writes. `whole`: at the end everything must be there."""
    wrong: list[str] = []
    last: Reads = {}
    expected = {
        (writer, partition): [number for number, went in enumerate(calls) if partition in went]
        for writer, calls in truth.partitions.items()
        for partition in follows
    }
    done: dict[Line, int] = dict.fromkeys(expected, 0)
    for write in applied:
        line = write.writer, write.partition
        rank = done[line]
        if rank >= len(expected[line]) or expected[line][rank] != write.call:
            wrong.append(f"{write} came as number {rank} of its line, which has the calls {expected[line]}")
        done[line] += 1
        past = truth.past(write.writer, write.call) if causal else truth.own_past(write.writer, write.call)
        for other, number in past.items():
            if other[1] in follows and last.get(other, -1) < number:
                wrong.append(f"{write} was applied before call {number} on {other}; there stood {last.get(other)}")
        last[line] = write.call
    if whole:
        wrong += [f"{line} ends after {done[line]} of {len(calls)} calls" for line, calls in expected.items()
                  if done[line] != len(calls)]  # fmt: skip
    return wrong
