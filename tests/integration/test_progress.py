"""Long work shows its progress on a terminal, and nothing in a pipe."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

import paramstream as ps
from paramstream.cli.main import main

MIB = 1024 * 1024


def on_terminal(monkeypatch: pytest.MonkeyPatch, *line: str) -> str:
    """What a person at a terminal sees on standard error while the command runs."""
    theirs, ours = os.openpty()
    with os.fdopen(ours, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        assert main(line) == 0
        stream.flush()
        seen = os.read(theirs, 64 * 1024).decode()
    os.close(theirs)
    return seen


def test_publish_and_restore_show_how_far_they_are_on_a_terminal_and_nothing_in_a_pipe(
    broker: ps.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paramstream.cli.output.REDRAW_S", 0.0)
    path, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    safetensors.torch.save_file({"w": torch.zeros(8 * MIB, dtype=torch.uint8)}, path)
    at = ("--connect", broker.endpoint, "--topic", "model")
    publish, restore = ("publish", str(path), *at, "--create"), ("restore", *at, "--out", str(out))

    seen = on_terminal(monkeypatch, *publish, "--version", "1")
    assert f"publishing {path}   0 % (0 MiB)" in seen and "100 % (8 MiB)" in seen
    assert seen.endswith("\r\x1b[K"), "the line is gone when the work is done"
    seen = on_terminal(monkeypatch, *restore)
    assert "reading model" in seen and f"writing {out}" in seen and "100 % (8 MiB)" in seen

    capsys.readouterr()
    assert main((*publish, "--version", "2")) == main(restore) == 0
    assert capsys.readouterr().err == ""
