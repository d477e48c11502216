"""`paramstream replica`: a replica that stands until it is told to stop."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time

from ..client import connect
from ..consumers.replica import Replica
from ..errors import ParamstreamTimeout
from ..tiers.store import TieredStore
from .options import add_connect, add_history, add_timeout, add_topic, size, ssd
from .standing import StopSignal, favour_small_events, keep_freed_memory

NAME: str = "replica"
HELP: str = "run a standing replica of a topic until SIGTERM or SIGINT"

KEEP_S = 60.0
"""How often a replica with a `--snapshot-dir` keeps its state."""

LOOK_S = 0.2
"""How long a signal may wait for the replica to be looked at."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_connect(parser)
    add_topic(parser)
    parser.add_argument("--name", metavar="N", help="its name, which has one live owner (default: one of its own)")
    parser.add_argument(
        "--dram", metavar="SIZE", type=size, default="4GiB", help="budget of memory (default %(default)s)"
    )
    parser.add_argument(
        "--ssd",
        metavar="DIR:SIZE",
        type=ssd,
        help="what memory has no room for goes into this folder, which no other replica may use; nothing in it outlives the replica",
    )
    parser.add_argument(
        "--snapshot-dir",
        metavar="DIR",
        help="keep its state there, every minute and when it stops, and resume from there; needs --name",
    )
    parser.add_argument(
        "--partitions",
        metavar="N",
        type=int,
        nargs="+",
        help="follow these state partitions only (default: all); weights are followed whole",
    )
    parser.add_argument(
        "--serve",
        metavar="ADDR",
        help="answer look-ups of clients there (port 0: any); they find it by themselves",
    )
    parser.add_argument(
        "--advertise", metavar="ADDR", help="the address that clients are told, where it is not the one served"
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="allow to serve beyond this machine, where anybody may then read",
    )
    add_history(parser, "append what it applies to this file")
    add_timeout(parser)


def run(arguments: argparse.Namespace) -> int:
    stop = StopSignal()
    favour_small_events()
    keep_freed_memory()
    with (
        TieredStore(dram=arguments.dram, ssd=arguments.ssd) as store,
        connect(arguments.connect, history=arguments.history) as client,
        client.replica(
            arguments.topic,
            name=arguments.name,
            store=store,
            start="latest" if arguments.snapshot_dir is None else "resume",
            arrays="numpy",
            snapshot_dir=arguments.snapshot_dir,
            partitions=arguments.partitions,
            timeout=arguments.timeout,
        ) as replica,
    ):
        serving = None
        if arguments.serve is not None:
            serving = replica.serve(arguments.serve, insecure=arguments.insecure, advertise=arguments.advertise)
        print(f"replica of {arguments.topic} serves {_served(replica)}", flush=True)
        if serving is not None:
            print(f"look-ups are answered at {serving.endpoint}", flush=True)
        code = _stand(replica, stop, keeps=arguments.snapshot_dir is not None)
        if arguments.snapshot_dir is not None:
            replica.snapshot(timeout=arguments.timeout)
        return code


def _stand(replica: Replica, stop: StopSignal, *, keeps: bool) -> int:
    """Until the signal; with `keeps`, its state is kept every now and then. Raises the error of a replica that can no longer follow."""
    on_terminal = sys.stderr.isatty()
    kept, kept_at = replica.vector, time.monotonic()
    while not stop.wait(0):
        if keeps and time.monotonic() - kept_at >= KEEP_S and replica.vector != kept:
            kept, kept_at = replica.vector, time.monotonic()
            replica.snapshot()
        newer = (replica.status().version or 0) + 1
        # A version that does not come is nothing wrong; a stopped partition or a newer replica of the name is raised.
        with contextlib.suppress(ParamstreamTimeout):
            replica.wait_version(newer, LOOK_S)
        if on_terminal:
            sys.stderr.write(f"\r\x1b[Kserves {_served(replica)}")
            sys.stderr.flush()
    return 0


def _served(replica: Replica) -> str:
    version = replica.status().version
    return "no version yet" if version is None else f"version {version}"
