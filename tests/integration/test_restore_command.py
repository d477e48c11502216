"""`paramstream restore` writes what other tools read: by version, vector and time, from a log, a broker and a snapshot."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import safetensors.torch
import torch

import paramstream as ps
from paramstream.cli.main import main


class Tied(torch.nn.Module):
    """An embedding and a head with one memory, in bf16."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(20, 8).bfloat16()
        self.head = torch.nn.Linear(8, 20, bias=True).bfloat16()
        self.head.weight = self.embed.weight
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(value)


def restored(capsys: pytest.CaptureFixture[str], out: Path, *line: str) -> dict[str, torch.Tensor]:
    assert main(["restore", "--topic", "model", "--out", str(out), "--json", *line]) == 0
    said = capsys.readouterr()
    assert said.err == "", "progress is for terminals"
    found = safetensors.torch.load_file(out)
    assert json.loads(said.out)["tensors"] == len(found) == 3
    return found


def test_a_checkpoint_of_each_moment_and_source_has_the_original_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, snapshots, out = f"file:{tmp_path / 'log'}", tmp_path / "snapshots", tmp_path / "out.safetensors"
    with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        trainer = client.publisher("model", producer="trainer")
        at_2, then = ps.VersionVector[str](), datetime.now(UTC)
        with client.replica("model") as replica:
            for version in (1, 2, 3):
                receipt = trainer.publish_weights(Tied(version / 4), version)
                vector = receipt.durable.result(10)
                if version == 2:
                    at_2 = vector
                    time.sleep(0.002)
                    then = datetime.now(UTC)
                    time.sleep(0.002)
            replica.wait_version(3)
            replica.snapshot(snapshots)
        lines = {
            (*source, *moment): value
            for source in (("--log", log), ("--connect", broker.endpoint))
            for moment, value in (
                ((), 0.75),
                (("--at", "1"), 0.25),
                (("--vector", str(at_2)), 0.5),
                (("--time", then.isoformat()), 0.5),
            )
        }
        lines["--log", f"snapshot:{snapshots}"] = 0.75
        for line, value in lines.items():
            found = restored(capsys, out, *line)
            assert set(found) == {"embed.weight", "head.weight", "head.bias"}, line
            for tensor in found.values():
                assert tensor.dtype == torch.bfloat16 and bool((tensor == value).all()), line
    Tied(0.0).load_state_dict(safetensors.torch.load_file(out))


def test_a_restored_checkpoint_goes_on_as_a_new_lineage_and_its_listed_time_gives_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, out = f"file:{tmp_path / 'log'}", tmp_path / "out.safetensors"
    with ps.Broker(log=log) as broker:
        at = ["--topic", "model", "--connect", broker.endpoint]
        with ps.connect(broker.endpoint) as client:
            client.create_topic("model")
            trainer = client.publisher("model", producer="trainer")
            for version in (1, 2, 3):
                trainer.publish_weights(Tied(version / 4), version)
            trainer.flush()
        restored(capsys, out, "--connect", broker.endpoint, "--at", "1")
        again = ["publish", str(out), *at, "--version", "2", "--json"]
        assert main(again) == 1 and "rewind" in capsys.readouterr().err
        assert main([*again, "--rewind"]) == 0
        digest = json.loads(capsys.readouterr().out)["digest"]
        assert main(["versions", *at]) == 0
        _, *lines = (line.split() for line in capsys.readouterr().out.splitlines())
        assert [(line[0], line[-1]) for line in lines] == [
            ("1", "yes"),
            ("2", "superseded"),
            ("3", "superseded"),
            ("2", "yes"),
        ]
        assert lines[-1][-2] == digest and lines[1][-2] != digest
        for line, value in zip(lines, (0.25, 0.5, 0.75, 0.25), strict=True):
            found = restored(capsys, out, "--log", log, "--time", line[2])
            assert bool((found["head.bias"] == value).all())
