"""`paramstream check`: what it prints, and its exit codes."""

import io
import json
import sys
from pathlib import Path

import pytest

from paramstream.cli.main import main
from paramstream.consistency.history import Apply, Line, Read, Write, encode_line
from reference.litmus import CASES, Litmus

Captured = pytest.CaptureFixture[str]

BACKWARDS: list[Line] = [Write("t", "x", 1), Write("t", "x", "two"), Read("r", "x", "two"), Read("r", "x", 1)]


def save(folder: Path, lines: list[Line], name: str = "history.jsonl") -> str:
    path = folder / name
    path.write_bytes(b"".join(map(encode_line, lines)))
    return str(path)


@pytest.mark.parametrize("model", ["pram", "causal", "causal+"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_known_history_is_ok_or_a_violation(case: Litmus, model: str, tmp_path: Path, capsys: Captured) -> None:
    code = main(["check", save(tmp_path, case.lines()), "--model", model])
    said = capsys.readouterr().out
    if case.is_(model):
        assert (code, said) == (0, "OK\n")
    else:
        assert code == 1 and said.startswith("VIOLATION\n")


def test_a_witness_is_shown_by_process_with_the_numbers_of_its_lines(tmp_path: Path, capsys: Captured) -> None:
    assert main(["check", save(tmp_path, BACKWARDS), "--model", "pram"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == 'pram: r read x=1 (line 4), although x="two", which comes after that, is in its past'
    assert lines[-6:] == [
        "t:",
        "        1  w x = 1",
        '        2  w x = "two"',
        "r:",
        '        3  r x = "two"',
        "        4  r x = 1",
    ]


def test_a_witness_from_several_files_names_them(tmp_path: Path, capsys: Captured) -> None:
    first, second = save(tmp_path, BACKWARDS[:3], "a.jsonl"), save(tmp_path, BACKWARDS[3:], "b.jsonl")
    assert main(["check", first, second]) == 1
    assert f"        1  r x = 1  {second}" in capsys.readouterr().out.splitlines()


def test_a_history_without_a_line_is_a_bad_file(tmp_path: Path, capsys: Captured) -> None:
    assert main(["check", save(tmp_path, [])]) == 2
    assert "not one line" in capsys.readouterr().err


def test_names_that_no_line_can_show_are_quoted_as_in_the_file(tmp_path: Path, capsys: Captured) -> None:
    process, key = "a\nb", "t#01/kv/\x00\x1b[31m"
    lines: list[Line] = [Write(process, key, "\x7f"), Read(process, key, None), Apply("r\r", "m\t/0", 7)]
    assert main(["check", save(tmp_path, lines)]) == 1
    said = capsys.readouterr().out
    assert all(line.isprintable() for line in said.splitlines())
    assert said.splitlines()[-3:] == [
        r'"a\nb":',
        r'        1  w "t#01/kv/\u0000\u001b[31m" = "\u007f"',
        r'        2  r "t#01/kv/\u0000\u001b[31m" = null',
    ]


def test_a_name_that_the_terminal_cannot_show_is_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    assert main(["check", save(tmp_path, [Write("é中", "x", 1), Read("é中", "x", None)])]) == 1
    assert shown.getvalue().decode().splitlines()[-3] == r"\xe9\u4e2d:"


def test_where_standard_output_is_closed_the_exit_code_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["check", save(tmp_path, BACKWARDS[:2])]) == 0


def test_a_fault_of_delivery_is_a_violation_with_its_line(tmp_path: Path, capsys: Captured) -> None:
    path = save(tmp_path, [*BACKWARDS[:2], Apply("r", "m/0", 7)])
    assert main(["check", path]) == 1
    verdict, fault = capsys.readouterr().out.splitlines()
    assert verdict == "VIOLATION"
    assert fault == f"delivery to r: m/0 0:7 was applied, and the partition is not followed (line 3 of {path})"


def test_json_is_one_object_on_one_line(tmp_path: Path, capsys: Captured) -> None:
    path = save(tmp_path, BACKWARDS)
    assert main(["check", path, "--model", "causal+", "--json"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    said = json.loads(line)
    assert (said["ok"], said["model"], said["operations"], said["fault_count"]) == (False, "causal+", 4, 0)
    assert said["witness"]["operations"][3] == {
        "process": "r", "op": "r", "key": "x", "value": 1, "file": path, "line": 4
    }  # fmt: skip
    assert main(["check", save(tmp_path, BACKWARDS[:3]), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is True and said["witness"] is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"no history\n", "line 1: "),
        (encode_line(BACKWARDS[0]) * 2, "line 2: 1 is written to key 'x' a second time"),
        (b'{"op": "cas", "process": "t", "key": "x", "value": 1}\n', "cas"),
        (encode_line(BACKWARDS[0])[:-9], "The file ends within this line"),
    ],
)
def test_a_bad_file_exits_with_2_and_names_the_line(
    content: bytes, problem: str, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(content)
    assert main(["check", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and str(path) in captured.err and problem in captured.err


def test_a_file_that_cannot_be_read_exits_with_2(tmp_path: Path, capsys: Captured) -> None:
    for path in (tmp_path / "missing.jsonl", tmp_path):
        assert main(["check", str(path)]) == 2
        assert str(path) in capsys.readouterr().err


def test_on_a_terminal_it_says_what_it_is_at_and_in_a_pipe_nothing(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path, BACKWARDS[:3])
    assert main(["check", path]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["check", path]) == 0
    captured = capsys.readouterr()
    assert captured.out == "OK\n"
    reading, checking = captured.err.index("reading   0 %"), captured.err.index("checking 3 operations")
    assert reading < checking and captured.err.endswith("\r\x1b[K")
