"""`paramstream snapshot`: the state of a topic, made into a snapshot while it goes on."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..client import connect
from ..consumers.snapshots.writing import KEEP
from ..tiers.sizes import size_text
from ..tiers.store import TieredStore
from .options import add_connect, add_json, add_timeout, add_topic, positive, size
from .output import print_json

NAME: str = "snapshot"
HELP: str = "make a snapshot of a topic: safetensors files and a manifest"


def configure(parser: argparse.ArgumentParser) -> None:
    add_connect(parser)
    add_topic(parser)
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="the folder of snapshots to add it to")
    parser.add_argument(
        "--keep",
        metavar="N",
        type=positive,
        default=KEEP,
        help="how many of the topic stay there (default %(default)s)",
    )
    parser.add_argument(
        "--dram", metavar="SIZE", type=size, default="1TiB", help="budget of memory (default: what the state needs)"
    )
    add_timeout(parser, 600.0)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    with (
        TieredStore(dram=arguments.dram) as store,
        connect(arguments.connect) as client,
        client.replica(arguments.topic, store=store, arrays="numpy", timeout=arguments.timeout) as replica,
    ):
        (made,) = replica.snapshot(arguments.out, arguments.timeout, keep=arguments.keep)
    if arguments.json:
        print_json(
            {
                "topic": made.topic,
                "path": str(made.path),
                "version": made.version,
                "bytes": made.bytes,
                "floor": str(made.floor),
                "ceiling": str(made.ceiling),
                "digest": made.digest,
            }
        )
    else:
        version = "no version yet" if made.version is None else f"version {made.version}"
        print(f"snapshot of {made.topic} ({version}, {size_text(made.bytes)}) is in {made.path}")
    return 0
