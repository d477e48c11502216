"""The checkers of causal consistency, and of causal consistency with convergence.

*Causality* is the least order that holds each process's order and puts what a read saw before the read. Values are unique, so a
history is causal (CC: each read is explained by its causal past) exactly if none of these is in it, and causal+ (CCv: there is
besides one order of all writes that decides what the newest is, for everybody) exactly if the last one is not in it either:

- a read of a value that nobody wrote;
- a circle of causality;
- a read of the initial value, with a write of the key in its past;
- a read of a write, with another write of the key in its past that comes causally after that one;
- a circle of causality and *age*: a write that is in the past of a read is older than the write that the read saw.

A. Bouajjani, C. Enea, R. Guerraoui, J. Hamza: On verifying causal consistency. POPL 2017.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .constraints import Constraints, Edge
from .operations import INITIAL, Bools, Bounds, Ids, LastWrites, Operations, Writers
from .patterns import Violation, thin_air, violation


def find_causal(operations: Operations) -> Iterator[Violation]:
    """What breaks causal consistency, one after the other; nothing if it holds."""
    return _find(operations, converging=False)


def find_converging(operations: Operations) -> Iterator[Violation]:
    """What breaks causal consistency with convergence, one after the other; nothing if it holds."""
    return _find(operations, converging=True)


def _find(operations: Operations, *, converging: bool) -> Iterator[Violation]:
    from_nowhere = list(thin_air(operations))
    if from_nowhere:
        yield from from_nowhere
        return
    causality = Constraints(operations, reads_that_wait(operations).tolist())
    order = causality.order()
    if len(order) < len(causality):
        yield violation(causality.circle(), causality.path)
        return
    pasts = Pasts(operations, order)
    for write, read in pasts.overwritten():
        saw = int(operations.source[read])
        if saw == INITIAL:
            yield violation(causality.path(write, read), causality.path, read)
        else:
            yield violation([Edge(write, saw, because=read), *causality.path(saw, write)], causality.path)
    if converging:
        ages = Constraints(operations, reads_that_wait(operations).tolist())
        for write, read in pasts.older():
            ages.add(write, int(operations.source[read]), because=read)
        if len(ages.order()) < len(ages):
            yield violation(ages.circle(), causality.path)


def reads_that_wait(operations: Operations) -> Ids:
    """The reads of another process's write, or of a later one of their own: the order of their process does not hold them."""
    source, ids = operations.source, np.arange(len(operations))
    own = (operations.process[source] == operations.process) & (source < ids)
    return np.flatnonzero((source >= 0) & ~own)


class Pasts:
    """What is in the causal past of each operation, with itself: one id for each writing process, the first that is not."""

    def __init__(self, operations: Operations, order: Sequence[int]) -> None:
        """`order`: the reads that wait, in an order that keeps causality."""
        self._operations = operations
        self._writers = Writers(operations)
        self._bounds = self._starts()
        self._last = LastWrites(operations)
        self._fill(order)

    def overwritten(self) -> Iterator[tuple[int, int]]:
        """(write, read): the write is in the read's past, and comes causally after what the read saw."""
        saw = self._operations.source
        for column in range(len(self._writers)):
            write = self._newest(column)
            after = (saw == INITIAL) | (self._has(write, saw) & (write != saw))
            yield from _pairs(write, (write >= 0) & after)

    def older(self) -> Iterator[tuple[int, int]]:
        """(write, read): the write is in the read's past, is not what the read saw, and causality does not say which is older.

        For each process only the last such write: its own order says the rest.
        """
        saw = self._operations.source
        for column in range(len(self._writers)):
            write = self._newest(column)
            yield from _pairs(write, (write >= 0) & (saw >= 0) & (write != saw) & ~self._has(saw, write))

    def _newest(self, column: int) -> Ids:
        """For each operation the last write of its key in its past by one of the writers, or -1; -1 for writes."""
        operations = self._operations
        found = self._last.before(operations.key, self._bounds[:, column], self._writers.starts[column])
        return np.where(operations.is_write, -1, found)

    def _has(self, operation: Ids, write: Ids) -> Bools:
        """For each pair whether the write is in the operation's past. Where either is -1 the answer means nothing."""
        known: Bools = self._bounds[operation, self._writers.column[self._operations.process[write]]] > write
        return known

    def _starts(self) -> Bounds:
        """Of everybody only its own process, up to itself."""
        operations = self._operations
        bounds = self._writers.empty_pasts(len(operations))
        column = self._writers.column[operations.process]
        own = np.flatnonzero(column >= 0)
        bounds[own, column[own]] = own + 1
        return bounds

    def _fill(self, order: Sequence[int]) -> None:
        """Each read that waits adds the past of what it saw, for itself and what follows in its process up to the next one."""
        operations, bounds = self._operations, self._bounds
        waiting = np.sort(np.array(order, np.int64))
        ends = np.minimum(np.append(waiting[1:], len(operations)), operations.starts[operations.process[waiting] + 1])
        end_of = dict(zip(waiting.tolist(), ends.tolist(), strict=True))
        starts = set(operations.starts.tolist())
        source = operations.source.tolist()
        for read in order:
            past = bounds[source[read]]
            if read not in starts:
                past = np.maximum(past, bounds[read - 1])
            run = bounds[read : end_of[read]]
            np.maximum(run, past, out=run)


def _pairs(write: Ids, chosen: Bools) -> Iterator[tuple[int, int]]:
    reads = np.flatnonzero(chosen)
    return zip(write[reads].tolist(), reads.tolist(), strict=True)
