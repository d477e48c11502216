"""Holds `docs/faults.md` against the tests: every case has a row, every test that a row names is there, and none is forgotten."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from house.checkout import ROOT

PAGE = ROOT / "docs" / "faults.md"
REPORTS = ROOT.parent / "shared" / "cases" / "fault_reports.md"

KINDS = {
    "A": "01 03 04 06 07 09 10", "B": "01 03 04 06 07", "C": "01 03 05 06 07", "D": "01 02 05 06 08 09", "E": "01 03 04 06 07 09",
    "F": "01 03 04 06 07 09 10", "G": "01 03 04 06 07 09", "H": "01 03 04 06 08 10 11 12", "I": "01 03 04 06 08 09 10 12 14",
    "J": "01 02 03", "K": "01 02 03 05 07 09 10", "L": "01 03 04 06 08 09 11 12", "M": "01 03 05 06 07 08 10",
    "N": "01 03 05 07 08 09 10", "O": "01 03 04 06",
}  # fmt: skip
IDS = [kind + number for kind, numbers in KINDS.items() for number in numbers.split()]
"""Of the reports, in their order."""

FIRST_CELL = re.compile(r"^\| ([A-Z]\d\d) \|", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
REASON = re.compile(r"\*Waits for \S|\*Does not apply:\* \S")
SUFFIX = re.compile(r"(?:_[A-O]\d\d)+$")


@dataclass(frozen=True)
class Row:
    id: str
    cells: tuple[str, ...]
    """Fault, how it is designed out, tests."""

    @property
    def tests(self) -> list[tuple[Path, str]]:
        """File, and the test's name up to its ids."""
        links = LINK.findall(self.cells[-1])
        return [((PAGE.parent / target).resolve(), f"test_{words.replace(' ', '_')}") for words, target in links]


def rows(text: str) -> list[Row]:
    """Every row of a page whose first cell is an id."""
    found = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.split("\n") if FIRST_CELL.match(line)
    ]
    return [Row(first, tuple(cells)) for first, *cells in found]


ROWS = rows(PAGE.read_text(encoding="utf-8"))


@cache
def names_in(path: Path) -> frozenset[str]:
    """Names of the test functions of a file, which is read and not run."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    functions = (node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(name for name in functions if name.startswith("test_"))


def ids_of(name: str) -> list[str]:
    """The cases that a test says it pins."""
    suffix = SUFFIX.search(name)
    return re.findall(r"[A-O]\d\d", suffix[0]) if suffix else []


def test_every_case_has_one_row_in_the_order_of_the_reports() -> None:
    assert [row.id for row in ROWS] == IDS
    assert all(len(row.cells) == 3 and all(row.cells) for row in ROWS)


@pytest.mark.skipif(not REPORTS.exists(), reason="the reports do not lie beside this checkout")
def test_the_cases_are_those_of_the_reports() -> None:
    assert FIRST_CELL.findall(REPORTS.read_text(encoding="utf-8")) == IDS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_row_names_tests_that_are_there_or_says_why_it_has_none(row: Row) -> None:
    assert row.tests or REASON.search(row.cells[-1])
    for path, stem in row.tests:
        named = [name for name in names_in(path) if SUFFIX.sub("", name) == stem]
        assert named, f"{path.relative_to(ROOT)} has no test {stem}"


def test_a_case_that_tests_pin_is_said_to_be_tested_by_one_of_them() -> None:
    pinned: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in names_in(path):
            assert re.findall(r"_([A-O]\d\d)(?=_|$)", name) == ids_of(name), f"{name}: ids stand at the end"
            for case in ids_of(name):
                pinned.setdefault(case, []).append(SUFFIX.sub("", name))
    assert pinned.keys() <= set(IDS), "a test names a case that there is not"
    for row in ROWS:
        stems = {stem for _, stem in row.tests}
        assert not (others := pinned.get(row.id)) or stems & set(others), f"{row.id}: one of {others}"


def test_ids_are_read_from_the_end_of_a_name() -> None:
    assert ids_of("test_a_break_is_noticed_F07_M08") == ["F07", "M08"]
    assert ids_of("test_over_A01_layouts") == ids_of("test_2_GiB") == []
