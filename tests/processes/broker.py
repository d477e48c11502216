"""A broker over a log in a folder: `python -m processes.broker FOLDER ENDPOINT BOOT LIMIT [CLOCK_S]`.

It says its endpoint. Asked to `hold`, its disk lets no sync return any more: what is accepted from then on is written and
fanned out and never durable, until `release`. Asked to `fill`, its disk has no room any more, but for a part of the next write.
`BOOT` is what it takes for the machine's boot; after a power failure it is another one. Its clock is `CLOCK_S` ahead.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import paramstream as ps
from paramstream.eventlog.local import LocalLog

from .disk import FailingDisk
from .lines import Lines, say


def step_clock(seconds: float) -> None:
    """Whoever asks for the time of day from here on gets another one."""
    real = time.time
    time.time = lambda: real() + seconds


def main(folder: str, endpoint: str, boot: str, limit: str, clock_s: str = "0") -> None:
    step_clock(float(clock_s))
    disk = FailingDisk(Path(folder))
    with ps.Broker(endpoint, LocalLog(Path(folder), int(limit), boot=boot, disk=disk)) as broker:
        say(endpoint=broker.endpoint, cut=len(broker.status().cut))
        lines = Lines(0)
        try:
            while True:
                match lines.next(60):
                    case {"ask": "hold"}:
                        disk.let_go.clear()
                        say(held=True)
                    case {"ask": "release"}:
                        disk.let_go.set()
                        say(held=False)
                    case {"ask": "fill", "room": int(room)}:
                        disk.room = room
                        say(room=room)
                    case {"ask": "stopped"}:
                        say(stopped=list(broker.status().stopped.values()))
                    case _:
                        pass
        except EOFError:
            disk.let_go.set()


if __name__ == "__main__":
    main(*sys.argv[1:])
