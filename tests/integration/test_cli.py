"""The command line as a user meets it: processes, their output in a pipe, and their exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import paramstream as ps

COMMAND = [sys.executable, "-P", "-m", "paramstream.cli"]
ENDED_WITHIN_S = 60.0
DEMO_WITHIN_S = 180.0


@dataclass(frozen=True)
class Standing:
    """A command that runs until it is told to stop."""

    process: subprocess.Popen[str]
    first_line: str

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(ENDED_WITHIN_S)


def run(*arguments: str, within_s: float = ENDED_WITHIN_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=within_s, check=False)


def run_json(*arguments: str, within_s: float = ENDED_WITHIN_S) -> Any:
    """What a command that succeeds says with `--json`: one object on one line, and nothing beside it."""
    done = run(*arguments, "--json", within_s=within_s)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    (line,) = done.stdout.splitlines()
    return json.loads(line)


Stand = Callable[..., Standing]


@pytest.fixture
def stand() -> Iterator[Stand]:
    """Starts standing commands, each heard to its first line, and ends them whatever the test does."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> Standing:
        process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        # Ends with the process, if not with a line.
        return Standing(process, process.stdout.readline().strip())

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@dataclass(frozen=True)
class BrokerProcess:
    endpoint: str
    log: str
    standing: Standing


@pytest.fixture
def broker_process(stand: Stand, tmp_path: Path) -> BrokerProcess:
    log = f"file:{tmp_path / 'log'}"
    standing = stand("broker", "--bind", "tcp://127.0.0.1:0", "--log", log)
    assert standing.first_line.startswith("listening on tcp://127.0.0.1:")
    return BrokerProcess(standing.first_line.removeprefix("listening on "), log, standing)


def checkpoint(path: Path) -> dict[str, torch.Tensor]:
    """A checkpoint as a user has one: bf16 and fp8 among others, and one tensor of several chunks."""
    generator = torch.Generator().manual_seed(3)
    tensors = {
        "model.embed.weight": torch.randn(1024, 700, generator=generator).bfloat16(),
        "model.layers.0.weight": torch.randn(64, 33, generator=generator),
        "model.layers.0.scale": torch.randn(64, generator=generator).to(torch.float8_e4m3fn),
        "model.layers.0.half": torch.randn(5, generator=generator).half(),
        "model.steps": torch.tensor(12345),
        "model.nothing": torch.zeros(0, 4),
    }
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    return tensors


def assert_identical(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    found = safetensors.torch.load_file(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        if tensor.numel():
            assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


def test_a_safetensors_file_is_published_and_restored_identical(broker_process: BrokerProcess, tmp_path: Path) -> None:
    tensors = checkpoint(tmp_path / "in.safetensors")
    at = ["--connect", broker_process.endpoint, "--topic", "model"]
    run_json("topics", "create", "model", "--connect", broker_process.endpoint)
    published = run_json("publish", str(tmp_path / "in.safetensors"), *at, "--version", "7")
    assert (published["version"], published["tensors"]) == (7, len(tensors))
    (listed,) = run_json("versions", *at)["versions"]
    assert (listed["version"], listed["digest"], listed["restorable"]) == (7, published["digest"], True)

    online = run_json("restore", *at, "--out", str(tmp_path / "online.safetensors"))
    assert (online["version"], online["digest"]) == (7, published["digest"])
    beside_owner = ["restore", "--log", broker_process.log, "--topic", "model", "--at", "7"]
    run_json(*beside_owner, "--out", str(tmp_path / "beside.safetensors"))
    assert broker_process.standing.stop() == 0
    run_json(*beside_owner, "--out", str(tmp_path / "offline.safetensors"))
    for name in ("online", "beside", "offline"):
        assert_identical(tmp_path / f"{name}.safetensors", tensors)


def test_a_folder_of_shards_is_one_version(broker_process: BrokerProcess, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    tensors = checkpoint(tmp_path / "in.safetensors")
    weight_map = {name: f"part-{number % 3}.safetensors" for number, name in enumerate(tensors)}
    for home in set(weight_map.values()):
        own = {name: tensors[name] for name in tensors if weight_map[name] == home}
        safetensors.torch.save_file(own, folder / home)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    at = ["--connect", broker_process.endpoint, "--topic", "model"]
    run_json("publish", str(folder), *at, "--version", "1", "--create")
    run_json("restore", *at, "--out", str(tmp_path / "out.safetensors"))
    assert_identical(tmp_path / "out.safetensors", tensors)


def test_topics_are_created_listed_described_and_deleted(broker_process: BrokerProcess) -> None:
    at = ["--connect", broker_process.endpoint]
    settings = ["--partitions", "3", "--persistence", "write_through", "--retain-versions", "5"]
    created = run_json("topics", "create", "kv", *settings, *at)
    assert (created["partitions"], created["persistence"], created["retain_versions"]) == (3, "write_through", 5)
    assert run_json("topics", "list", *at)["topics"] == [created]
    described = run_json("topics", "describe", "--topic", "kv", *at)
    assert (described["name"], described["versions"], described["replicas"]) == ("kv", 0, [])
    again = run("topics", "create", "kv", *at)
    assert (again.returncode, "TopicExists" in again.stderr) == (1, True)
    assert run_json("topics", "delete", "kv", *at) == {"deleted": "kv"}
    gone = run("topics", "describe", "kv", *at)
    assert (gone.returncode, "UnknownTopic" in gone.stderr) == (1, True)


def test_subscribe_prints_one_event_a_line(broker_process: BrokerProcess) -> None:
    with ps.connect(broker_process.endpoint) as client:
        client.create_topic("kv")
        client.create_table("kv", "users", dim=2, optimizer=ps.SGD(1.0))
        publisher = client.publisher("kv", producer="p")
        publisher.put("plain", b"text", ttl=60)
        publisher.put(b"\xff", b"\xfe")
        publisher.delete("plain")
        publisher.publish_gradients("users", torch.tensor([5, 6]).numpy(), torch.ones(2, 2).numpy())
        publisher.flush()
    done = run(
        "subscribe",
        "--connect",
        broker_process.endpoint,
        "--topic",
        "kv",
        "--start",
        "earliest",
        "--count",
        "4",
        "--json",
    )
    assert done.returncode == 0
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["kind"] for event in events] == ["put", "put", "delete", "gradients"]
    assert events[0]["items"] == [{"key": "plain", "value": "text", "ttl": 60.0}]
    assert events[1]["items"] == [{"key": {"base64": "/w=="}, "value": {"base64": "/g=="}, "ttl": None}]
    assert events[2]["keys"] == ["plain"]
    assert (events[3]["table"], events[3]["keys"]) == ("users", [5, 6])
    assert all(event["producer"] == "p" and event["vector"] for event in events)


def test_a_standing_replica_serves_and_is_known_to_the_broker_and_records_what_it_applies(
    broker_process: BrokerProcess, stand: Stand, tmp_path: Path
) -> None:
    history = tmp_path / "history.jsonl"
    with ps.connect(broker_process.endpoint) as client:
        client.create_topic("model")
        publisher = client.publisher("model", producer="p")
        publisher.publish_weights({"w": torch.ones(3)}, version=1)
        publisher.flush()
        replica = stand(
            "replica", "--connect", broker_process.endpoint, "--topic", "model", "--name", "r", "--dram", "1GiB",
            "--ssd", f"{tmp_path / 'tier'}:1MiB", "--history", str(history), "--serve", "tcp://127.0.0.1:0", "--partitions", "0",
        )  # fmt: skip
        assert replica.first_line == "replica of model serves version 1"
        assert client.get("model", "k", at_least=publisher.put("k", b"v")) == b"v"
        assert replica.process.stdout is not None
        (status,) = client.replicas("model")
        assert [(tier.tier, tier.limit) for tier in status.tiers] == [("dram", 1 << 30), ("ssd", 1 << 20)]
        assert replica.process.stdout.readline() == f"look-ups are answered at {status.serves}\n"
        publisher.publish_weights({"w": torch.zeros(3)}, version=2)
        deadline = time.monotonic() + ENDED_WITHIN_S
        while [(found.name, found.version) for found in client.replicas("model")] != [("r", 2)]:
            assert time.monotonic() < deadline, client.replicas("model")
            time.sleep(0.05)
    assert replica.stop(signal.SIGINT) == 0
    assert list((tmp_path / "tier").iterdir()) == []
    recorded = [json.loads(line) for line in history.read_text().splitlines()]
    assert [line["key"].split("/")[1] for line in recorded if line["op"] == "r"] == [
        "weights", "kv", "kv", "weights",
    ]  # fmt: skip


def test_a_newer_replica_of_the_name_ends_the_older_one_with_its_error(
    broker_process: BrokerProcess, stand: Stand
) -> None:
    with ps.connect(broker_process.endpoint) as client:
        client.create_topic("model")
    line = ["replica", "--connect", broker_process.endpoint, "--topic", "model", "--name", "r"]
    older = stand(*line)
    newer = stand(*line)
    assert older.process.wait(ENDED_WITHIN_S) == 1
    assert newer.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_broker_stops_cleanly_when_it_is_told_to(stand: Stand, number: int) -> None:
    assert stand("broker", "--bind", "tcp://127.0.0.1:0").stop(number) == 0


def test_a_broker_that_cannot_have_its_address_or_log_says_who_has_it(broker_process: BrokerProcess) -> None:
    taken = run("broker", "--bind", broker_process.endpoint)
    assert (taken.returncode, broker_process.endpoint in taken.stderr) == (1, True)
    held = run("broker", "--bind", "tcp://127.0.0.1:0", "--log", broker_process.log)
    assert (held.returncode, f"process {broker_process.standing.process.pid}" in held.stderr) == (1, True)


def test_an_address_beyond_this_machine_needs_insecure(stand: Stand) -> None:
    refused = run("broker", "--bind", "tcp://0.0.0.0:0")
    assert (refused.returncode, "--insecure" in refused.stderr) == (1, True)
    allowed = stand("broker", "--bind", "tcp://0.0.0.0:0", "--insecure", "--json")
    assert json.loads(allowed.first_line)["listening"].startswith("tcp://0.0.0.0:")


def test_the_demo_ends_with_equal_digests_and_the_killed_replica_back_and_its_history_is_consistent(
    tmp_path: Path,
) -> None:
    history = str(tmp_path / "history.jsonl")
    record = run_json("demo", "--seconds", "6", "--history", history, within_s=DEMO_WITHIN_S)
    assert record["digests_equal"] is True
    assert record["restored_replica"] == "replica-1"
    assert record["versions"] > 60
    versions = {replica["version"] for replica in record["replicas"]}
    digests = {replica["digest"] for replica in record["replicas"]}
    assert (len(versions), len(digests), len(record["replicas"])) == (1, 1, 2)
    assert record["trainer"]["digest"] in digests
    assert record["accuracy"]["replicas"] == [record["accuracy"]["trainer"]] * 2
    assert record["accuracy"]["trainer"] > 0.8
    assert 0 < record["staleness_ms"]["p50"] <= record["staleness_ms"]["p99"]
    for model in ("pram", "causal", "causal+"):
        checked = run_json("check", history, "--model", model)
        assert checked["ok"] is True and checked["operations"] > record["versions"]
    recorded = [json.loads(line) for line in Path(history).read_text().splitlines()]
    lives = {line["process"] for line in recorded if line["op"] == "follow"}
    assert sorted(life.split("/")[0] for life in lives) == ["replica-0", "replica-1", "replica-1"]


def test_a_history_that_cannot_be_written_is_told_before_a_demo_begins(tmp_path: Path) -> None:
    refused = run("demo", "--history", str(tmp_path))
    assert refused.returncode == 1 and "no history can be written" in refused.stderr


def children_of(pid: int) -> list[int]:
    """Direct children that live, by /proc."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(folder.name))
    return found


def is_gone(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for children in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_demo_ends_its_children(number: int) -> None:
    process = subprocess.Popen([*COMMAND, "demo"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + ENDED_WITHIN_S
        # The broker is first; then trainer and replicas.
        while len(children := children_of(process.pid)) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(process.pid, number)
        process.wait(ENDED_WITHIN_S)
        while not all(is_gone(child) for child in children):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()


def test_logs_show_where_they_are_asked_for_and_nowhere_else(
    broker_process: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PARAMSTREAM_LOG", raising=False)
    quiet = run("topics", "list", "--connect", broker_process.endpoint)
    monkeypatch.setenv("PARAMSTREAM_LOG", "debug")
    told = run("topics", "list", "--connect", broker_process.endpoint)
    assert (quiet.returncode, quiet.stderr, told.returncode) == (0, "", 0)
    assert f"connected to {broker_process.endpoint}" in told.stderr and told.stdout == quiet.stdout
