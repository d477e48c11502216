"""A broker, trainers that publish gradients, and replicas whose tables are larger than their memory, of which any may be killed.

At the end every row of every replica must be what the log says, bit for bit.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import paramstream as ps
from paramstream.consumers.events import event_of
from paramstream.eventlog.reading import FolderReader
from reference.adagrad_rows import AdagradRows

from .child import Child
from .family import Family
from .patience import patiently
from .rows import EPS, FIRST, LR, PARTITIONS, TABLE, TOPIC
from .world import free_port

TRAINERS = ("t0", "t1", "t2")
REPLICAS = ("r0", "r1")
FILL_ROWS = 65_536
START_S = 300.0
"""Long enough for a replica that reads all of a large table again."""


@dataclass(frozen=True)
class Size:
    """How large it all is."""

    rows: int
    dim: int
    keys: int
    """Of a gradient event."""
    pause_s: float
    """Of a trainer between two of them."""
    dram: int
    ssd: int
    log: int
    keep_s: float
    """Between two snapshots of a replica."""
    end_s: float = 300.0
    """Within this everything is quiet at the end."""


class Learning(Family):
    """All of it."""

    def __init__(self, folder: Path, size: Size, chance: random.Random) -> None:
        super().__init__(START_S)
        self.folder = folder
        self.size = size
        self.chance = chance
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.kills = 0

    # --- life and death ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A table with every second row written; trainers and replicas."""
        size = self.size
        self.spawn("broker")
        self.await_all_up()
        self.client = client = ps.connect(self.endpoint, timeout=START_S)
        client.create_topic(TOPIC, PARTITIONS)
        client.create_table(TOPIC, TABLE, size.dim, optimizer=ps.Adagrad(LR, eps=EPS), init=FIRST)
        fills = np.random.default_rng(self.chance.getrandbits(32))
        with client.publisher(TOPIC, producer="filler") as filler:
            for first in range(0, size.rows, FILL_ROWS):
                keys = np.arange(first, min(first + FILL_ROWS, size.rows), 2, dtype=np.int64)
                filler.publish_rows(TABLE, keys, fills.random((len(keys), size.dim), np.float32), timeout=START_S)
            filler.flush(START_S)
        for name in (*REPLICAS, *TRAINERS):
            self.spawn(name)
        self.await_all_up()

    def spawn(self, name: str) -> None:
        errors, size = self.folder / f"{name}.stderr", self.size
        if name == "broker":
            child = Child("broker", self.folder / "log", self.endpoint, "boot-0", size.log, errors=errors)
        elif name in TRAINERS:
            seed = self.chance.getrandbits(32)
            child = Child(
                "row_trainer", self.endpoint, name, size.rows, size.dim, size.keys, size.pause_s, seed, errors=errors
            )
        else:
            place = self.folder / name
            child = Child(
                "row_replica", self.endpoint, name, place, size.rows, size.dim, size.dram, size.ssd, size.keep_s,
                errors=errors,
            )  # fmt: skip
        self.children[name] = child
        self.starting.add(name)

    def kill_one(self) -> str:
        victim = self.chance.choice(("broker", "broker", *TRAINERS, *REPLICAS))
        self.children.pop(victim).kill()
        self.starting.discard(victim)
        self.kills += 1
        self.spawn(victim)
        return victim

    # --- the end ----------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Everything comes to rest, and every row is held against the log."""
        assert self.client is not None
        self.await_all_up()
        until = self._stop_trainers()
        digests = {name: self._digest_of(name, until) for name in REPLICAS}
        missing = {name: self._write_rows(name) for name in REPLICAS}
        (topic,) = self.client.topics()
        for name in (*REPLICAS, "broker"):
            self.children.pop(name).end(self.size.end_s)
        expected = self._replay(topic.id)
        for name in REPLICAS:
            path = self._rows_path(name)
            found = np.memmap(path, np.float32, "r", shape=expected.values.shape)
            differs = (found.view(np.uint32) != expected.values.view(np.uint32)).any(axis=1)
            assert not differs.any(), (
                f"{name}: {np.count_nonzero(differs)} rows are not what the log says, first {differs.argmax()}"
            )
            assert missing[name] == np.count_nonzero(~expected.there)
            del found
            path.unlink()
        assert len(set(digests.values())) == 1, f"rows are equal, and digests differ: {digests}"

    def _stop_trainers(self) -> ps.VersionVector[str]:
        """Where the state partitions end then."""
        assert self.client is not None
        client, end_s = self.client, self.size.end_s
        for name in TRAINERS:
            self.children[name].send("stop", within=end_s)
        for name in TRAINERS:
            answer = self.children[name].read(2 * end_s)
            assert not answer["timed_out"], f"{name} could not flush: {answer['errors']}"
            self.children.pop(name).end(end_s)
        with patiently(lambda: client.publisher(TOPIC, producer="marker")) as marker:
            receipt = marker.put_many({f"marker/{n}": b"" for n in range(64)})
            marker.flush(end_s)
        assert len(receipt.positions) == PARTITIONS
        return receipt.positions

    def _digest_of(self, name: str, until: ps.VersionVector[str]) -> str:
        end_s = self.size.end_s
        waited = self.children[name].ask("wait", 2 * end_s, vector=str(until), within=end_s)
        state = self.children[name].ask("state", end_s)
        print(f"{name}: {state['status']}; {state['kept']} snapshots; {state['keeping_failed']}")
        assert not waited["error"], f"{name} does not reach the end: {waited['error']}; {state['status']}"
        assert not state["stopped"], f"{name} stopped: {state['stopped']}"
        return str(state["digest"])

    def _rows_path(self, name: str) -> Path:
        return self.folder / f"{name}.rows"

    def _write_rows(self, name: str) -> int:
        return int(self.children[name].ask("rows", self.size.end_s, path=str(self._rows_path(name)))["missing"])

    def _replay(self, topic_id: int) -> AdagradRows:
        """What the log says, worked out by plain numpy."""
        size, events = self.size, 0
        rows = AdagradRows(size.rows, size.dim, LR, EPS, FIRST)
        with FolderReader(self.folder / "log") as reader:
            for number in range(PARTITIONS):
                for frame in reader.read((topic_id, number)).records:
                    event = event_of(frame, frame.stamp(), TOPIC, lambda _: ps.VersionVector())
                    if event is None or event.keys is None:
                        continue
                    if event.rows is not None:
                        rows.write(event.keys, event.rows)
                    elif event.grads is not None:
                        rows.take(event.keys, event.grads)
                        events += 1
        print(f"{events} gradient events stand after {self.kills} kills")
        assert events
        return rows


def run_learning(folder: Path, size: Size, seed: int, *, kills: int = 0, seconds: float = 0.0, pause_s: float) -> None:
    """Kill something about every `pause_s`: `kills` times at least, and for `seconds` at least."""
    chance = random.Random(seed)
    with Learning(folder, size, chance) as world:
        world.start()
        until = time.monotonic() + seconds
        while world.kills < kills or time.monotonic() < until:
            time.sleep(chance.uniform(0.0, 2 * pause_s))  # The random moment; nothing is waited for here.
            victim = world.kill_one()
            print(f"seed {seed}, kill {world.kills}: {victim}", flush=True)
            if chance.random() < 0.7:  # Else the next kill comes while this one is still being mended.
                world.await_all_up()
            for child in world.children.values():
                child.check()
        world.finish()
