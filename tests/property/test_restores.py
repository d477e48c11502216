"""Random histories, restored at every version, at random vectors and times: the same as the reference works out."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import paramstream as ps
from feeding.rows import rows_of
from paramstream.events.codec import EventFrame
from paramstream.events.kinds import Commit
from reference.history import Cut, History, State
from reference.weights import check_weights

STATE = 3
KEYS = [f"k{number}".encode() for number in range(12)]
ROW_KEYS = [-1, 2**63 - 1, *range(8)]
OPTIMIZERS: list[ps.SGD | ps.Adagrad] = [
    ps.SGD(0.5),
    ps.SGD(0.25),
    ps.Adagrad(0.5, initial_accumulator_value=0.1),
    ps.Adagrad(0.25),
]
PRODUCERS = ("a", "b", "c")
Tensors = dict[str, npt.NDArray[Any]]


class Play:
    """Random publishes of three producers, which now and then see what another one did; two starts of the broker."""

    def __init__(self, folder: Path, seed: int, steps: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.weights: dict[int, Tensors] = {}
        """Commit position → the arrays."""
        self.vectors: list[ps.VersionVector[str]] = []
        self.newest = 0
        self.sealed: list[int] = []
        self._since: list[ps.Receipt] = []
        """Entries that the next commit may name."""
        for _ in range(2):
            with ps.Broker(log=f"file:{folder}") as broker, ps.connect(broker.endpoint) as client:
                client.create_topic("model", partitions=STATE, retain_versions=1000, exist_ok=True)
                if not self.vectors:
                    client.create_table("model", "rows", dim=2, dtype="float64", optimizer=ps.SGD(0.5))
                publishers = [client.publisher("model", producer=name) for name in PRODUCERS]
                for _ in range(steps // 2):
                    if self.random.random() < 0.05:
                        client.alter_table("model", "rows", self.random.choice(OPTIMIZERS))
                    self._step(self.random.choice(publishers))
                for publisher in publishers:
                    publisher.flush()

    def _step(self, publisher: ps.Publisher) -> None:
        chance = self.random.random()
        if chance < 0.15 and self.vectors:
            publisher.observe(self.random.choice(self.vectors))
        elif chance < 0.3:
            self._change_rows(publisher)
        elif chance < 0.4:
            self._put(publisher, self.random.sample(KEYS, self.random.randint(1, 5)))
        elif chance < 0.5:
            self._note(publisher.delete(self.random.choice(KEYS)))
        elif chance < 0.6:
            receipt = publisher.publish_weights(self._arrays(), self.newest + 7, seal=False)
            self._note(receipt)
        else:
            self._seal(publisher)

    def _put(self, publisher: ps.Publisher, keys: list[bytes]) -> None:
        ttl = self.random.choice([None, None, None, 0.002, 3600.0])
        valid_for = self.random.choice([None, None, self.newest + 1, *self.sealed[-2:]])
        items = {key: self.random.randbytes(self.random.randint(0, 40)) for key in keys}
        receipt = publisher.put_many(items, ttl=ttl, valid_for=valid_for)
        self._note(receipt)
        self._since.append(receipt)

    def _change_rows(self, publisher: ps.Publisher) -> None:
        keys = self.random.choices(ROW_KEYS, k=self.random.randint(1, 6))
        values = np.array([[self.random.random(), 1.0] for _ in keys])
        match self.random.randrange(4):
            case 0:
                receipt = publisher.publish_rows("rows", keys, values)
            case 1:
                up_to = max(self.random.choice(self.vectors).values(), default=0) if self.vectors else None
                receipt = publisher.delete_rows("rows", keys, up_to=self.random.choice([None, up_to]))
            case _:
                receipt = publisher.publish_gradients("rows", keys, values)
        self._note(receipt)
        self._since.append(receipt)

    def _seal(self, publisher: ps.Publisher) -> None:
        rewind = bool(self.sealed) and self.random.random() < 0.25
        version = self.random.choice(self.sealed) if rewind else self.newest + self.random.randint(1, 2)
        arrays, parts = self._arrays(), self._since[-2:] if self.random.random() < 0.5 else []
        if parts:
            part = publisher.publish_weights(arrays, version, seal=False)
            receipt = publisher.commit(version, parts=[part, *parts], rewind=rewind)
        else:
            receipt = publisher.publish_weights(arrays, version, rewind=rewind)
        self._note(receipt)
        self.weights[receipt.positions["model", STATE]] = arrays
        self.newest = version
        self.sealed = [*(each for each in self.sealed if each < version), version]

    def _note(self, receipt: ps.Receipt) -> None:
        self.vectors.append(receipt.accepted.result(30))

    def _arrays(self) -> Tensors:
        value = self.random.random()
        return {"w": np.full((3, 5), value), "b": np.full(2, value, np.float32)}


class Check:
    """Restores from a source, and compares with the reference."""

    def __init__(self, play: Play, history: History, source: str) -> None:
        self.play, self.history, self.source = play, history, source

    def __call__(self, at: ps.VersionVector[str] | datetime | int | None, cut: Cut) -> None:
        expected = self.history.state(cut)
        with (
            ps.TieredStore(dram="64MiB") as store,
            ps.restore(self.source, "model", at=at, store=store, arrays="numpy") as replica,
        ):
            self._check_weights(replica, expected)
            rows = {(n, name): table.bits() for n, tables in expected.tables.items() for name, table in tables.items()}
            assert rows_of(store, [(self.history.topic, n) for n in range(STATE)]) == rows, (at, self.source)
            found = {key: replica.get(key) for key in KEYS}
            assert found == {key: expected.get(key) for key in KEYS}, (at, self.source)

    def _check_weights(self, replica: ps.Replica, expected: State) -> None:
        commit = expected.commit
        if commit is None:
            with pytest.raises(ps.VersionNotHeld):
                replica.weights()
            return
        assert isinstance(commit.payload, Commit)
        check_weights(replica.weights(), self.play.weights[commit.position], commit.payload.version)


def restored_everywhere(tmp_path: Path, seed: int, steps: int, vectors: int) -> None:
    play = Play(tmp_path / "log", seed, steps)
    with ps.Broker(log=f"file:{tmp_path / 'log'}") as broker:
        # With the records that this start has written: what is stamped past a deadline removes entries.
        history = History(tmp_path / "log", STATE)
        heads = {number: records[-1].position for number, records in history.records.items()}
        for source in (f"file:{tmp_path / 'log'}", broker.endpoint):
            check = Check(play, history, source)
            check(None, heads)
            for version, commit in history.standing().items():
                check(version, history.at_commit(commit))
            for _ in range(vectors):
                check_some(check, history, heads)


def check_some(check: Check, history: History, heads: Cut) -> None:
    """At a vector that somebody was told, at one that is cut anywhere, and at a time."""
    told = check.play.random.choice(check.play.vectors)
    check(told, history.lowered({number: at for (_, number), at in told.items()}))
    anywhere = {n: check.play.random.choice(records).position for n, records in history.records.items()}
    check(ps.VersionVector({("model", n): at for n, at in anywhere.items()}), history.lowered(anywhere))
    record: EventFrame = check.play.random.choice(history.records[check.play.random.choice(list(heads))])
    # The microsecond behind the record's; all that was stamped within it counts.
    microseconds = record.time // 1000 + 1
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    check(moment, history.lowered(history.at_time(microseconds * 1000 + 999)))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_restore_anywhere_in_a_random_history_is_what_the_reference_works_out(tmp_path: Path, seed: int) -> None:
    restored_everywhere(tmp_path, seed, steps=70, vectors=4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_random_histories(tmp_path: Path, seed: int) -> None:
    restored_everywhere(tmp_path, seed, steps=200, vectors=10)
