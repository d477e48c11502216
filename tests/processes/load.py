"""What a publisher of the kill tests calls: a mix of all that may be published, in bursts, over topics of every persistence.

Every value says who wrote it, `PRODUCER.LIFE.NUMBER/KEY`, and stands in the log at most once; so does every row and gradient,
whose first two numbers are its life and call. Every element of a version is the version's number.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

import paramstream as ps
from paramstream.consumers.events import Event

from .journal import JournalWriter

OWN_KEYS = 40
SHARED_KEYS = 10
TABLE = "rows"
TABLE_DIM = 3
TABLE_DTYPE = "float64"
TTLS_S = (0.25, 1800.0, 7200.0)
"""The first ends while a test runs, the second where a clock is stepped by an hour, the last never. Exact in binary, so that both
sides have the same nanoseconds."""
WEIGHTS_EVERY = 60
OPEN_CALLS = 200
"""Without an outcome: enough to lie on the wire in every state when something dies, and soon flushed at the end."""

SHAPES = {"embedding": (300, 900), "layer.weight": (40, 50), "layer.bias": (50,), "scale": ()}


def weights_of(version: int) -> dict[str, npt.NDArray[np.float32]]:
    """A version's tensors, every element its number: the largest one travels as two chunks."""
    return {name: np.full(shape, version, dtype=np.float32) for name, shape in SHAPES.items()}


def values_of(event: Event) -> list[str]:
    """What the event writes, each value, row and gradient by the text that stands for it in a journal."""
    if event.kind in ("rows", "gradients"):
        written = event.rows if event.rows is not None else event.grads
        assert written is not None and event.keys is not None
        return [
            f"{event.producer}.{int(row[0])}.{int(row[1])}/{event.table}/{key}"
            for key, row in zip(event.keys.tolist(), written, strict=True)
        ]
    return [value.decode() for _, value, _ in event.items if value is not None]


class Load:
    """Makes call after call and writes each down before and after."""

    def __init__(
        self,
        publishers: Sequence[ps.Publisher],
        life: int,
        journal: JournalWriter,
        chance: random.Random,
        last_versions: Mapping[str, int],
        in_memory: Collection[str],
    ) -> None:
        """`publishers`: of one producer, one for each topic. `last_versions`: topic → the last one sealed, of those for weights.
        `in_memory`: topics of persistence "none", which get plain entries only."""
        self._publishers = {pub.topic: pub for pub in publishers}
        self._producer = publishers[0].producer
        self._life = life
        self._journal = journal
        self._chance = chance
        self._versions = dict(last_versions)
        self._in_memory = in_memory
        self._number = 0
        self._open: deque[ps.Receipt] = deque()

    def burst(self) -> None:
        """Some calls, one right behind the other, as far as few enough are open."""
        for _ in range(self._chance.choice((1, 1, 2, 8))):
            if self._has_room():
                self._one()

    def _has_room(self) -> bool:
        while self._open and self._open[0].outcome not in ("pending", "unknown"):
            self._open.popleft()
        return len(self._open) < OPEN_CALLS

    def _one(self) -> None:
        self._number += 1
        chance = self._chance
        if self._versions and self._number % WEIGHTS_EVERY == 0:
            self._weights(chance.choice(list(self._versions)))
            return
        pub = self._publishers[chance.choice(list(self._publishers))]
        lasts = pub.topic not in self._in_memory
        kind = chance.random()
        if kind < 0.1:
            self._delete(pub)
        elif kind < 0.25 and lasts:
            self._rows(pub, "rows")
        elif kind < 0.4 and lasts:
            self._rows(pub, "gradients")
        else:
            self._put(pub, chance.choice((None, *TTLS_S)) if lasts else None)

    def _weights(self, topic: str) -> None:
        version = self._versions[topic] = self._versions[topic] + 1
        pub = self._publishers[topic]
        self._call(pub, "weights", {}, lambda: pub.publish_weights(weights_of(version), version), version=version)

    def _delete(self, pub: ps.Publisher) -> None:
        key = self._own_key()
        self._call(pub, "delete", {key: None}, lambda: pub.delete(key))

    def _put(self, pub: ps.Publisher, ttl: float | None) -> None:
        keys = {self._own_key() for _ in range(self._chance.choice((1, 1, 1, 6)))}
        if len(keys) == 1 and self._chance.random() < 0.5:
            (key,) = keys
            self._call(pub, "put", {key: self._value(key)}, lambda: pub.put(key, self._value(key).encode(), ttl=ttl))
            return
        keys.add(f"shared/{self._chance.randrange(SHARED_KEYS)}")
        entries = {key: self._value(key) for key in sorted(keys)}
        items = {key: value.encode() for key, value in entries.items()}
        self._call(pub, "put", entries, lambda: pub.put_many(items, ttl=ttl))

    def _rows(self, pub: ps.Publisher, kind: str) -> None:
        keys = np.array(sorted(self._chance.sample(range(100), self._chance.choice((1, 5)))), np.int64)
        values = np.zeros((len(keys), TABLE_DIM))
        values[:, :2] = self._life, self._number
        entries = {f"{TABLE}/{key}": self._value(f"{TABLE}/{key}") for key in keys.tolist()}
        publish = pub.publish_rows if kind == "rows" else pub.publish_gradients
        self._call(pub, kind, entries, lambda: publish(TABLE, keys, values))

    def _call(
        self,
        pub: ps.Publisher,
        kind: str,
        entries: Mapping[str, str | None],
        call: Callable[[], ps.Receipt],
        version: int | None = None,
    ) -> None:
        name = f"{self._producer}.{self._life}.{self._number}"
        self._journal.calls(name, topic=pub.topic, kind=kind, entries=entries, version=version)
        try:
            receipt = call()
        except ps.ParamstreamError as error:
            self._journal.raised(name, error)
        else:
            self._journal.follow(name, receipt)
            self._open.append(receipt)

    def _own_key(self) -> str:
        return f"{self._producer}/{self._chance.randrange(OWN_KEYS)}"

    def _value(self, key: str) -> str:
        return f"{self._producer}.{self._life}.{self._number}/{key}"
