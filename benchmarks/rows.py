"""Rows of 64 floats: gradients applied a second through the stream, rows looked up a second, and how fresh they are.

Beside each stands what the machine does by itself (`raw_rows.py`), what two hops over ZeroMQ alone carry of the same bytes
(`raw_zmq.py`), and a Redis where there is one (`redis_rows.py`), in the same rounds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import paramstream as ps
from paramstream.cli.standing import favour_small_events, keep_freed_memory
from paramstream.events.limits import MAX_CHUNK_BYTES

from .processes import DEADLINE_S, Process, broker_process, medians, percentile
from .raw_rows import Floats, Keys, RawTable, keys_of
from .raw_zmq import RawRelay
from .redis_rows import RedisRows, redis_server

TRANSPORT = "ipc"
TOPIC, TABLE, PROBES = "rows", "rows", "probes"
DIM = 64
KEY_NBYTES, ROW_NBYTES = 8, 4 * DIM
LOG_LIMIT_BYTES = 16 << 30
RATE = 1e-3
ZIPF = 0.99
"""The exponent of the skewed keys: the one of the usual benchmarks of caches."""
PROBE_GAP_S, LOAD_ROWS = 0.005, 4096
"""Between two probes of freshness; and the rows of one call of the load beside them."""
DRAM = "8GiB"

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    rows: int
    """Of the table."""
    batch: int
    """Rows of one call."""
    batches: int
    """Calls of one round."""
    rounds: int
    fresh_s: float
    """How long freshness is watched, in all."""


FULL = Size(4 << 20, 1 << 16, 8, 7, 5.0)
QUICK = Size(1 << 19, 1 << 16, 4, 3, 1.5)
TINY = Size(1 << 12, 1 << 12, 2, 1, 0.2)
"""For a test: says nothing."""


def run(quick: bool = False) -> dict[str, object]:
    """Rows a second (millions) of each, shares, freshness in ms, and CPU time a row; medians of the rounds."""
    return measure(QUICK if quick else FULL)


def measure(size: Size) -> dict[str, object]:
    with ExitStack() as opened:
        endpoint, broker_pid = opened.enter_context(broker_process(TRANSPORT, log_limit_bytes=LOG_LIMIT_BYTES))
        client = opened.enter_context(ps.connect(endpoint))
        client.create_topic(TOPIC)
        client.create_table(TOPIC, TABLE, dim=DIM, optimizer=ps.SGD(RATE))
        client.create_table(TOPIC, PROBES, dim=1, dtype="float64", optimizer=ps.SGD(1.0))
        publisher = opened.enter_context(client.publisher(TOPIC, producer="bench"))
        replica = opened.enter_context(Process(_follow, endpoint))
        program = redis_server()
        redis = opened.enter_context(RedisRows(program)) if program else None
        keys = keys_of(size.rows)
        relay = opened.enter_context(RawRelay(TRANSPORT, MAX_CHUNK_BYTES))
        bench = Bench(size, keys, RawTable(keys, DIM), publisher, replica, relay, redis, broker_pid)
        bench.fill()
        bench.round("uniform")  # The first ones pay for what is made on first use.
        rounds = [bench.round("uniform") | bench.round("zipf") for _ in range(size.rounds)]
        results = medians(rounds)
        results |= bench.freshness(endpoint, float(str(results["uniform_applied_mrows_s"])) * 1e6 / 2)
    if redis is None:
        results["redis"] = "there is no redis-server; PARAMSTREAM_REDIS may name one"
    return results


class Bench:
    """One round after another over the same table."""

    def __init__(
        self, size: Size, keys: Keys, raw: RawTable, publisher: ps.Publisher, replica: Process, relay: RawRelay,
        redis: RedisRows | None, broker_pid: int,
    ) -> None:  # fmt: skip
        self._size, self._keys, self._raw = size, keys, raw
        self._publisher, self._replica, self._relay, self._redis = publisher, replica, relay, redis
        self._pids = {"publisher": os.getpid(), "broker": broker_pid, "replica": int(replica.said)}
        self._chance = np.random.default_rng(0)
        weights = np.arange(1, size.rows + 1, dtype=np.float64) ** -ZIPF
        self._zipf = np.cumsum(weights) / weights.sum()
        self._ranks = self._chance.permutation(size.rows)
        """Where the row of each rank stands: popular rows do not lie side by side."""

    def fill(self) -> None:
        """Every row is there, at the replica and in Redis."""
        rows, receipt = np.zeros((self._size.batch, DIM), np.float32), None
        for at in range(0, self._size.rows, self._size.batch):
            some = self._keys[at : at + self._size.batch]
            receipt = self._publisher.publish_rows(TABLE, some, rows[: some.size], timeout=DEADLINE_S)
            if self._redis is not None:
                self._redis.write_s(some, rows[: some.size])
        assert receipt is not None
        self._replica.ask(("seen", str(receipt.vector)))

    def round(self, spread: str) -> dict[str, float]:
        """Each measured once. Rows a second are in millions."""
        batches = list(self._batches(spread))
        gradients = self._chance.standard_normal((self._size.batch, DIM), np.float32)
        rows = self._size.batch * len(batches)
        before, began = self._cpu_s(), time.monotonic()
        receipts = [
            self._publisher.publish_gradients(TABLE, self._keys[slots], gradients, timeout=DEADLINE_S)
            for slots in batches
        ]
        applied_s = self._replica.ask(("seen", str(receipts[-1].vector))) - began
        cpu = {name: (after - before[name]) / rows * 1e6 for name, after in self._cpu_s().items()}
        relayed_s = self._relay.seconds(rows * (KEY_NBYTES + ROW_NBYTES) // MAX_CHUNK_BYTES * MAX_CHUNK_BYTES)
        raw_s = sum(self._raw.scatter_add_s(slots, gradients) for slots in batches)
        looked_s = self._replica.ask(("lookup", [self._keys[slots] for slots in batches]))
        out = np.empty_like(gradients)
        gathered_s = sum(self._raw.gather_s(self._keys[slots], out) for slots in batches)
        figures = {
            "applied_mrows_s": rows / applied_s / 1e6, "scatter_add_mrows_s": rows / raw_s / 1e6,
            "applied_share": raw_s / applied_s,
            "relay_mrows_s": rows / relayed_s / 1e6, "applied_share_of_relay": relayed_s / applied_s,
            "lookup_mrows_s": rows / looked_s / 1e6, "gather_mrows_s": rows / gathered_s / 1e6,
            "lookup_share": gathered_s / looked_s,
        }  # fmt: skip
        figures |= {f"{name}_cpu_us_row": spent for name, spent in cpu.items()}
        if self._redis is not None:
            few = batches[:2]
            set_s = sum(self._redis.write_s(self._keys[slots], gradients) for slots in few)
            get_s = sum(self._redis.read_s(self._keys[slots], ROW_NBYTES) for slots in few)
            each = self._size.batch * len(few) / 1e6
            figures |= {
                "redis_mset_mrows_s": each / set_s, "redis_mget_mrows_s": each / get_s,
                "applied_times_redis": figures["applied_mrows_s"] * set_s / each,
                "lookup_times_redis": figures["lookup_mrows_s"] * get_s / each,
            }  # fmt: skip
        return {f"{spread}_{name}": value for name, value in figures.items()}

    def freshness(self, endpoint: str, rows_s: float) -> dict[str, object]:
        """From `publish_gradients` to visible in `lookup`, beside another producer's `rows_s` rows a second."""
        with Process(_load, endpoint, self._size.rows, rows_s) as load:
            load.tell("go")
            first = time.monotonic()
            self._replica.tell(("fresh", int(self._size.fresh_s / PROBE_GAP_S)))
            for number in range(int(self._size.fresh_s / PROBE_GAP_S)):
                time.sleep(max(0.0, first + number * PROBE_GAP_S - time.monotonic()))
                # SGD with a rate of 1 from 0: the row becomes the time at which this was called.
                self._publisher.publish_gradients(PROBES, [number], np.array([[-time.monotonic()]]))
            seconds = self._replica.answer()
            given = load.ask("stop")
        return {
            "fresh_p50_ms": percentile(seconds, 50) * 1e3, "fresh_p99_ms": percentile(seconds, 99) * 1e3,
            "fresh_load_mrows_s": given / 1e6,
        }  # fmt: skip

    def _batches(self, spread: str) -> Iterator[Keys]:
        for _ in range(self._size.batches):
            if spread == "uniform":
                yield self._chance.integers(0, self._size.rows, self._size.batch)
            else:
                yield self._ranks[np.searchsorted(self._zipf, self._chance.random(self._size.batch))]

    def _cpu_s(self) -> Mapping[str, float]:
        return {name: _cpu_s(pid) for name, pid in self._pids.items()}


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


# --- in processes of their own --------------------------------------------------------------------------------------------------


def _follow(pipe: Connection, endpoint: str) -> None:
    """A replica: answers ("seen", vector) with the time at which that was visible, ("lookup", key arrays) with the seconds that it took,
    and ("fresh", count) with how old each probe was when it showed.
    """
    # As `paramstream replica` does.
    favour_small_events()
    keep_freed_memory()
    store = ps.TieredStore(dram=DRAM)
    with ps.connect(endpoint) as client, client.replica(TOPIC, store=store, arrays="numpy") as replica:
        pipe.send(os.getpid())
        while (question := pipe.recv()) is not None:
            what, about = question
            match what:
                case "seen":
                    replica.wait(ps.VersionVector.parse(about), DEADLINE_S)
                    pipe.send(time.monotonic())
                case "lookup":
                    began = time.perf_counter()
                    for keys in about:
                        replica.lookup(TABLE, keys)
                    pipe.send(time.perf_counter() - began)
                case _:
                    pipe.send([_age(replica, number) for number in range(about)])


def _age(replica: ps.Replica, number: int) -> float:
    """Seconds from the probe's call to its row being visible here."""
    keys: NDArray[np.int64] = np.array([number])
    while True:
        values, found = replica.lookup(PROBES, keys, return_found=True)
        if found[0]:
            return time.monotonic() - float(values[0, 0])
        time.sleep(2e-4)


def _load(pipe: Connection, endpoint: str, rows: int, rows_s: float) -> None:
    """Another producer's gradients, evenly, from a word on until another comes: answers with the rows a second that it gave."""
    chance, keys = np.random.default_rng(1), keys_of(rows)
    gradients: Floats = chance.standard_normal((LOAD_ROWS, DIM), np.float32)
    with ps.connect(endpoint) as client, client.publisher(TOPIC, producer="load") as publisher:
        pipe.send("ready")
        pipe.recv()
        began, given = time.monotonic(), 0
        while not pipe.poll(max(0.0, began + given / rows_s - time.monotonic())):
            publisher.publish_gradients(TABLE, keys[chance.integers(0, rows, LOAD_ROWS)], gradients, timeout=DEADLINE_S)
            given += LOAD_ROWS
        pipe.recv()
        pipe.send(given / (time.monotonic() - began))
        assert pipe.recv() is None
