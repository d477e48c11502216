"""What must come before what: the order of each process, and single pairs beside it; whether all of that has an order.

A process is a chain that is walked up to its next operation that waits for another one, so the work goes with the number of pairs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from .operations import Operations


@dataclass(frozen=True, slots=True)
class Edge:
    """`before` comes before `after`: in their process, or since `after` read it, or because of another read."""

    before: int
    after: int
    because: int | None = None
    """A read that saw `after` and has `before`, another write of its key, in its past: so `before` is the older one."""


class _Pair(NamedTuple):
    before: int
    after: int


class _Step(NamedTuple):
    """A search backwards has come to `before` by the pair (`before`, `after`), from the step with the number `towards`."""

    before: int
    after: int
    towards: int


class Constraints:
    """Pairs of operations beside the orders of the processes: first what reads saw, before the reads; then what `add` adds."""

    def __init__(self, operations: Operations, reads: Iterable[int]) -> None:
        """`reads` come after what they saw, which is a write each."""
        self._process: list[int] = operations.process.tolist()
        self._starts: list[int] = operations.starts.tolist()
        self._befores: dict[int, list[int]] = {read: [int(operations.source[read])] for read in reads}
        """Operation → what it waits for."""
        self._because: dict[_Pair, int] = {}
        self._kept_chains: list[list[int]] | None = None

    def __len__(self) -> int:
        """How many operations wait for another one."""
        return len(self._befores)

    def add(self, before: int, after: int, because: int) -> None:
        """`before` must come before `after`. Of several reasons for one pair the first one stands."""
        pair = _Pair(before, after)
        if pair not in self._because:
            self._because[pair] = because
            self._befores.setdefault(after, []).append(before)
            self._kept_chains = None

    def order(self) -> list[int]:
        """The operations that wait, in an order that keeps everything. Where there is none, some are missing from it."""
        return self._walk()[0]

    def circle(self) -> list[Edge]:
        """Operations that come before themselves, over few pairs. Only where there is no order."""
        held = self._walk()[1]
        # What holds up a process waits for an operation at or behind the one that holds up the next process.
        process = next(iter(held))
        met: list[int] = []
        while process not in met:
            met.append(process)
            process = self._process[held[process].before]
        circles = [self._shortest_circle(held[each]) for each in met[met.index(process) :]]
        return min(circles, key=len)

    def path(self, first: int, last: int, later_than: int = -1) -> list[Edge]:
        """How `first` comes before `last`, over the fewest pairs; empty if it does not.

        `later_than`: of the pairs that are there because of a read, only those whose read has a greater id.
        """
        home, chains = self._process[first], self._chains()
        scanned = self._starts[:-1]
        steps = [_Step(last, last, -1)]
        if self._process[last] == home and first <= last:
            return self._edges(steps, 0, first)
        for at, step in enumerate(steps):
            process, low = self._process[step.before], scanned[self._process[step.before]]
            scanned[process] = max(low, step.before + 1)
            chain = chains[process]
            for after in chain[bisect_left(chain, low) : bisect_left(chain, step.before + 1)]:
                for before in self._befores[after]:
                    if before < scanned[self._process[before]]:
                        continue
                    if self._because.get(_Pair(before, after), later_than + 1) <= later_than:
                        continue
                    steps.append(_Step(before, after, at))
                    if self._process[before] == home and first <= before:
                        return self._edges(steps, len(steps) - 1, first)
        return []

    def _edges(self, steps: list[_Step], at: int, first: int) -> list[Edge]:
        """From `first` on along its process to the step `at`, and from there the way that the search had come."""
        edges: list[Edge] = []
        while True:
            step = steps[at]
            if first != step.before:
                edges.append(Edge(first, step.before))
            if step.towards < 0:
                return edges
            edges.append(self._edge(_Pair(step.before, step.after)))
            first, at = step.after, step.towards

    def _shortest_circle(self, pair: _Pair) -> list[Edge]:
        """Through a pair that lies on a circle."""
        return [self._edge(pair), *self.path(pair.after, pair.before)]

    def _edge(self, pair: _Pair) -> Edge:
        return Edge(pair.before, pair.after, self._because.get(pair))

    def _chains(self) -> list[list[int]]:
        """For each process its operations that wait."""
        if self._kept_chains is None:
            self._kept_chains = [[] for _ in self._starts[1:]]
            for operation in sorted(self._befores):
                self._kept_chains[self._process[operation]].append(operation)
        return self._kept_chains

    def _walk(self) -> tuple[list[int], dict[int, _Pair]]:
        """The order, and for each process that cannot go on the pair that holds it up."""
        chains = self._chains()
        order: list[int] = []
        held: dict[int, _Pair] = {}
        next_of = [0] * len(chains)
        at = [chain[0] if chain else end for chain, end in zip(chains, self._starts[1:], strict=True)]
        """For each process its first operation that is not passed."""
        waiting: list[list[int]] = [[] for _ in chains]
        """For each process those that it holds up."""
        ready = list(range(len(chains)))
        while ready:
            process = ready.pop()
            chain = chains[process]
            held.pop(process, None)
            while next_of[process] < len(chain):
                after = at[process] = chain[next_of[process]]
                unmet = self._unmet(after, at)
                if unmet is not None:
                    held[process] = unmet
                    waiting[self._process[unmet.before]].append(process)
                    break
                order.append(after)
                next_of[process] += 1
            else:
                at[process] = self._starts[process + 1]
            ready += [other for other in waiting[process] if at[process] > held[other].before]
            waiting[process] = [other for other in waiting[process] if at[process] <= held[other].before]
        return order, held

    def _unmet(self, after: int, at: list[int]) -> _Pair | None:
        for before in self._befores[after]:
            if at[self._process[before]] <= before:
                return _Pair(before, after)
        return None
