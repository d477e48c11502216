"""A broker over a log in a folder: `python -m processes.broker FOLDER ENDPOINT BOOT LIMIT`.

It says its endpoint. Asked to `hold`, its disk lets no sync return any more: what is accepted from then on is written and
fanned out and never durable, until `release`. `BOOT` is what it takes for the machine's boot; after a power failure it is another one.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import paramstream as ps
from paramstream.eventlog.files import Disk
from paramstream.eventlog.local import LocalLog

from .lines import Lines, say


class HoldingDisk(Disk):
    """A disk whose syncs can be made to wait."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.let_go.set()

    def sync(self, handle: int) -> None:
        self.let_go.wait()
        super().sync(handle)


def main(folder: str, endpoint: str, boot: str, limit: str) -> None:
    disk = HoldingDisk()
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
                    case _:
                        pass
        except EOFError:
            disk.let_go.set()


if __name__ == "__main__":
    main(*sys.argv[1:])
