"""`paramstream snapshot` and `paramstream verify`, as users call them."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paramstream as ps
from paramstream.cli.main import main

WAIT_S = 20.0


def command(*arguments: object) -> tuple[int, str]:
    """(exit code, standard output)."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main([str(argument) for argument in arguments])
    return code, out.getvalue()


def as_json(*arguments: object) -> tuple[int, Any]:
    code, text = command(*arguments, "--json")
    (line,) = text.splitlines()
    return code, json.loads(line)


@pytest.fixture
def endpoint(tmp_path: Path) -> Any:
    with ps.Broker(log=f"file:{tmp_path}/log") as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        pub = client.publisher("model", producer="p")
        pub.put("k", b"v" * 1000)
        pub.publish_weights({"w": np.arange(1000, dtype=np.float32)}, version=3).durable.result(WAIT_S)
        yield broker.endpoint


def test_a_snapshot_is_made_verified_and_begun_from(endpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "snapshots"
    code, made = as_json("snapshot", "--connect", endpoint, "--topic", "model", "--out", out)
    assert (code, made["version"]) == (0, 3)
    assert (
        as_json("verify", out)[0] == as_json("verify", f"snapshot:{out}")[0] == as_json("verify", made["path"])[0] == 0
    )
    with ps.connect(endpoint) as client, client.replica("model", start=f"snapshot:{out}", arrays="numpy") as replica:
        assert replica.get("k") == b"v" * 1000 and replica.weights()["w"][7] == 7.0


@pytest.mark.parametrize("name", ["manifest.json", "weights-3.safetensors", "state-0-0000.safetensors"])
def test_a_damaged_file_of_a_snapshot_is_named_and_the_exit_code_is_one(
    endpoint: str, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "snapshots"
    _, made = as_json("snapshot", "--connect", endpoint, "--topic", "model", "--out", out)
    path = Path(made["path"]) / name
    data = path.read_bytes()
    path.write_bytes(data[:-30] + bytes([data[-30] ^ 1]) + data[-29:])
    code, found = as_json("verify", out)
    assert code == 1 and not found["whole"]
    assert [flaw["file"] for flaw in found["snapshots"][0]["damaged"]] == [str(path)]
    code, text = command("verify", out)
    assert code == 1 and name in text and text.splitlines()[-1].endswith("damaged")


def test_a_latest_that_names_no_snapshot_is_named_and_the_newest_is_used(endpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "snapshots"
    _, made = as_json("snapshot", "--connect", endpoint, "--topic", "model", "--out", out)
    latest = Path(made["path"]).with_name("latest")
    latest.write_text("snapshot-0000000X\n")
    code, text = command("verify", out)
    assert code == 1 and f"{latest}: damaged" in text
    with ps.restore(f"snapshot:{out}", "model", arrays="numpy") as replica:
        assert replica.weights().version == 3


def test_a_log_is_verified_beside_the_broker_that_writes_it(endpoint: str, tmp_path: Path) -> None:
    code, found = as_json("verify", tmp_path / "log")
    assert code == 0 and found["whole"] and len(found["partitions"]) == 3
    segment = max((tmp_path / "log").glob("*-1/*.segment"), key=lambda path: path.stat().st_size)
    data = segment.read_bytes()
    at = len(data) // 2
    segment.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    code, found = as_json("verify", f"file:{tmp_path}/log")
    (damaged,) = [partition for partition in found["partitions"] if not partition["whole"]]
    (flaw,) = damaged["damaged"]
    assert code == 1 and flaw["file"] == str(segment) and 0 < flaw["offset"] <= at and ":" in flaw["position"]
    code, text = command("verify", f"file:{tmp_path}/log")
    assert code == 1 and str(segment) in text


def test_what_is_neither_a_log_nor_a_snapshot_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("verify", tmp_path)[0] == 1
    assert "no log" in capsys.readouterr().err
    assert command("verify", tmp_path / "nowhere")[0] == 1
