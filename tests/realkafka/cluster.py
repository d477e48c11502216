"""Finds and starts Apache Kafka from the folder `shared/kafka` beside the checkout, or takes the one that PARAMSTREAM_KAFKA names."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, cast

import pytest

from house.checkout import ROOT
from reference.waiting import eventually

FOLDER = ROOT.parent / "shared" / "kafka"
VARIABLE = "PARAMSTREAM_KAFKA"
TRIES = 3
"""Its ports are chosen free, and somebody else may take one before it does."""


class Node(Protocol):
    @property
    def pid(self) -> int: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def kill(self) -> None: ...
    def start(self) -> None: ...
    def wait_ready(self, deadline: float) -> None: ...


class Cluster(Protocol):
    @property
    def bootstrap(self) -> str: ...
    @property
    def nodes(self) -> list[Node]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


def why_there_is_none() -> str:
    """Why no Kafka can be started here; empty where one can."""
    if not (FOLDER / "kafka_cluster.py").is_file():
        return f"no Kafka: {FOLDER} is missing, and {VARIABLE} names none"
    if shutil.which("java") is None:
        return f"no Kafka: there is no java, and {VARIABLE} names none"
    return ""


def start(nodes: int = 1, *, data: Path | None = None, settings: dict[str, str] | None = None) -> Cluster:
    """A Kafka of its own, for a test that pauses or kills it. Skips the test where none can be started."""
    reason = why_there_is_none()
    if reason:
        pytest.skip(reason)
    for left in reversed(range(TRIES)):
        try:
            return cast("Cluster", _module().KafkaCluster(nodes, data=data, settings=settings))
        except RuntimeError:
            if not left:
                raise
    raise AssertionError("the last try returns or raises")


def _module() -> Any:
    spec = importlib.util.spec_from_file_location("kafka_cluster", FOLDER / "kafka_cluster.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def named() -> str:
    """The user's own Kafka, "HOST:PORT"; empty where none is named."""
    return os.environ.get(VARIABLE, "")


def freeze(node: Node) -> None:
    """Pauses it, and returns once it stands still: a signal takes its time on a busy machine."""
    node.pause()
    eventually(lambda: Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
