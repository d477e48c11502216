"""`paramstream restore`: a version of a topic, from a log or a broker, becomes a safetensors file."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from ..brokers import registry
from ..consumers.restore import restore
from ..tiers.sizes import size_text
from ..tiers.store import TieredStore
from .checkpoints import write_checkpoint
from .options import add_json, add_topic, size, version
from .output import Progress, print_json

NAME: str = "restore"
HELP: str = "restore a version from a log or a broker into a safetensors file"


def configure(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--log", metavar="URL", help='"file:DIR", the folder of a log; its broker may be running')
    source.add_argument("--connect", metavar="ADDR", help="a broker, such as tcp://127.0.0.1:7777")
    add_topic(parser)
    parser.add_argument("--at", metavar="VERSION", type=version, help="the version (default: the newest)")
    parser.add_argument(
        "--out", metavar="FILE", type=Path, required=True, help="the file to write, replaced as a whole"
    )
    parser.add_argument(
        "--dram", metavar="SIZE", type=size, default="1TiB", help="budget of memory (default: what the version needs)"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    with (
        TieredStore(dram=arguments.dram) as store,
        Progress(f"reading {arguments.topic}", 0) as reading,
        restore(
            arguments.log or arguments.connect,
            arguments.topic,
            arguments.at,
            store,
            dense_only=True,
            registry=registry,
            arrays="numpy",
            progress=reading.add,
        ) as replica,
    ):
        weights = replica.weights()
        total = sum(array.nbytes for array in weights.values())
        about = {"format": "pt", "topic": weights.topic, "version": str(weights.version), "digest": weights.digest}
        with Progress(f"writing {arguments.out}", total) as writing:
            nbytes = write_checkpoint(arguments.out, weights, about, writing.add)
    if arguments.json:
        print_json(
            {
                "topic": arguments.topic,
                "version": weights.version,
                "tensors": len(weights),
                "bytes": total,
                "digest": weights.digest,
                "out": str(arguments.out),
                "seconds": round(time.monotonic() - began, 3),
            }
        )
    else:
        print(
            f"restored version {weights.version} of {arguments.topic} into {arguments.out}: "
            f"{len(weights)} tensors, {size_text(nbytes)}, digest {weights.digest}"
        )
    return 0
