"""A processor in a process of its own: `python -m processes.processor ENDPOINT,... WHICH STATE`.

    adder     sums the gradients that it sees, and puts the sum out as the one entry `sum/PARTITION`
    relay     gives one gradient of 1 for each one that it sees, to keys that go to both partitions of its sink
    collector sums what the relay gives
    maker     publishes a version of several chunks for every tenth gradient of partition 0
    server    is the parameter server of `training.py`

It says `up` once every task follows its partition, and then answers `status`. At the end of its input it closes.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

import paramstream as ps
from paramstream.consumers.events import Event

from .lines import Line, Lines, say
from .patience import patiently
from .training import SERVED

SOURCE, SUMS, ONES, TOTALS, MODEL = "grads", "sums", "ones", "totals", "model"
TABLE = "t"
EVERY = 10
"""A version is made of so many gradients."""
SHAPES = {"large": (600_000,), "small": (3, 5), "scalar": ()}
"""The large one is cut into three chunks."""
ONE = np.ones((1, 1), np.float32)


def add(event: Event, state: dict[Any, Any], out: ps.Output) -> None:
    if event.kind == "gradients":
        assert event.grads is not None
        state["sum"] = state.get("sum", 0) + int(event.grads.sum())
        out.put(f"sum/{event.partition}", b"%d" % state["sum"])


def relay(event: Event, state: dict[Any, Any], out: ps.Output) -> None:
    if event.kind == "gradients":
        state["seen"] = seen = state.get("seen", 0) + 1
        out.publish_gradients(TABLE, [seen], ONE)


def weights_of(seen: int) -> dict[str, npt.NDArray[np.float32]]:
    """What version `seen` has: every value rests on the number."""
    return {
        name: (np.arange(np.prod(shape, dtype=int), dtype=np.float32) * seen).reshape(shape)
        for name, shape in SHAPES.items()
    }


def make(event: Event, state: dict[Any, Any], out: ps.Output) -> None:
    if event.kind == "gradients" and event.partition == 0:
        state["seen"] = seen = state.get("seen", 0) + 1
        if seen % EVERY == 0:
            out.put("about", b"%d" % seen)
            out.publish_weights(weights_of(seen), version=seen)


PROCESSORS = {
    "adder": ps.processor(SOURCE, SUMS)(add),
    "relay": ps.processor(SOURCE, ONES)(relay),
    "collector": ps.processor(ONES, TOTALS)(add),
    "maker": ps.processor(SOURCE, MODEL)(make),
    "server": SERVED,
}


def status_of(run: ps.ProcessorRun) -> Line:
    status = run.status()
    return {
        "errors": [f"{task.producer}: {task.error!r}" for task in status.failed],
        "setbacks": sum(task.setbacks for task in status.tasks.values()),
        "text": repr(status),
    }


def main(endpoints: str, which: str, state: str) -> None:
    with ps.connect(endpoints.split(","), timeout=30) as client:
        run = patiently(lambda: client.run(PROCESSORS[which], name=which, state=state))
        say(up=True)
        lines = Lines(0)
        try:
            while True:
                match lines.next(60):
                    case {"ask": "status"}:
                        say(**status_of(run))
                    case _:
                        pass
        except EOFError:
            run.close(30)


if __name__ == "__main__":
    main(*sys.argv[1:])
