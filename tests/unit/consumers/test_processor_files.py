"""A task's snapshots are whole or not there; a damaged one is named, and the one before it used."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paramstream as ps
from paramstream.consumers.processors.files import Origin, SnapshotFolder
from paramstream.consumers.processors.state import encode_state

ORIGIN = Origin("adder/1", 42, "grads", 1)


def folder(path: Path, origin: Origin = ORIGIN) -> SnapshotFolder:
    return SnapshotFolder(path, origin)


def save(path: Path, position: int, **state: Any) -> None:
    folder(path).save(position, encode_state(dict(state)), "me")


def test_the_newest_snapshot_is_loaded_and_the_two_newest_are_kept(tmp_path: Path) -> None:
    assert folder(tmp_path).load() is None and folder(tmp_path).oldest is None
    for position in (5, 9, 7, 1 << 60):
        save(tmp_path, position, n=position, w=np.full(3, position))
    loaded = folder(tmp_path).load()
    assert loaded is not None and loaded.position == 1 << 60
    assert loaded.state["n"] == 1 << 60 and loaded.state["w"].tolist() == [1 << 60] * 3
    assert folder(tmp_path).oldest == 9
    assert len(list((tmp_path / "1").iterdir())) == 2


@pytest.mark.parametrize("at", [0, 9, 20, 40, -1])
def test_a_snapshot_with_a_flipped_bit_is_named_and_the_one_before_is_used(
    tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 5, n=5)
    save(tmp_path, 9, n=9, w=np.arange(4))
    newest = max((tmp_path / "1").iterdir())
    data = bytearray(newest.read_bytes())
    data[at] ^= 1
    newest.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        loaded = folder(tmp_path).load()
    assert loaded is not None and (loaded.position, loaded.state) == (5, {"n": 5})
    assert str(newest) in caplog.text


@pytest.mark.parametrize("size", [0, 10, 60, -1])
def test_where_every_snapshot_is_cut_short_nothing_is_begun_from_nothing(tmp_path: Path, size: int) -> None:
    save(tmp_path, 5, n=5, w=np.arange(9))
    (path,) = (tmp_path / "1").iterdir()
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ps.CorruptLog, match=r"0000000000000005\.snapshot"):
        folder(tmp_path).load()


def test_a_pickle_in_the_place_of_a_state_is_refused_and_never_run_O01(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    save(tmp_path / "state", 5, n=5)
    (path,) = (tmp_path / "state" / "1").iterdir()
    path.write_bytes(b"cos\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR.")
    with pytest.raises(ps.CorruptLog, match=path.name):
        folder(tmp_path / "state").load()
    assert not canary.exists()


def test_what_a_dead_writer_left_aside_goes(tmp_path: Path) -> None:
    save(tmp_path, 5, n=5)
    (tmp_path / "1" / f"{9:016x}.1-1.aside").write_bytes(b"half")
    assert folder(tmp_path).oldest == 5
    assert [path.suffix for path in (tmp_path / "1").iterdir()] == [".snapshot"]


def test_the_snapshot_of_another_task_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 5, n=5)
    for other in (Origin("other/1", 42, "grads", 1), Origin("adder/1", 43, "grads", 1)):
        with pytest.raises(ps.InvalidEvent, match="adder/1"):
            folder(tmp_path, other).load()


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_disk_that_fails_leaves_what_was_there(tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 5, n=5)

    def fails(*arguments: object) -> Any:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path if call == "rename" else os, call, fails)
        with pytest.raises(OSError, match="no space"):
            save(tmp_path, 9, n=9)
    loaded = folder(tmp_path).load()
    assert loaded is not None and loaded.position == 5
    assert len(list((tmp_path / "1").iterdir())) == 1
