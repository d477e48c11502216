"""What benchmarks share: a broker and a replica in processes of their own, and the figures that several rounds come to.

Times are `time.monotonic()`, one clock for all processes of a host, so that one process may subtract what another one read.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import paramstream as ps
from paramstream.cli.standing import favour_small_events, keep_freed_memory

DEADLINE_S = 60.0
"""Longer than any one step takes on a slow machine; a process that does not answer by then is broken."""

TRANSPORTS = ("ipc", "tcp")


class Process:
    """A function in a spawned process, which gets one end of a pipe first and then `arguments`. `ask` talks to it.

    The function says something once it is ready, then answers what comes until None comes.
    """

    def __init__(self, function: Callable[..., None], *arguments: object) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawning.Pipe()
        self._process = spawning.Process(target=function, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()
        self.said = self.answer()
        """What it said when it was ready."""

    def tell(self, question: object) -> None:
        self._pipe.send(question)

    def answer(self) -> Any:
        if not self._pipe.poll(DEADLINE_S):
            raise TimeoutError(f"process {self._process.pid} did not answer within {DEADLINE_S:g} s")
        return self._pipe.recv()

    def ask(self, question: object) -> Any:
        self.tell(question)
        return self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.tell(None)
        except BrokenPipeError:
            pass  # It has ended by itself.
        self._process.join(5.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


@contextmanager
def broker(
    transport: str,
    log: str = "memory:",
    log_limit_bytes: int = 4 * 1024**3,
    kafka_settings: Mapping[str, str | int] | None = None,
) -> Generator[str]:
    """As `broker_process`: its endpoint alone."""
    with broker_process(transport, log, log_limit_bytes, kafka_settings) as (endpoint, _):
        yield endpoint


@contextmanager
def broker_process(
    transport: str,
    log: str = "memory:",
    log_limit_bytes: int = 4 * 1024**3,
    kafka_settings: Mapping[str, str | int] | None = None,
) -> Generator[tuple[str, int]]:
    """`paramstream broker` on a free address: (endpoint, process id).

    `log` is "memory:", "file:", which gets a new folder, or the URL of a Kafka, with settings as `ps.KafkaLog` names them.
    """
    with ExitStack() as closing:
        folder = closing.enter_context(tempfile.TemporaryDirectory(prefix="paramstream-"))
        command = [
            sys.executable,
            "-m",
            "paramstream.cli",
            "broker",
            "--json",
            "--bind",
            free_address(transport, folder),
        ]
        command += ["--log", f"file:{folder}/log" if log == "file:" else log, "--log-limit", str(log_limit_bytes)]
        if kafka_settings is not None:
            settings = "".join(f"{name} = {json.dumps(value)}\n" for name, value in kafka_settings.items())
            Path(folder, "kafka.toml").write_text(settings)
            command += ["--kafka-config", f"{folder}/kafka.toml"]
        process = closing.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        closing.callback(process.terminate)
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["listening"], process.pid


def free_address(transport: str, folder: str) -> str:
    return f"ipc://{Path(folder, 'socket')}" if transport == "ipc" else "tcp://127.0.0.1:0"


class Following(Process):
    """A replica of `topic` in a process of its own, with a thread that waits there for what is asked for."""

    def __init__(self, endpoint: str, topic: str) -> None:
        super().__init__(_follow, endpoint, topic)

    def when_seen(self, receipt: ps.Receipt) -> float:
        """The time at which everything of the receipt was visible there, at the latest when the question arrived."""
        return float(self.ask(("seen", str(receipt.vector))))


def _follow(pipe: Connection, endpoint: str, topic: str) -> None:
    """Answers ("seen", vector) and ("version", number) with the time at which that was visible, and ("latencies", (vector,
    keys)) with how long each put took that comes after the vector: their values begin with the time at which they were made.
    """
    # As `paramstream replica` does.
    favour_small_events()
    keep_freed_memory()
    with ps.connect(endpoint) as client, client.replica(topic) as replica:
        pipe.send("ready")
        while (question := pipe.recv()) is not None:
            what, about = question
            match what:
                case "seen":
                    replica.wait(ps.VersionVector.parse(about), DEADLINE_S)
                    pipe.send(time.monotonic())
                case "version":
                    replica.wait_version(about, DEADLINE_S)
                    pipe.send(time.monotonic())
                case _:
                    pipe.send(_latencies(replica, *about))


def _latencies(replica: ps.Replica, after: str, keys: Sequence[str]) -> list[float]:
    """Seconds from each put to its being visible here. The keys are new and all in one partition, written by nobody else."""
    [(partition, position)] = ps.VersionVector.parse(after).items()
    latencies: list[float] = []
    for key in keys:
        # An event each, unless the producer was held up and joined some of them.
        while (value := replica.get(key)) is None:
            position += 1
            replica.wait(ps.VersionVector({partition: position}), DEADLINE_S)
        latencies.append((time.monotonic_ns() - int.from_bytes(value[:8], "little")) / 1e9)
    return latencies


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, object]:
    """The median of each figure over the rounds, which all have the same ones."""
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` % of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
