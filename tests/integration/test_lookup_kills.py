"""Look-ups while rows are written and the replicas that serve are killed and paused at random: none is old, none is torn, none fails."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from processes.child import Child

KEYS = np.arange(500)
DIM = 8
NAMES = ("a", "b", "c")


class Written:
    """What a writer has published, for readers: the last receipt, and the number that each row had at least by then."""

    def __init__(self, publisher: ps.Publisher) -> None:
        self._publisher = publisher
        self._lock = threading.Lock()
        self._least = np.zeros(len(KEYS))
        self._receipt = publisher.publish_rows("rows", KEYS, np.zeros((len(KEYS), DIM), np.float32))

    def now(self) -> tuple[ps.Receipt, np.ndarray[tuple[int], np.dtype[np.float64]]]:
        with self._lock:
            return self._receipt, self._least.copy()

    def write(self, stop: threading.Event) -> int:
        """Rows with greater and greater numbers, until `stop`; returns how often."""
        chooser, number = np.random.default_rng(3), 0
        while not stop.wait(0.005):
            number += 1
            chosen = chooser.choice(KEYS, 20, replace=False)
            receipt = self._publisher.publish_rows("rows", chosen, np.full((20, DIM), number, np.float32))
            with self._lock:
                self._receipt, self._least[chosen] = receipt, number
        return number

    def read(self, client: ps.Client, stop: threading.Event) -> int:
        """Look all rows up, until `stop`; returns how often. Raises what a look-up raises, and where it is wrong."""
        times = 0
        while not stop.is_set():
            receipt, least = self.now()
            values, found = client.lookup("model", "rows", KEYS, receipt, return_found=True, arrays="numpy", timeout=60)
            assert found.all()
            assert (values == values[:, :1]).all(), "a row is of two writes"
            assert (values[:, 0] >= least).all(), "a row is older than the receipt that was passed"
            times += 1
        return times


@pytest.mark.slow
def test_look_ups_among_random_kills_are_never_old_never_torn_and_all_answered(tmp_path: Path, seed: int) -> None:
    chance, stop = random.Random(seed), threading.Event()
    with ExitStack() as stack:
        broker = stack.enter_context(ps.Broker(log=f"file:{tmp_path}/log"))
        plain = stack.enter_context(ps.connect(broker.endpoint))
        keeps = stack.enter_context(ps.connect(broker.endpoint, hot_rows="4MiB"))
        plain.create_topic("model", partitions=4)
        plain.create_table("model", "rows", DIM)
        written = Written(plain.publisher("model", producer="trainer"))

        def start(name: str) -> Child:
            return stack.enter_context(
                Child("serving_replica", broker.endpoint, "model", name, errors=tmp_path / f"{name}.txt")
            )

        children = {name: start(name) for name in NAMES}
        for child in children.values():
            child.read(60)
        pool = stack.enter_context(ThreadPoolExecutor(5))
        stack.callback(stop.set)
        writes = pool.submit(written.write, stop)
        reads = [pool.submit(written.read, client, stop) for client in (plain, plain, keeps, keeps)]
        ends = time.monotonic() + 30
        while time.monotonic() < ends and not any(read.done() for read in reads):
            name = chance.choice(NAMES)
            if chance.random() < 0.5:
                children[name].pause()
                time.sleep(3 * chance.random())
                children[name].resume()
            else:
                children[name].kill()
                children[name] = start(name)
                children[name].read(60)
            time.sleep(chance.random())
        stop.set()
        assert writes.result(60) > 100
        assert min(read.result(120) for read in reads) > 20
        assert keeps.hot_rows.hits > 0
