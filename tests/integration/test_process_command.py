"""`paramstream process`: a processor in a process of its own, ended by a signal or by its own error."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import paramstream as ps
from reference.waiting import eventually

WITHIN_S = 60.0
MODULE = """
import paramstream as ps

@ps.processor(source="in", sink="out")
def step(event, state, out):
    for key, value, _ in event.items:
        if value == b"bad":
            raise ValueError("of the user")
        state["count"] = state.get("count", 0) + 1
        out.put(f"count/{event.partition}", b"%d" % state["count"])

def plain(event, state, out):
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "counters.py").write_text(MODULE)
    return tmp_path


@pytest.fixture
def client(client: ps.Client) -> ps.Client:
    client.create_topic("in")
    client.create_topic("out")
    return client


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def start(folder: Path, broker: ps.Broker, processor: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-P", "-m", "paramstream.cli", "process", processor, "--connect", broker.endpoint]
    line += ["--name", "counter", "--state", str(folder / "state")]
    return subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def count(client: ps.Client) -> bytes | None:
    with client.replica("out", arrays="numpy") as replica:
        return replica.get("count/0")


def await_count(client: ps.Client, expected: bytes) -> None:
    eventually(lambda: count(client) == expected)


def test_a_processor_of_the_users_folder_runs_until_it_is_told_to_stop(
    client: ps.Client, broker: ps.Broker, folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    publisher = client.publisher("in", producer="p")
    for life, number in enumerate((signal.SIGTERM, signal.SIGINT, signal.SIGKILL), 1):
        process = start(folder, broker, "counters:step")
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "counter turns in into out"
        publisher.put("key", b"good")
        await_count(client, b"%d" % life)
        process.send_signal(number)
        _, errors = process.communicate(timeout=WITHIN_S)
        assert (process.returncode, errors) == (-9 if number == signal.SIGKILL else 0, "")


def test_a_step_that_raises_ends_the_command_with_its_error(
    client: ps.Client, broker: ps.Broker, folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    client.publisher("in", producer="p").put("key", b"bad")
    process = start(folder, broker, "counters:step")
    started.append(process)
    _, errors = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 1 and "ValueError: of the user" in errors and errors.startswith("paramstream: ")


@pytest.mark.parametrize(
    ("processor", "said"),
    [
        ("nowhere:step", "there is no module 'nowhere'"),
        ("counters:nothing", "no processor 'nothing'"),
        ("counters:plain", "no processor 'plain'"),
    ],
)
def test_what_is_no_processor_is_said(
    broker: ps.Broker, folder: Path, started: list[subprocess.Popen[str]], processor: str, said: str
) -> None:
    process = start(folder, broker, processor)
    started.append(process)
    _, errors = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 1 and said in errors and "Traceback" not in errors
