"""The command line by itself: what it takes, and its exit codes."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from paramstream.cli import bench
from paramstream.cli.main import COMMANDS, DONE, FAILED, WRONG_USAGE, main

Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize("command", [[], *([command.NAME] for command in COMMANDS), ["topics", "create"]])
def test_every_command_has_help(command: list[str], capsys: Captured) -> None:
    assert main([*command, "--help"]) == DONE
    assert "usage: paramstream" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "demo --seconds 0",
        "demo --seconds nan",
        "demo --seconds soon",
        "broker --log-limit 3XB",
        "topics",
        "topics describe --connect tcp://127.0.0.1:1",
        "topics create one --topic two --connect tcp://127.0.0.1:1",
        "topics create one --partitions 0 --connect tcp://127.0.0.1:1",
        "versions --topic t",
        "publish x --connect tcp://127.0.0.1:1 --topic t",
        "publish x --connect tcp://127.0.0.1:1 --topic t --version -1",
        "publish x --connect tcp://127.0.0.1:1 --topic t --version 9223372036854775808",
        "subscribe --connect tcp://127.0.0.1:1 --topic t --start somewhere",
        "restore --topic t --out f",
        "restore --topic t --out f --log file:d --connect tcp://127.0.0.1:1",
        "restore --topic t --out f --log file:d --at 1 --vector t/0=1:1",
        "restore --topic t --out f --log file:d --vector nonsense",
        "restore --topic t --out f --log file:d --time yesterday",
        "restore --topic t --out f --log file:d --time 2026-03-04T05:06:07",
        "replica --connect tcp://127.0.0.1:1 --topic t --dram lots",
        "process module --connect tcp://127.0.0.1:1 --name n --state d",
        "process module:step --connect tcp://127.0.0.1:1 --name n",
        "process ..module:step --connect tcp://127.0.0.1:1 --name n --state d",
        "check",
        "check history.jsonl --model strict",
        "demo --js",
    ],
)
def test_wrong_usage_exits_with_2_and_says_why(line: str, capsys: Captured) -> None:
    assert main(line.split()) == WRONG_USAGE
    assert "error:" in capsys.readouterr().err


def test_a_typed_error_exits_with_1_and_its_text(tmp_path: Path, capsys: Captured) -> None:
    line = ["restore", "--log", f"file:{tmp_path}", "--topic", "t", "--out", str(tmp_path / "f")]
    assert main(line) == FAILED
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("paramstream: CorruptLog: ")
    assert str(tmp_path) in said.err


def test_an_ssd_tier_without_a_size_is_wrong_usage(capsys: Captured) -> None:
    assert main(["replica", "--connect", "tcp://127.0.0.1:1", "--topic", "t", "--ssd", "/mnt/tier"]) == WRONG_USAGE
    assert "DIR:SIZE" in capsys.readouterr().err


def test_a_file_that_is_not_there_exits_with_1_and_its_name(tmp_path: Path, capsys: Captured) -> None:
    line = ["publish", str(tmp_path / "none"), "--connect", "tcp://127.0.0.1:1", "--topic", "t", "--version", "1"]
    assert main(line) == FAILED
    assert str(tmp_path / "none") in capsys.readouterr().err


def test_an_unknown_level_of_logs_is_said(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("PARAMSTREAM_LOG", "loud")
    main(["bench", "--list"])
    assert "PARAMSTREAM_LOG='loud' is no level" in capsys.readouterr().err


def test_the_demo_without_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    found = importlib.util.find_spec

    def hidden(name: str, package: str | None = None) -> object:
        return None if name == "torch" else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    assert main(["demo"]) == FAILED
    assert "the demo needs torch. pip install 'paramstream[torch,demo]'" in capsys.readouterr().err


def test_benchmarks_are_listed_with_what_they_measure(capsys: Captured) -> None:
    assert main(["bench", "--list", "--json"]) == DONE
    listed = json.loads(capsys.readouterr().out)
    assert listed
    assert all(listed.values())


@pytest.mark.parametrize("quick", [False, True])
def test_a_benchmark_is_told_to_be_quick(quick: bool, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def found() -> dict[str, ModuleType]:
        module = ModuleType("stand_in", "What it measures.")
        module.run = lambda quick=False: {"quick": quick}  # type: ignore[attr-defined]
        return {"stand_in": module}

    monkeypatch.setattr(bench, "find_benchmarks", found)
    assert main(["bench", "stand_in", "--json", *(["--quick"] if quick else [])]) == DONE
    assert json.loads(capsys.readouterr().out) == {"stand_in": {"quick": quick}}


def test_a_benchmark_that_is_none_is_refused_by_name(capsys: Captured) -> None:
    assert main(["bench", "nonsense"]) == FAILED
    assert "there is no benchmark 'nonsense'" in capsys.readouterr().err


def test_outside_of_a_checkout_bench_says_so(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(bench, "PACKAGE", "..benchmarks_that_are_not_installed")
    assert main(["bench"]) == FAILED
    assert "checkout" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("demo", "--seconds --json"),
        ("broker", "--bind --log --keeper --kafka-config --insecure --log-limit"),
        ("topics create", "--connect --topic --partitions --persistence --retain-versions --exist-ok"),
        ("topics describe", "--connect --topic --json"),
        ("versions", "--connect --topic --json"),
        ("publish", "--connect --topic --version --rewind --replace-schema"),
        ("subscribe", "--connect --topic --start --json"),
        ("replica", "--connect --topic --name --dram --ssd --snapshot-dir"),
        ("restore", "--log --connect --kafka-config --topic --at --vector --time --snapshots --out"),
        ("process", "--connect --name --state"),
        ("snapshot", "--connect --topic --out --keep"),
        ("verify", "--kafka-config --json"),
        ("bench", "--json"),
        ("top", "--connect --json"),
    ],
)
def test_the_options_that_users_and_scripts_give_are_there(command: str, options: str, capsys: Captured) -> None:
    assert main([*command.split(), "--help"]) == DONE
    shown = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert set(options.split()) <= shown
