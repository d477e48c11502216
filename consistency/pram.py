"""The checker of PRAM, as R. Lipton and J. Sandberg define it: for each process p there is an order of its own operations and the
writes of all others that keeps the order of every process, and in which each of p's reads sees the last write of its key.

For one p, *before* is the least order that holds the order of each process, puts what a read of p saw before the read, and has
this rule: a write that is before a read of p is before what the read saw, if it is another write of that key. There is such an
order of p exactly if *before* has no circle, and no read of the initial value has a write of its key before it. For then let P(i)
be what is before p's i-th read; it grows with i. Place P(1), then that read, then what P(2) adds, and so on, each time in an
order that keeps *before*: every write of the key that stands before the i-th read is in P(i), so by the rule before what it saw.

The rule puts pairs into P(i) only because of later reads: a pair of the i-th read has both its ends in P(i) already. So the
reads are taken from the last one to the first, once each, and P(i) is what the pairs of the later ones make of p's own past.
(With causality instead of the order of each process this is the saturation of "On verifying causal consistency", POPL 2017.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from .constraints import Constraints, Edge
from .operations import INITIAL, Bounds, Ids, LastWrites, Operations, Writers
from .patterns import Violation, thin_air, violation


def find_pram(operations: Operations) -> Iterator[Violation]:
    """What breaks PRAM, one after the other; nothing if it holds."""
    from_nowhere = list(thin_air(operations))
    if from_nowhere:
        yield from from_nowhere
        return
    writes = _Writes(operations)
    for process in range(len(operations.starts) - 1):
        yield from _find_in(writes, process)


STRIDES = 64
"""The reads of a process that break PRAM are cut into so many, and those strides that are too many at the end are left out: one by
one it would take a check of all reads for each binary digit of their number.
"""


def _find_in(writes: _Writes, process: int) -> Iterator[Violation]:
    """What the first reads of the process break, about the fewest that do: the fewer there are, the shorter is what explains it."""
    first, end = writes.operations.starts[process : process + 2]
    reads = np.flatnonzero(~writes.operations.is_write[first:end]) + first
    if not len(reads) or not _Reader(writes, process, reads).is_broken():
        return
    stride = -(-len(reads) // STRIDES)
    ends = range(stride, len(reads), stride)
    fewest = bisect_left(ends, True, key=lambda end: _Reader(writes, process, reads[:end]).is_broken())
    yield from _Reader(writes, process, reads[: stride * (fewest + 1)]).find()


class _Writes:
    """What all readers look things up in."""

    def __init__(self, operations: Operations) -> None:
        self.operations = operations
        self.writers = Writers(operations)
        self.last = LastWrites(operations)
        lengths = operations.starts[self.writers.processes + 1] - self.writers.starts + 1
        self.shift = np.cumsum(lengths) - lengths - self.writers.starts
        """For each writer, the row of a bound in what `needed` gives is the bound with this added."""
        self._rows = int(lengths.sum())

    def needed(self) -> Bounds:
        """For each bound of each writer a past that what is below the bound needs: at first nothing. Shape (rows, writers)."""
        return self.writers.empty_pasts(self._rows)


class _Reader:
    """One process with its reads, and what must come before what for it. Pasts are as in `Operations`."""

    def __init__(self, writes: _Writes, process: int, reads: Ids) -> None:
        operations = writes.operations
        self._writes = writes
        self._operations = operations
        self._reads = reads
        self._own = int(writes.writers.column[process])
        self._before = Constraints(operations, reads[operations.source[reads] >= 0].tolist())
        self._initial: list[tuple[int, int]] = []
        """(write, read) of the initial value behind that write."""
        self._saturate()

    def is_broken(self) -> bool:
        return bool(self._initial) or not self.has_order()

    def find(self) -> Iterator[Violation]:
        for write, read in self._initial:
            yield violation(self._explain(write, read), self._explain, read)
        if not self.has_order():
            yield violation(self._before.circle(), self._explain)

    def has_order(self) -> bool:
        return len(self._before.order()) == len(self._before)

    def _explain(self, write: int, read: int) -> list[Edge]:
        return self._before.path(write, read, later_than=read)

    def _saturate(self) -> None:
        writes, operations = self._writes, self._operations
        needed, grown = writes.needed(), False
        own_pasts = self._own_pasts()
        keys = operations.key[self._reads]
        for at in range(len(self._reads) - 1, -1, -1):
            past = self._closed(own_pasts[at], needed) if grown else own_pasts[at]
            older = writes.last.before(keys[at], past, writes.writers.starts)
            read = int(self._reads[at])
            saw = int(operations.source[read])
            if saw == INITIAL:
                self._initial += [(write, read) for write in older[older >= 0].tolist()]
                continue
            column = writes.writers.column[operations.process[saw]]
            row = writes.shift[column]
            # Everything at or behind what was seen needs the older ones as well.
            behind = needed[row + saw + 1 : row + past[column] + 1]
            new = (older >= 0) & (older != saw) & (older >= behind[0])
            if new.any():
                grown = True
                for write in older[new].tolist():
                    self._before.add(write, saw, because=read)
                np.maximum(behind, np.where(new, older + 1, writes.writers.starts), out=behind)

    def _own_pasts(self) -> Bounds:
        """For each read of the process the past that the orders of the processes and what its reads saw give. Shape (reads, writers)."""
        writers, source = self._writes.writers, self._operations.source[self._reads]
        pasts = writers.empty_pasts(len(self._reads))
        rows = np.flatnonzero(source >= 0)
        pasts[rows, writers.column[self._operations.process[source[rows]]]] = source[rows] + 1
        np.maximum.accumulate(pasts, axis=0, out=pasts)
        if self._own >= 0:
            pasts[:, self._own] = np.maximum(pasts[:, self._own], self._reads)
        return pasts

    def _closed(self, past: Bounds, needed: Bounds) -> Bounds:
        """The past with all that it needs."""
        while True:
            wider = np.maximum(past, needed[past + self._writes.shift].max(axis=0))
            if np.array_equal(wider, past):
                return past
            past = wider
