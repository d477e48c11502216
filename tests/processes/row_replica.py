"""A replica of a table larger than its memory, read all the time, that keeps its state over kills.

    python -m processes.row_replica ENDPOINT NAME FOLDER ROWS DIM DRAM SSD KEEP_S

It resumes from `FOLDER/kept`, spills to `FOLDER/ssd`, and makes a snapshot every `KEEP_S`. Asked `wait`, it waits for a vector;
`state`: says digest, counters and what has stopped; `rows`: writes all rows, in the order of their keys, to a file.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import numpy as np

import paramstream as ps

from .lines import Line, Lines, say
from .patience import patiently
from .replica import waited
from .rows import TABLE, TOPIC, some_keys

READ_EVERY_S = 0.002
READ_KEYS = 1024
BATCH_KEYS = 65_536
START_S = 300.0


class Keeper:
    """Makes snapshots in a thread, until it is closed."""

    def __init__(self, replica: ps.Replica, every_s: float) -> None:
        self._replica, self._every_s = replica, every_s
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.made, self.error = 0, ""
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._ending.wait(self._every_s):
            try:
                self._replica.snapshot(timeout=60)
            except ps.ParamstreamError as error:
                self.error = f"{error.code}: {error}"
            else:
                self.made += 1


def write_rows(replica: ps.Replica, rows: int, dim: int, path: str) -> int:
    """All values to the file `path`; how many rows were not found."""
    missing = 0
    with open(path, "wb") as file:
        for first in range(0, rows, BATCH_KEYS):
            keys = np.arange(first, min(first + BATCH_KEYS, rows), dtype=np.int64)
            values, found = replica.lookup(TABLE, keys, return_found=True)
            missing += int(np.count_nonzero(~np.asarray(found)))
            file.write(np.asarray(values).astype(np.float32, copy=False).tobytes())
    return missing


def await_all(replica: ps.Replica, vector: str, within_s: float) -> str:
    """What went wrong while waiting for `vector`; empty where it is applied. A tier that is full has room again later."""
    deadline = time.monotonic() + within_s
    while (error := waited(replica, vector, deadline - time.monotonic())).startswith("StorageFull"):
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)  # Between two looks; the deadline bounds them.
    return error


def state_of(replica: ps.Replica, keeper: Keeper) -> Line:
    status = replica.status()
    return {
        "digest": replica.digest(),
        "stopped": {f"{topic}/{number}": str(error) for (topic, number), error in status.stopped.items()},
        "kept": keeper.made,
        "keeping_failed": keeper.error,
        "status": repr(status),
    }


def main(endpoint: str, name: str, folder: Path, rows: int, dim: int, dram: int, ssd: int, keep_s: float) -> None:
    client = ps.connect(endpoint, timeout=30)
    store = ps.TieredStore(dram=dram, ssd=f"{folder / 'ssd'}:{ssd}")
    replica = patiently(
        lambda: client.replica(
            TOPIC, name=name, start="resume", snapshot_dir=folder / "kept", store=store, arrays="numpy", timeout=START_S
        )
    )
    chance, lines, keeper = np.random.default_rng(), Lines(0), Keeper(replica, keep_s)
    say(up=True)
    try:
        while True:
            match lines.next(READ_EVERY_S):
                case {"ask": "wait", "vector": str(vector), "within": within}:
                    say(error=await_all(replica, vector, within))
                case {"ask": "state"}:
                    say(**state_of(replica, keeper))
                case {"ask": "rows", "path": str(path)}:
                    say(missing=write_rows(replica, rows, dim, path))
                case _:
                    values = replica.lookup(TABLE, some_keys(chance, rows, READ_KEYS))
                    assert np.isfinite(np.asarray(values)).all()
    except EOFError:
        keeper.close()
        replica.close()
        client.close()


if __name__ == "__main__":
    _, where, who, place, size, width, memory, disk, every = sys.argv
    main(where, who, Path(place), int(size), int(width), int(memory), int(disk), float(every))
