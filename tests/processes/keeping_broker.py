"""A broker with a keeper: `python -m processes.keeping_broker LOG KEEPER`. It says the keeper's process id, and then stands."""

from __future__ import annotations

import sys
import threading
import time

import paramstream as ps

from .lines import say

START_S = 20.0


def main(log: str, folder: str) -> None:
    with ps.Broker(log=f"file:{log}", keeper=folder) as broker:
        keeper = broker._keeper  # pyright: ignore[reportPrivateUsage]
        assert keeper is not None
        deadline = time.monotonic() + START_S
        while keeper.pid is None and time.monotonic() < deadline:
            time.sleep(0.01)
        say(keeper=keeper.pid, endpoint=broker.endpoint)
        threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
