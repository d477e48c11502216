"""Random small histories, of which about half break a model: some are made up read by read, some come from a memory."""

from __future__ import annotations

import random
from collections.abc import Sequence

from .models import Op


def random_history(chance: random.Random, lengths: Sequence[int], keys: int) -> list[list[Op]]:
    """Processes of these lengths on so many keys. Half of the histories are those of a memory, some with one read changed."""
    history = [[_blank(chance, keys) for _ in range(length)] for length in lengths]
    _number_writes(history)
    if chance.random() < 0.5:
        for process in history:
            for at, op in enumerate(process):
                if op.kind == "r":
                    process[at] = _any_read(chance, history, op.key)
    else:
        _run_memory(chance, history, in_order=chance.random() < 0.7)
        reads = [(process, at) for process in history for at, op in enumerate(process) if op.kind == "r"]
        if reads and chance.random() < 0.5:
            process, at = chance.choice(reads)
            process[at] = _any_read(chance, history, process[at].key)
    return history


def _blank(chance: random.Random, keys: int) -> Op:
    return Op(chance.choice("wr"), chance.choice("xyz"[:keys]), None)


def _number_writes(history: list[list[Op]]) -> None:
    count = 0
    for process in history:
        for at, op in enumerate(process):
            if op.kind == "w":
                count += 1
                process[at] = op._replace(value=count)


def _any_read(chance: random.Random, history: list[list[Op]], key: str) -> Op:
    values = [op.value for process in history for op in process if op.kind == "w" and op.key == key]
    roll = chance.random()
    if roll < 0.02:
        return Op("r", key, 99)
    return Op("r", key, chance.choice(values) if values and roll < 0.85 else None)


def _run_memory(chance: random.Random, history: list[list[Op]], *, in_order: bool) -> None:
    """Every process has a copy, to which writes of others come later: in the order of each writer, or in any order."""
    copies: list[dict[str, int | None]] = [{} for _ in history]
    on_the_way: list[list[list[Op]]] = [[[] for _ in history] for _ in history]
    at = [0] * len(history)
    while any(index < len(process) for index, process in zip(at, history, strict=True)):
        me = chance.choice([p for p, process in enumerate(history) if at[p] < len(process)])
        for queue in on_the_way[me]:
            while queue and chance.random() < 0.6:
                write = queue.pop(0 if in_order else chance.randrange(len(queue)))
                copies[me][write.key] = write.value
        op = history[me][at[me]]
        if op.kind == "w":
            copies[me][op.key] = op.value
            for other, queues in enumerate(on_the_way):
                if other != me:
                    queues[me].append(op)
        else:
            history[me][at[me]] = op._replace(value=copies[me].get(op.key))
        at[me] += 1
