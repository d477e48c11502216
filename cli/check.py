"""`paramstream check`: whether a recorded history keeps a consistency model, and if not, a smallest part that does not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from ..consistency.checking import Model, Verdict, read_history
from ..consistency.operations import name_text, value_text
from ..consistency.witness import Witness
from ..errors import InvalidHistory
from .options import add_json
from .output import Progress, print_json

NAME: str = "check"
HELP: str = "check a recorded history: OK, or VIOLATION and a smallest witness; exit code 1 then, 2 for a bad file"

BAD_FILE = 2

MODELS = """\
pram: each process sees the writes of every other one in their order, without a gap. causal: what a process reads is explained
by its causal past. causal+: causal, and all agree which of two writes is the newer one. What was declared lost is left out.
Lines of delivery are checked always, each replica's for the order that it has.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = MODELS
    parser.add_argument(
        "files",
        metavar="HISTORY.jsonl",
        nargs="+",
        type=Path,
        help="one history, in one file or several; what one process did in several is in the order of the files",
    )
    parser.add_argument(
        "--model",
        choices=[model.value for model in Model],
        default=Model.CAUSAL.value,
        help="what must hold (default %(default)s)",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    try:
        verdict = _check(arguments.files, Model(arguments.model))
    except (InvalidHistory, OSError) as error:
        print(f"paramstream: {error}", file=sys.stderr)
        return BAD_FILE
    if arguments.json:
        print_json({"ok": verdict.ok, **asdict(verdict)})
    else:
        _print(verdict)
    return 0 if verdict.ok else 1


def _check(files: Sequence[Path], model: Model) -> Verdict:
    with Progress("reading", sum(file.stat().st_size for file in files)) as reading:
        history = read_history(files, reading.add)
    with Progress(f"checking {len(history.operations)} operations", 0):
        return history.check(model)


def _print(verdict: Verdict) -> None:
    print("OK" if verdict.ok else "VIOLATION")
    for fault in verdict.faults:
        print(f"delivery to {name_text(fault.process)}: {name_text(fault.problem)} (line {fault.line} of {fault.file})")
    if verdict.fault_count > len(verdict.faults):
        print(f"delivery: {verdict.fault_count - len(verdict.faults)} more lines")
    if verdict.witness is not None:
        print(f"{verdict.model}: {verdict.witness.why}")
        for reason in verdict.witness.because:
            print(f"  {reason}")
        print()
        print("\n".join(witness_lines(verdict.witness)))


def witness_lines(witness: Witness) -> list[str]:
    """Its operations, by process, each with the number of its line (and its file, where there are several)."""
    several = len({operation.file for operation in witness.operations}) > 1
    lines: list[str] = []
    for process, operations in groupby(witness.operations, lambda operation: operation.process):
        lines.append(f"{name_text(process)}:")
        for each in operations:
            file = f"  {each.file}" if several else ""
            lines.append(f"  {each.line:>7}  {each.op} {name_text(each.key)} = {value_text(each.value)}{file}")
    return lines
