"""Fault case N01: a replica that is killed leaves no segment of shared memory and no file behind, however often that happens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from processes.child import Child

ROUNDS = 2
NBYTES = 50 << 20
START_S = 60.0
SHARED_MEMORY = Path("/dev/shm")


def shared_by(child: Child) -> dict[str, int]:
    """Every file that the child maps and may share, with the bytes it has of it: its own memory has no name in a file system."""
    found: dict[str, int] = {}
    for line in Path(f"/proc/{child.pid}/maps").read_text().split("\n"):
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and "paramstream" in fields[5] and "memfd:" in fields[5]:
            begin, end = (int(bound, 16) for bound in fields[0].split("-"))
            found[fields[5]] = found.get(fields[5], 0) + end - begin
        assert len(fields) < 6 or not fields[5].startswith(str(SHARED_MEMORY)), line
    return found


def test_a_replica_that_is_killed_over_and_over_leaves_no_memory_and_no_file_behind_N01(
    broker: ps.Broker, client: ps.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    client.create_topic("model")
    weights = {"w": np.full(NBYTES // 4, 1, np.float32)}
    client.publisher("model", producer="trainer").publish_weights(weights, version=1).durable.result(START_S)
    for _ in range(ROUNDS):
        with Child("slow_replica", broker.endpoint, "model", "r", "latest", errors=tmp_path / "errors") as child:
            assert child.read(START_S)["up"]
            held = shared_by(child)
            assert sum(held.values()) >= NBYTES and all(name.endswith("(deleted)") for name in held)
            child.kill()
        assert list(temporary.iterdir()) == []
