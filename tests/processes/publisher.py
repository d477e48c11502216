"""A publisher that never rests: `python -m processes.publisher ENDPOINT TOPIC NAME LIFE JOURNAL SEED [weights] [observes]`.

It writes numbered values under its own keys and under keys that all publishers share, deletes some, writes several at once,
and with `weights` publishes versions whose every element is the version's number. With `observes` its writes depend on what
a replica of its own has seen. Asked to `stop` it flushes and says how that went.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

import paramstream as ps

from .journal import JournalWriter
from .lines import Lines, say
from .patience import patiently

OWN_KEYS = 40
SHARED_KEYS = 10
PAUSE_S = 0.002
WEIGHTS_EVERY = 80
OPEN_CALLS = 200
"""Accepted by nobody yet: enough to lie on the wire in every state when something dies, and soon flushed at the end."""

SHAPES = {"embedding": (300, 900), "layer.weight": (40, 50), "layer.bias": (50,), "scale": ()}


def weights_of(version: int) -> dict[str, npt.NDArray[np.float32]]:
    """A version's tensors, every element its number: the largest one travels as two chunks."""
    return {name: np.full(shape, version, dtype=np.float32) for name, shape in SHAPES.items()}


class Publishing:
    """Makes call after call and writes each down before and after."""

    def __init__(
        self, pub: ps.Publisher, life: str, journal: JournalWriter, chance: random.Random, version: int
    ) -> None:
        self._pub = pub
        self._life = life
        self._journal = journal
        self._chance = chance
        self._number = 0
        self._version = version
        """The last one published; negative where this publisher makes no weights."""
        self._open: deque[ps.Receipt] = deque()

    @property
    def has_room(self) -> bool:
        while self._open and self._open[0].outcome not in ("pending", "unknown"):
            self._open.popleft()
        return len(self._open) < OPEN_CALLS

    def one(self) -> None:
        self._number += 1
        name = f"{self._pub.producer}.{self._life}.{self._number}"
        if self._version >= 0 and self._number % WEIGHTS_EVERY == 0:
            self._version += 1
            version = self._version
            self._journal.calls(name, kind="weights", version=version)
            self._make(name, lambda: self._pub.publish_weights(weights_of(version), version))
        elif self._chance.random() < 0.1:
            key = self._own_key()
            self._journal.calls(name, kind="delete", entries={key: None})
            self._make(name, lambda: self._pub.delete(key))
        else:
            keys = {self._own_key() for _ in range(self._chance.choice((1, 1, 1, 6)))}
            keys.add(f"shared/{self._chance.randrange(SHARED_KEYS)}")
            entries = {key: f"{name}/{key}" for key in sorted(keys)}
            self._journal.calls(name, kind="put", entries=entries)
            self._make(name, lambda: self._pub.put_many({key: value.encode() for key, value in entries.items()}))

    def _make(self, name: str, call: Callable[[], ps.Receipt]) -> None:
        try:
            receipt = call()
        except ps.ParamstreamError as error:
            self._journal.raised(name, error)
        else:
            self._journal.follow(name, receipt)
            self._open.append(receipt)

    def _own_key(self) -> str:
        return f"{self._pub.producer}/{self._chance.randrange(OWN_KEYS)}"


def flush_errors(pub: ps.Publisher, timeout: float) -> Iterator[str]:
    """Flush until nothing is open: each flush raises one error of what ended badly since the last one."""
    while True:
        try:
            pub.flush(timeout)
        except ps.ParamstreamTimeout as error:
            yield str(error)
            return
        except ps.ParamstreamError as error:
            yield str(error)
        else:
            return


def main(endpoint: str, topic: str, name: str, life: str, journal: str, seed: str, *options: str) -> None:
    client = ps.connect(endpoint, timeout=30)
    seen = (
        patiently(lambda: client.replica(topic, name=f"eye-of-{name}", arrays="numpy"))
        if "observes" in options
        else None
    )
    pub = patiently(lambda: client.publisher(topic, producer=name, observes=seen))
    version = -1
    if "weights" in options:
        version = max((found.version for found in patiently(lambda: client.versions(topic))), default=0)
    publishing = Publishing(pub, life, JournalWriter(Path(journal)), random.Random(seed), version)
    lines = Lines(0)
    say(up=True)
    while (request := lines.next(PAUSE_S)) is None:
        if publishing.has_room:
            publishing.one()
    assert request["ask"] == "stop"
    errors = list(flush_errors(pub, request["within"]))
    client.close()
    say(errors=errors)


if __name__ == "__main__":
    main(*sys.argv[1:])
