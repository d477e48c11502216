"""The reference for the checkers: PRAM, causal and causal+ by their definitions, over every order that a small history can have.

But for one function it knows no pattern and no saturation, and it shares no code with the checkers. Definitions after Lipton and Sandberg (PRAM) and
Bouajjani, Enea, Guerraoui and Hamza (causal consistency CC, with convergence CCv).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Op(NamedTuple):
    kind: str
    """"w" or "r"."""
    key: str
    value: int | None


History = Sequence[Sequence[Op]]
"""For each process its operations. Values written to one key are unique; None is the initial value."""


def is_pram(history: History) -> bool:
    """Each process has an order of its own operations and all writes of others, in which its reads see the last write."""
    return all(
        _has_order([list(ops) if other == process else [op for op in ops if op.kind == "w"]
                    for other, ops in enumerate(history)])
        for process in range(len(history))
    )  # fmt: skip


def _has_order(chains: History) -> bool:
    """Some interleaving of the chains lets every read see the last write of its key before it."""
    tried: set[tuple[object, ...]] = set()

    def goes_on(at: tuple[int, ...], stored: dict[str, int | None]) -> bool:
        state = (at, *sorted(stored.items()))
        if state in tried:
            return False
        tried.add(state)
        if all(index == len(chain) for index, chain in zip(at, chains, strict=True)):
            return True
        for process, chain in enumerate(chains):
            if at[process] < len(chain):
                op = chain[at[process]]
                after = (*at[:process], at[process] + 1, *at[process + 1 :])
                if op.kind == "w" and goes_on(after, stored | {op.key: op.value}):
                    return True
                if op.kind == "r" and stored.get(op.key) == op.value and goes_on(after, stored):
                    return True
        return False

    return goes_on((0,) * len(chains), {})


class CausalVerdicts(NamedTuple):
    causal: bool
    """There is a causal order (it holds every process's order) such that for each read its causal past has an order that keeps
    it, and in which the last write of the key is what the read saw."""
    converging: bool
    """There are a causal order and one order of everything that keeps it, such that each read saw the last write of its key in
    its causal past by that one order."""


def causal_verdicts(history: History) -> CausalVerdicts:
    executions = _executions(tuple(len(ops) for ops in history))
    causal = np.ones(len(executions.groups), np.bool_)
    converging = np.ones(len(executions.rank), np.bool_)
    for fits in _fitting_reads(history, executions):
        # Executions of one group have the same causal order; together they show each order of a past that keeps it.
        causal &= np.logical_or.reduceat(fits, executions.groups)
        converging &= fits
    return CausalVerdicts(bool(causal.any()), bool(converging.any()))


def causal_verdicts_by_closure(history: History) -> CausalVerdicts:
    """The same for histories of any size, by bad patterns on the whole matrix of the least causal order."""
    ops = [(process, op) for process, chain in enumerate(history) for op in chain]
    wrote = {(op.key, op.value): at for at, (_, op) in enumerate(ops) if op.kind == "w"}
    order = np.zeros((len(ops), len(ops)), np.bool_)
    for at, (process, _) in enumerate(ops[1:], 1):
        order[at - 1, at] = ops[at - 1][0] == process
    reads = [(at, op.key, wrote.get((op.key, op.value), -1)) for at, (_, op) in enumerate(ops) if op.kind == "r"]
    if any(saw < 0 and ops[read][1].value is not None for read, _, saw in reads):
        return CausalVerdicts(False, False)
    for read, _, saw in reads:
        if saw >= 0:
            order[saw, read] = True
    order = _closure(order)
    ages = order.copy()
    causal = not order.diagonal().any()
    for read, key, saw in reads:
        for other in (at for (of, _), at in wrote.items() if of == key and at != saw and order[at, read]):
            causal &= saw >= 0 and not order[saw, other]
            ages[other, saw if saw >= 0 else other] = True
    return CausalVerdicts(causal, not _closure(ages).diagonal().any())


def _closure(order: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    for middle in range(len(order)):
        order = order | order[:, middle : middle + 1] & order[middle]
    return order


@dataclass(frozen=True)
class _Executions:
    """Every pair of a causal order and an order of everything that keeps it, for processes of given lengths.

    Operations are numbered process by process.
    """

    rank: npt.NDArray[np.int8]
    """Shape (pairs, operations): each operation's place in the order of everything, from 1 on."""
    past: npt.NDArray[np.bool_]
    """Shape (pairs, operations, operations): whether the second operation is in the causal past of the first."""
    groups: npt.NDArray[np.intp]
    """Where the next causal order begins."""


@cache
def _executions(lengths: tuple[int, ...]) -> _Executions:
    found: dict[tuple[int, ...], list[list[int]]] = {}
    for pasts, order in _grow(lengths, (0,) * len(lengths), {}, []):
        found.setdefault(pasts, []).append(order)
    count = sum(lengths)
    orders = [order for group in found.values() for order in group]
    rank = np.argsort(np.array(orders, np.int8), axis=1).astype(np.int8) + 1
    masks = np.array([pasts for pasts, group in found.items() for _ in group], np.int64)
    past = (masks[:, :, None] >> np.arange(count) & 1).astype(np.bool_)
    sizes = [len(group) for group in found.values()]
    return _Executions(rank, past, np.cumsum([0, *sizes[:-1]]))


def _grow(
    lengths: tuple[int, ...], at: tuple[int, ...], pasts: dict[int, int], order: list[int]
) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """All ways to go on: which operation is next, and which of those before it are in its causal past (as bits)."""
    starts = [sum(lengths[:process]) for process in range(len(lengths))]
    if at == lengths:
        yield tuple(past for _, past in sorted(pasts.items())), order
        return
    for process in range(len(lengths)):
        if at[process] == lengths[process]:
            continue
        op = starts[process] + at[process]
        after = (*at[:process], at[process] + 1, *at[process + 1 :])
        for seen in product(*(range(count + 1) for count in at)):
            past = sum(1 << start + index for start, count in zip(starts, seen, strict=True) for index in range(count))
            closed = all(pasts[other] & ~past == 0 for other in pasts if past >> other & 1)
            if seen[process] == at[process] and closed:
                yield from _grow(lengths, after, pasts | {op: past}, [*order, op])


def _fitting_reads(history: History, executions: _Executions) -> Iterator[npt.NDArray[np.bool_]]:
    """For each read the executions in which it sees the last write of its key in its past."""
    ops = [op for process in history for op in process]
    for read, op in enumerate(ops):
        if op.kind == "r":
            writes = [at for at, other in enumerate(ops) if other.kind == "w" and other.key == op.key]
            values = np.array([0, *(ops[at].value for at in writes)])
            newest = np.where(executions.past[:, read, writes], executions.rank[:, writes], 0)
            last = np.argmax(np.pad(newest, ((0, 0), (1, 0))), axis=1)
            yield values[last] == (0 if op.value is None else op.value)
