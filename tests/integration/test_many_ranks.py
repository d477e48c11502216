"""Many ranks, one version: parts from several processes, one commit, and ranks that die in between."""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import numpy as np
import pytest

import paramstream as ps
from processes.child import Child

RANKS = 4
SEED = 20_26
ANSWER_S = 30.0
KILL_EVERY = 20


class Ranks:
    """The rank processes; one that was killed is started again under its name."""

    def __init__(self, endpoint: str, folder: Path, stack: ExitStack) -> None:
        self._endpoint = endpoint
        self._folder = folder
        self._stack = stack
        self._children = [self._start(number) for number in range(RANKS)]
        for child in self._children:
            assert child.read(ANSWER_S) == {"up": True}

    def publish(self, version: int) -> list[str]:
        """Every rank stages its part: their receipts as text."""
        for child in self._children:
            child.send("publish", version=version, value=float(version))
        return [child.read(ANSWER_S)["receipt"] for child in self._children]

    def kill_inside(self, number: int, version: int, after_s: float) -> None:
        """Kill a rank while it stages wrong values for `version`, and start it again."""
        child = self._children[number]
        child.send("publish", version=version, value=-1.0)
        time.sleep(after_s)
        child.kill()
        self._children[number] = self._start(number)
        assert self._children[number].read(ANSWER_S) == {"up": True}

    def _start(self, number: int) -> Child:
        child = Child("rank", self._endpoint, "model", number, errors=self._folder / f"rank-{number}.err")
        return self._stack.enter_context(child)


class Reader:
    """Reads as fast as it can, and keeps what was no whole version."""

    def __init__(self, replica: ps.Replica) -> None:
        self._replica = replica
        self._stop = threading.Event()
        self.torn: list[tuple[int, set[float]]] = []
        self.versions: set[int] = set()
        self._thread = threading.Thread(target=self._read, name="reader")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(ANSWER_S)

    def _read(self) -> None:
        while not self._stop.wait(0.0005):
            try:
                weights = self._replica.weights()
            except ps.VersionNotHeld:
                continue
            self.versions.add(weights.version)
            values = {float(values.flat[at]) for values in weights.values() for at in (0, -1)}
            if values != {float(weights.version)} or len(weights) != 2 * RANKS:
                self.torn.append((weights.version, values))


def test_four_rank_processes_and_one_commit_never_make_a_mixture_though_ranks_are_killed(tmp_path: Path) -> None:
    publish_versions(80, tmp_path)


@pytest.mark.slow
def test_four_rank_processes_and_one_commit_never_make_a_mixture_in_500_versions(tmp_path: Path) -> None:
    publish_versions(500, tmp_path)


def publish_versions(versions: int, folder: Path) -> None:
    chance = random.Random(SEED)
    with ExitStack() as stack:
        broker = stack.enter_context(ps.Broker(log="memory:", log_limit="256MiB"))
        client = stack.enter_context(ps.connect(broker.endpoint))
        client.create_topic("model", retain_versions=2)
        ranks = Ranks(broker.endpoint, folder, stack)
        elsewhere = stack.enter_context(
            Child("replica", broker.endpoint, "model", "elsewhere", "causal", errors=folder / "replica.err")
        )
        assert elsewhere.read(ANSWER_S) == {"up": True}
        replica = client.replica("model", name="here", arrays="numpy")
        reader = stack.enter_context(Reader(replica))
        committer = client.publisher("model", producer="committer")
        receipt: ps.Receipt | None = None
        for version in range(1, versions + 1):
            if version % KILL_EVERY == 0:
                ranks.kill_inside(chance.randrange(RANKS), version, chance.random() * 0.02)
            receipt = committer.commit(version, [ps.Receipt.parse(text) for text in ranks.publish(version)])
        assert receipt is not None
        replica.wait(receipt, ANSWER_S)
        waited = elsewhere.ask("wait", 2 * ANSWER_S, vector=str(receipt.vector), within=ANSWER_S)
        state = elsewhere.ask("state", ANSWER_S)
        assert (waited["error"], state["torn"], state["stopped"]) == ("", 0, {})
        assert state["digest"] == replica.digest() and state["version"] == versions
        for values in replica.weights().values():
            assert np.all(values == versions)
        assert [known.version for known in client.versions("model")][-1] == versions
    assert reader.torn == [] and len(reader.versions) > 1
