"""Checks recorded histories:

from paramstream.consistency.checking import Model, check_history

verdict = check_history(["history.jsonl"], Model.CAUSAL)
if not verdict.ok and verdict.witness:
    print(verdict.witness.why)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..errors import InvalidHistory
from .causal import find_causal, find_converging
from .delivery import DeliveryCheck
from .history import Apply, DeliveryLine, Epoch, Follow, Jump, Lost, Read, Undo, Unfollow, Write, read_lines
from .operations import Operations, OperationsBuilder, Writers
from .pram import find_pram
from .witness import Find, Witness, find_witness

MAX_CELLS = 1 << 30
"""Operations times processes that write: 4 GiB for what each operation has in its past."""

KEPT_FAULTS = 100
"""So many faults of delivery are told; all are counted."""


class Model(StrEnum):
    """What a history is checked for."""

    PRAM = "pram"
    CAUSAL = "causal"
    CONVERGING = "causal+"


FINDERS: dict[Model, Find] = {
    Model.PRAM: find_pram,
    Model.CAUSAL: find_causal,
    Model.CONVERGING: find_converging,
}


@dataclass(frozen=True, slots=True)
class DeliveryFault:
    """One line of a replica that breaks the order that this replica promises."""

    process: str
    file: str
    line: int
    problem: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check came to."""

    model: Model
    operations: int
    """Writes and reads, without those of what was declared lost."""
    deliveries: int
    """Lines of delivery."""
    witness: Witness | None
    """A smallest part that breaks the model, if it is broken."""
    faults: tuple[DeliveryFault, ...]
    """The first ones, at most `KEPT_FAULTS`."""
    fault_count: int

    @property
    def ok(self) -> bool:
        return self.witness is None and not self.fault_count


def check_history(files: Sequence[str | os.PathLike[str]], model: Model) -> Verdict:
    """Reads the files as `read_history` does, and checks what they hold for `model`. Raises what that raises."""
    return read_history(files).check(model)


def read_history(
    files: Sequence[str | os.PathLike[str]], progress: Callable[[int], None] = lambda nbytes: None
) -> History:
    """Reads the files, one after the other, as one history; what one process did may stand in several, in their order.

    `progress` is called with the bytes of each line. Needs some 700 bytes of memory for each operation, and 4 for each operation and
    process that writes. Raises `InvalidHistory` for a bad file, or where nothing or too much stands in them, `OSError` for one that cannot be read.
    """
    builder, deliveries, lines = OperationsBuilder(), Deliveries(), 0
    for file in files:
        builder.add_file(file)
        for number, line in read_lines(file, progress):
            lines += 1
            if isinstance(line, Write | Read | Lost):
                builder.add(number, line)
            else:
                deliveries.add(os.fspath(file), number, line)
    operations = builder.build()
    if not lines:
        raise InvalidHistory("there is not one line to check", remedy="Name the files that were recorded into")
    _refuse_too_large(operations)
    return History(operations, deliveries)


def _refuse_too_large(operations: Operations) -> None:
    writers = len(Writers(operations))
    if len(operations) * writers > MAX_CELLS:
        raise InvalidHistory(
            f"{len(operations)} operations with {writers} processes that write are too many to check together",
            remedy="Check a part: the lines of fewer keys, or of fewer processes with all that they read",
        )


@dataclass(frozen=True, slots=True)
class History:
    """A history that was read."""

    operations: Operations
    deliveries: Deliveries

    def check(self, model: Model) -> Verdict:
        """Writes and reads are checked for `model`; delivery lines were, as they came, for the order that their replica promises."""
        return Verdict(
            model=model,
            operations=len(self.operations),
            deliveries=self.deliveries.lines,
            witness=find_witness(self.operations, FINDERS[model]),
            faults=tuple(self.deliveries.faults),
            fault_count=self.deliveries.fault_count,
        )


class Deliveries:
    """Checks the delivery lines of all replicas as they come."""

    def __init__(self) -> None:
        self.lines = 0
        self.faults: list[DeliveryFault] = []
        self.fault_count = 0
        self._replicas: dict[str, DeliveryCheck[str]] = {}

    def add(self, file: str, number: int, line: DeliveryLine) -> None:
        self.lines += 1
        replica = self._replicas.setdefault(line.process, DeliveryCheck())
        for problem in _problems(replica, line):
            self.fault_count += 1
            if len(self.faults) < KEPT_FAULTS:
                self.faults.append(DeliveryFault(line.process, file, number, problem))


def _problems(replica: DeliveryCheck[str], line: DeliveryLine) -> list[str]:
    match line:
        case Follow():
            return replica.follow(line.partition, line.position, line.ordering)
        case Unfollow():
            return replica.unfollow(line.partition)
        case Apply():
            return replica.apply(line.partition, line.position, line.own, line.observed)
        case Epoch():
            return replica.epoch(line.partition, line.position)
        case Undo():
            return replica.undo(line.partition, line.position)
        case Jump():
            return replica.jump(line.partition, line.position)
