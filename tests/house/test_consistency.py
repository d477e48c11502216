"""Holds the histories of `docs/consistency.md` against the verdicts that stand beside them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest

from house.checkout import ROOT
from paramstream.consistency.causal import find_causal, find_converging
from paramstream.consistency.history import Line, Operation, Read, Write, read_lines
from paramstream.consistency.operations import operations_of
from paramstream.consistency.pram import find_pram

PAGE = ROOT / "docs" / "consistency.md"
LITMUS = ROOT.parent / "shared" / "cases" / "litmus.json"

SECTION = re.compile(r"^### (?P<title>.+?)\n\n(?P<table>(?:\|.*\n)+)\n(?P<verdict>PRAM: .*)$", re.MULTILINE)
MODELS = {"pram": find_pram, "causal": find_causal, "causal+": find_converging}
OPERATION = re.compile(r"`([wr]) (\S+) (\S+)`")


@dataclass(frozen=True)
class Example:
    title: str
    history: dict[str, list[dict[str, Any]]]
    """Process → what it did, in its order."""
    verdict: dict[str, bool]

    def lines(self) -> list[Operation]:
        return [
            (Write if done["op"] == "w" else Read)(process, done["key"], done["value"])
            for process, own in self.history.items()
            for done in own
        ]


def example_of(section: re.Match[str]) -> Example:
    """A table whose columns are processes, and the sentence behind it."""
    processes, _, *lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section["table"].splitlines()]
    history: dict[str, list[dict[str, Any]]] = {process: [] for process in processes}
    for line in lines:
        for process, cell in zip(processes, line, strict=True):
            if cell:
                op, key, value = OPERATION.fullmatch(cell).groups()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
                history[process].append({"op": op, "key": key, "value": None if value == "-" else int(value)})
    words = re.findall(r"(\S+): (allowed|forbidden)", section["verdict"])
    return Example(section["title"], history, {model.lower(): word == "allowed" for model, word in words})


EXAMPLES = [example_of(section) for section in SECTION.finditer(PAGE.read_text(encoding="utf-8"))]


def test_the_page_has_examples_of_each_verdict() -> None:
    assert all([*each.verdict] == [*MODELS] for each in EXAMPLES)
    assert {tuple(each.verdict.values()) for each in EXAMPLES} >= {(True, True, True), (False, False, False)}
    for one, other in (("pram", "causal"), ("causal", "causal+"), ("causal", "pram")):
        assert any(each.verdict[one] and not each.verdict[other] for each in EXAMPLES), f"{one} without {other}"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.title)
def test_the_verdict_beside_an_example_is_the_checkers(example: Example) -> None:
    operations = operations_of(example.lines())
    found = {model: next(find(operations), None) is None for model, find in MODELS.items()}
    assert found == example.verdict


@pytest.mark.skipif(not LITMUS.exists(), reason="the litmus histories do not lie beside this checkout")
def test_every_litmus_history_is_on_the_page_with_its_verdict() -> None:
    cases = json.loads(LITMUS.read_text(encoding="utf-8"))
    shown = [(each.history, each.verdict) for each in EXAMPLES]
    assert [case["name"] for case in cases if (case["history"], case["verdict"]) not in shown] == []


def test_the_lines_that_the_page_shows_are_lines_of_a_history(tmp_path: Path) -> None:
    shown = re.findall(r"^\| `(\{.*\})` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    (tmp_path / "history.jsonl").write_text("\n".join(shown) + "\n", encoding="utf-8")
    found = {type(line) for _, line in read_lines(tmp_path / "history.jsonl")}
    assert found == set(get_args(Line)), "every kind of line, and nothing else"
