"""The checkers of histories say what the definitions say, on random histories; and a witness is as small as it can be."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Protocol

import pytest

from paramstream.consistency.causal import Pasts
from paramstream.consistency.checking import FINDERS, Model
from paramstream.consistency.constraints import Constraints
from paramstream.consistency.history import Line, Read, Write
from paramstream.consistency.operations import INITIAL, Bounds, Operations, operations_of
from paramstream.consistency.patterns import Violation
from paramstream.consistency.witness import find_witness
from reference.litmus import CASES, Litmus
from reference.models import History, Op, causal_verdicts, causal_verdicts_by_closure, is_pram
from reference.small_histories import random_history

SMALL = ((3, 3), (4, 3), (2, 2, 1), (3, 2, 1), (2, 2, 2), (4, 4))
"""Lengths of processes: all orders of so many operations are tried, for causal and causal+."""

LARGER = ((3, 2, 2), (2, 2, 1, 1), (3, 3, 1))

FOR_PRAM = ((3, 3), (4, 4, 3), (6, 6), (5, 4, 3, 3), (8, 4, 4))
"""Only the orders of one process are tried at a time, so there may be more operations."""


def lines_of(history: History) -> list[Line]:
    return [_line(f"p{process}", op) for process, ops in enumerate(history) for op in ops]


def _line(process: str, op: Op) -> Line:
    if op.kind == "r" or op.value is None:
        return Read(process, op.key, op.value)
    return Write(process, op.key, op.value)


def has_no_violation(model: Model, lines: Sequence[Line]) -> bool:
    return next(FINDERS[model](operations_of(lines)), None) is None


def holds(model: Model, history: History) -> bool:
    return has_no_violation(model, lines_of(history))


def histories(shapes: Sequence[Sequence[int]], count: int) -> Iterator[list[list[Op]]]:
    """`count` in all, the shapes in turn."""
    chance = random.Random(f"{shapes} {count}")
    for number in range(count):
        yield random_history(chance, shapes[number % len(shapes)], keys=chance.choice([1, 2, 2, 3]))


@cache
def judged(model: Model, shapes: Sequence[Sequence[int]], count: int) -> list[tuple[History, bool]]:
    """With what the definition says."""
    if model is Model.PRAM:
        return [(history, is_pram(history)) for history in histories(shapes, count)]
    both = _judged_causal(shapes, count)
    return [(history, causal if model is Model.CAUSAL else converging) for history, causal, converging in both]


@cache
def _judged_causal(shapes: Sequence[Sequence[int]], count: int) -> list[tuple[History, bool, bool]]:
    found: list[tuple[History, bool, bool]] = []
    for history in histories(shapes, count):
        causal, converging = causal_verdicts(history)
        found.append((history, causal, converging))
    return found


def judged_by_default(model: Model) -> list[tuple[History, bool]]:
    return judged(model, FOR_PRAM, 2000) if model is Model.PRAM else judged(model, SMALL, 1800)


def assert_agreed(model: Model, cases: Sequence[tuple[History, bool]]) -> None:
    assert [history for history, expected in cases if holds(model, history) is not expected] == []
    broken = sum(not expected for _, expected in cases)
    assert len(cases) < 20 * broken < 19 * len(cases), "these histories are all alike"


@pytest.mark.parametrize("model", Model)
def test_a_verdict_is_that_of_the_definition(model: Model) -> None:
    assert_agreed(model, judged_by_default(model))


@pytest.mark.slow
@pytest.mark.parametrize("shape", FOR_PRAM, ids=str)
def test_ten_thousand_verdicts_on_pram_are_those_of_the_definition(shape: Sequence[int]) -> None:
    assert_agreed(Model.PRAM, judged(Model.PRAM, (shape,), 2200))


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "count"), [*((shape, 2000) for shape in SMALL), *((shape, 200) for shape in LARGER)])
def test_ten_thousand_verdicts_on_causality_are_those_of_the_definition(shape: Sequence[int], count: int) -> None:
    for model in (Model.CAUSAL, Model.CONVERGING):
        assert_agreed(model, judged(model, (shape,), count))


@pytest.mark.parametrize("model", [Model.CAUSAL, Model.CONVERGING])
def test_a_verdict_on_many_processes_is_that_of_the_whole_order(model: Model) -> None:
    seen: set[bool] = set()
    for history in histories(((6, 6, 6, 6, 6), (9, 3, 9, 3)), 200):
        causal, converging = causal_verdicts_by_closure(history)
        expected = causal if model is Model.CAUSAL else converging
        assert holds(model, history) is expected, history
        seen.add(expected)
    assert seen == {True, False}


@pytest.mark.parametrize("model", Model)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_known_history_has_its_verdict(case: Litmus, model: Model) -> None:
    assert has_no_violation(model, case.lines()) is case.is_(model)


@pytest.mark.parametrize("model", Model)
def test_a_witness_breaks_the_model_and_nothing_can_be_left_out_of_it(model: Model) -> None:
    broken = [history for history, expected in judged_by_default(model) if not expected][:150]
    for history in broken:
        lines = lines_of(history)
        witness = find_witness(operations_of(lines), FINDERS[model])
        assert witness is not None
        at = {each.line - 1 for each in witness.operations}
        assert not has_no_violation(model, [line for number, line in enumerate(lines) if number in at])
        for left_out in at:
            gone = lines[left_out]
            rest = [line for number, line in enumerate(lines) if number in at and not _is_of(line, gone)]
            assert has_no_violation(model, rest), (history, left_out)


def _is_of(line: Line, gone: Line) -> bool:
    """Whether it goes with what is left out: reads go with their write."""
    if isinstance(gone, Write) and isinstance(line, Write | Read):
        return (line.key, line.value) == (gone.key, gone.value)
    return line is gone


@pytest.mark.parametrize("model", Model)
def test_all_that_a_violation_names_breaks_the_model_by_itself(model: Model) -> None:
    find = FINDERS[model]
    for history in histories(((8, 8, 8), (5, 5, 5, 5)), 60):
        operations = operations_of(lines_of(history))
        for violation in find(operations):
            assert next(find(operations.restricted(violation.operations())), None) is not None, violation


# --- a checker without one of its rules is found out ---------------------------------------------------------------------------


def nothing(*_: object) -> Iterator[Violation]:
    return iter(())


def overwritten_only(patch: pytest.MonkeyPatch, wanted: Callable[[int], bool]) -> None:
    """Of the reads that saw what is overwritten only those are found whose source is wanted."""
    found = Pasts.overwritten

    def some(pasts: Pasts) -> Iterator[tuple[int, int]]:
        source = operations_in(pasts).source
        return ((write, read) for write, read in found(pasts) if wanted(int(source[read])))

    patch.setattr(Pasts, "overwritten", some)


def operations_in(pasts: Pasts) -> Operations:
    operations = vars(pasts)["_operations"]
    assert isinstance(operations, Operations)
    return operations


ROOM = "paramstream.consistency"


class Reader(Protocol):
    """What the PRAM checker knows of one process."""

    def has_order(self) -> bool: ...


def always(_: Reader) -> bool:
    return True


def if_without_order(reader: Reader) -> bool:
    return not reader.has_order()


def as_it_is(_: Reader, past: Bounds, needed: Bounds) -> Bounds:
    return past


def empty(_: Constraints) -> int:
    return 0


def add_nothing(_: Constraints, before: int, after: int, because: int) -> None:
    pass


SWITCHES: dict[str, tuple[Model, Callable[[pytest.MonkeyPatch], None]]] = {
    "values from nowhere": (Model.CAUSAL, lambda patch: patch.setattr(f"{ROOM}.operations.NOBODY", INITIAL)),
    "circles, pram": (Model.PRAM, lambda patch: patch.setattr(f"{ROOM}.pram._Reader.has_order", always)),
    "circles, causal": (Model.CAUSAL, lambda patch: patch.setattr(Constraints, "__len__", empty)),
    "initial values, pram": (
        Model.PRAM,
        lambda patch: patch.setattr(f"{ROOM}.pram._Reader.is_broken", if_without_order),
    ),
    "initial values, causal": (Model.CAUSAL, lambda patch: overwritten_only(patch, lambda source: source >= 0)),
    "overwritten values, pram": (Model.PRAM, lambda patch: patch.setattr(Constraints, "add", add_nothing)),
    "overwritten values, causal": (Model.CAUSAL, lambda patch: overwritten_only(patch, lambda source: source < 0)),
    "what later reads need, pram": (Model.PRAM, lambda patch: patch.setattr(f"{ROOM}.pram._Reader._closed", as_it_is)),
    "ages, causal+": (Model.CONVERGING, lambda patch: patch.setattr(Pasts, "older", nothing)),
}


@pytest.mark.parametrize("rule", SWITCHES)
def test_a_checker_without_one_of_its_rules_is_found_out(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, switch_off = SWITCHES[rule]
    switch_off(monkeypatch)
    by_name = any(has_no_violation(model, case.lines()) is not case.is_(model) for case in CASES)
    assert by_name or any(holds(model, history) is not expected for history, expected in judged_by_default(model))
