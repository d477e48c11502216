"""Runs the Python of the README and the docs, and holds the commands that the README gives."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from house.checkout import ROOT

BLOCK_TIMEOUT_SECONDS = 90
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)


def blocks(text: str, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of one language in a Markdown text: the line of each one's fence, and its code."""
    found = ((text.count("\n", 0, fence.start()) + 1, fence) for fence in FENCE.finditer(text))
    return [(line, fence[2]) for line, fence in found if fence[1] == language]


def pages() -> list[Path]:
    """The README and every page of the docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


PYTHON_BLOCKS = [
    pytest.param(code, id=f"{page.relative_to(ROOT)}:{line}")
    for page in pages()
    for line, code in blocks(page.read_text(encoding="utf-8"), "python")
]


@pytest.mark.parametrize("code", PYTHON_BLOCKS)
def test_a_block_of_python_in_the_docs_runs_as_it_stands(code: str, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(code, encoding="utf-8")
    # Its own folder, so that a block that keeps a log leaves nothing behind.
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        # The same bits either way; each process would compile its loops for rows anew, which takes it longer than all else.
        env={**os.environ, "PARAMSTREAM_NUMBA": "0"},
        capture_output=True,
        text=True,
        timeout=BLOCK_TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_blocks_are_found_with_their_language_and_line() -> None:
    text = "a\n```python\nx = 1\n```\nb\n```text\npython\n```\n```python\ny = 2\n```\n"
    assert blocks(text, "python") == [(2, "x = 1\n"), (9, "y = 2\n")]


@pytest.mark.parametrize("command", ["make demo", "make test", "make sim SEEDS=", "make kills SEED="])
def test_the_readme_gives_the_command_as_a_line_of_its_own(command: str) -> None:
    shell = "".join(code for _, code in blocks((ROOT / "README.md").read_text(encoding="utf-8"), "sh"))
    assert re.search(rf"^{command}\b", shell, re.MULTILINE)


def test_the_merge_check_runs_the_test_command_of_the_readme_last() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").split("\n")
    assert [line for line in lines if line and not line.startswith("#")][-1] == "make test"
