"""The file that histories are recorded into, and how keys are named in it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote_to_bytes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramstream.consistency.history import Read, Write, encode_line, read_lines
from paramstream.errors import InvalidEvent
from paramstream.events.kinds import Commit, Delete, DeleteRows, Gradients, Put, PutItem, Rows
from paramstream.events.recording import (
    RECORDED_ROWS,
    SAMPLE,
    HistoryFile,
    entry_key,
    item_key,
    items_written,
    recorded_rows,
)

LINES = [Write("t0", "x", n) for n in range(3)]


def lines_of(path: Path) -> list[object]:
    return [line for _, line in read_lines(path)]


def test_what_is_appended_is_in_the_file_at_once_behind_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    first = HistoryFile(path)
    assert first.append(LINES[:2])
    assert lines_of(path) == LINES[:2]
    first.close()
    second = HistoryFile(path)
    assert second.append(LINES[2:])
    assert lines_of(path) == LINES
    second.close()
    second.close()
    assert not second.append(LINES)


@pytest.mark.parametrize("half", [b'{"op":"w","pro', encode_line(LINES[2])[:-1]])
def test_half_a_line_of_a_killed_process_is_cut_when_the_file_is_opened_again(tmp_path: Path, half: bytes) -> None:
    path = tmp_path / "h.jsonl"
    path.write_bytes(encode_line(LINES[0]) + half)
    file = HistoryFile(path)
    file.append(LINES[1:2])
    file.close()
    assert lines_of(path) == LINES[:2]


def test_nothing_is_cut_while_another_process_has_the_file_open(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    first = HistoryFile(path)
    path.write_bytes(b'{"op":"w"')
    second = HistoryFile(path)
    assert path.read_bytes() == b'{"op":"w"'
    first.close()
    second.close()
    HistoryFile(path).close()
    assert path.read_bytes() == b""


def test_what_was_recorded_outlives_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    code = (
        "import os, signal, sys\n"
        "from paramstream.consistency.history import Write\n"
        "from paramstream.events.recording import HistoryFile\n"
        "HistoryFile(sys.argv[1]).append([Write('t0', 'x', 0)])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert lines_of(path) == LINES[:1]


@pytest.mark.parametrize("content", [b"\x00tensors", b"{" + bytes(2 * 1024 * 1024)])
def test_a_file_that_holds_something_else_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(content)
    with pytest.raises(InvalidEvent, match="holds something else"):
        HistoryFile(path)
    assert path.read_bytes() == content


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "h.jsonl", "", "a\0b"):
        with pytest.raises(InvalidEvent, match="no history can be written"):
            HistoryFile(path)


def test_what_a_full_disk_does_not_take_is_written_before_all_that_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, room, write = tmp_path / "h.jsonl", 5, os.write

    def fills_up(handle: int, data: bytes) -> int:
        nonlocal room
        if room <= 0:
            raise OSError(errno.ENOSPC, "no space")
        written = write(handle, data[:room])
        room -= written
        return written

    monkeypatch.setattr(os, "write", fills_up)
    file = HistoryFile(path)
    assert not file.append(LINES[:1]) and not file.append(LINES[1:2]) and not file.flush()
    assert file.error is not None and path.read_bytes() == encode_line(LINES[0])[:5]
    room = 1 << 20
    assert file.append(LINES[2:]) and file.error is None
    assert lines_of(path) == LINES
    file.close()


def test_joined_files_stand_behind_each_other_without_half_lines(tmp_path: Path) -> None:
    whole, half = tmp_path / "a", tmp_path / "b"
    whole.write_bytes(encode_line(LINES[0]))
    half.write_bytes(encode_line(LINES[1]) + b'{"op"')
    file = HistoryFile(tmp_path / "h.jsonl")
    assert file.join(half) and file.join(whole)
    file.close()
    assert lines_of(tmp_path / "h.jsonl") == [LINES[1], LINES[0]]


@given(key=st.binary(max_size=8))
def test_every_key_has_a_name_of_its_own_that_leads_back_to_it(key: bytes) -> None:
    name = entry_key("m#00000001", key).removeprefix("m#00000001/kv/")
    assert unquote_to_bytes(name) == key
    assert encode_line(Read("r", name, None))


def test_keys_of_text_stand_as_they_are() -> None:
    assert entry_key("m#1", "größe/ü".encode()) == "m#1/kv/größe/ü"
    assert entry_key("m#1", b"\xff%") == "m#1/kv/%FF%25"


def test_an_event_writes_each_item_once() -> None:
    put = Put((PutItem(b"a", 1), PutItem(b"b", 1), PutItem(b"a", 1)))
    assert items_written(put) == [b"a", b"b"]
    assert items_written(Delete((b"a", b"a"))) == [b"a"]
    assert items_written(Commit(1, (), b"")) == [None]
    keys = np.array([5, -1, 5, 255], np.int64)
    for payload in (Rows("t", 4, 1, "float32"), Gradients("t", 4, 1, "float32"), DeleteRows("t", 4)):
        assert items_written(payload, keys.tobytes() + bytes(16)) == [("t", 5), ("t", 255)]
    assert items_written(DeleteRows("t", 4, up_to=9), keys.tobytes()) == []
    assert item_key("m#1", ("a/b", -7)) == "m#1/rows/a/b/-7"


def test_of_rows_small_keys_and_a_sample_are_recorded_that_is_always_the_same() -> None:
    keys = np.arange(-50_000, 50_000)
    chosen = recorded_rows(keys)
    small = (keys >= 0) & (keys < RECORDED_ROWS)
    assert chosen[small].all()
    assert 0.9 < chosen[~small].mean() * SAMPLE < 1.1
    assert keys[chosen & ~small][:5].tolist() == [-49990, -49925, -49914, -49815, -49794]
