"""The process of a broker's keeper; brokers start it (`brokers/keeper.py`), people do not.

It works until SIGTERM, and ends when its parent does. On standard output it says what keeps it from its work, one JSON object a
line, whenever that changes.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from ..consumers.keeping import Keeping
from ..errors import ParamstreamError
from ..eventlog.open import open_changelogs
from .expirer import Expirer
from .logs import set_up_logs
from .output import print_json
from .standing import StopSignal, keep_freed_memory

LOOK_S = 0.5
"""Between two looks at what is due."""

PARENT_S = 0.2
"""How often the parent is looked for."""

ORPHANED = 3
"""Exit code where the broker has died."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="paramstream.cli.keeper", description="the process of a broker's keeper")
    parser.add_argument("--connect", required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--identity", required=True)
    parser.add_argument("--parent", type=int, required=True, help="process id of the broker")
    parser.add_argument("--broker", default="", help="id of the broker, which says what it owns")
    parser.add_argument("--changelogs", action="store_true", help="what opens them comes on the standard input")
    arguments = parser.parse_args(argv)
    settings = sys.stdin.buffer.read() if arguments.changelogs else b""
    set_up_logs()
    stop = StopSignal()
    keep_freed_memory()
    threading.Thread(target=_die_with, args=(arguments.parent,), name="paramstream-parent", daemon=True).start()
    try:
        with ExitStack() as opened:
            changelogs = open_changelogs(settings) if settings else None
            if changelogs is not None:
                opened.callback(changelogs.close)
            expirer = Expirer(arguments.connect, arguments.identity)
            opened.callback(expirer.close)
            keeping = Keeping(
                arguments.connect,
                arguments.dir,
                arguments.identity,
                changelogs=changelogs,
                broker=arguments.broker,
                delete=expirer.delete,
            )
            _work(opened.enter_context(keeping), stop)
    except ParamstreamError as error:
        print_json({"error": f"{error.code}: {error}"})
        return 1
    return 0


def _work(keeping: Keeping, stop: StopSignal) -> None:
    # Whatever it finds at first is said, too: the broker may know of an error of the process before.
    told: str | None = None
    while not stop.wait(LOOK_S):
        keeping.step(time.monotonic())
        if keeping.error != told:
            told = keeping.error
            print_json({"error": told})


def _die_with(parent: int) -> None:
    """End at once when the parent is gone: what was being written was not to be seen yet."""
    while os.getppid() == parent:
        time.sleep(PARENT_S)
    os._exit(ORPHANED)


if __name__ == "__main__":
    sys.exit(main())
