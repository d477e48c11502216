"""The history of a world, as the real recorders write it, and what the public checkers say of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from paramstream.consistency.causal import find_causal
from paramstream.consistency.checking import Deliveries
from paramstream.consistency.history import Line, Lost, Read, Write
from paramstream.consistency.operations import operations_of
from paramstream.consistency.pram import find_pram
from paramstream.consistency.witness import find_witness
from paramstream.events.recording import process_name


class History:
    """In memory what `events.recording.HistoryFile` is in a file: it takes everything, and outlives whoever is killed."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._lives: Counter[str] = Counter()
        self.error: OSError | None = None

    def append(self, lines: Iterable[Line]) -> bool:
        self.lines.extend(lines)
        return True

    def flush(self) -> bool:
        return True

    def next_life(self, replica: str) -> str:
        """The process that its next life is."""
        self._lives[replica] += 1
        return process_name(replica, self._lives[replica])


def history_problems(history: History, pram_only: Collection[str]) -> Iterator[str]:
    """`pram_only`: the replicas that promise no causal order. What they show is left out where that is asked for."""
    deliveries = Deliveries()
    for number, line in enumerate(history.lines, 1):
        if not isinstance(line, Write | Read | Lost):
            deliveries.add("history", number, line)
    yield from (f"line {fault.line} of {fault.process}: {fault.problem}" for fault in deliveries.faults)
    causal = [line for line in history.lines if not _is_of(line, pram_only)]
    for lines, model, find in ((history.lines, "PRAM", find_pram), (causal, "causal", find_causal)):
        witness = find_witness(operations_of(lines), find)
        if witness is not None:
            yield f"not {model}: {witness.why}"


def _is_of(line: Line, replicas: Collection[str]) -> bool:
    """What a replica did, or somebody read of what it had seen."""
    process = line.process.partition("/")[0]
    seen = line.key.partition("/") if isinstance(line, Write | Read) else ("", "", "")
    return process in replicas or (seen[0] == "seen" and seen[2].partition("/")[0] in replicas)
